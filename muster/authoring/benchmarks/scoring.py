"""Score completions by a benchmark's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem, visible
from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.scoring import Scorers
from muster.protocol.hashes import content_hash
from muster.runtime.documents import canonical_json

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class RuleScores:
    """What one completion is worth, by each rule."""

    scores: Mapping[str, int]
    """Millionths by the rule's name."""
    reasons: Mapping[str, str]
    """Why a score is not the full one, where the environment says so."""


class BenchmarkScorer:
    """Scores completions of one benchmark's items. Blocking."""

    def __init__(self, benchmark: Benchmark, scorers: Scorers) -> None:
        """Make the rules' manifests. Raises ConfigError where this machine has no component for one."""
        self._rules = benchmark.rules
        self._scorers = scorers
        self.manifests: dict[str, EnvironmentManifest] = {rule.name: rule.manifest() for rule in benchmark.rules}
        self.environments = {name: scorers.environment(manifest) for name, manifest in self.manifests.items()}

    def hashes(self) -> dict[str, str]:
        """Return a hash for each rule, of what its scores depend on besides item and completion."""
        return {
            rule.name: content_hash(
                canonical_json(
                    {
                        "extract": f"{rule.extract.__module__}.{rule.extract.__name__}",
                        "manifest": self.manifests[rule.name].to_document(),
                        "version": rule.version,
                    }
                )
            )
            for rule in self._rules
        }

    def score(self, item: BenchmarkItem, reference: Mapping[str, Any], completion: str) -> RuleScores:
        """Score one completion by every rule. Raises UnreachableError when this machine cannot run a scorer."""
        text = visible(completion)
        task = item.task("{question}", reference)
        scores, reasons = {}, {}
        for rule in self._rules:
            found = rule.extract(text, item)
            manifest = self.manifests[rule.name]
            score = Score((0,), reason=NO_ANSWER) if not found else self._scorers.score(manifest, task, found)
            scores[rule.name] = score.reward(manifest)
            if score.reason:
                reasons[rule.name] = score.reason
        return RuleScores(scores, reasons)
