"""Score fixed completions by our rules and by the published scorers, item by item."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.scoring.completions import FixedCompletion, fixed_completions
from benchmarks.scoring.humaneval import rows as humaneval_rows
from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.definitions import Benchmark, BenchmarkItem
from muster.authoring.benchmarks.scoring import BenchmarkScorer
from muster.authoring.benchmarks.summary import units_of
from muster.console.tasks.import_options import run_reference
from muster.constants import MICRO
from muster.environments.scoring import Scorers
from testbed.paths import ROOT
from testbed.samples.benchmark_files import Loader
from testbed.samples.published_rows import ROWS

PEER: Final = ROOT / ".peers" / "scorers"
SCRIPT: Final = ROOT / "benchmarks" / "peers" / "published_scorers.py"
PUNKT: Final = "lib/python*/site-packages/llama_index/core/_static/nltk_cache"
"""Where a package of the peers carries the data that nltk's sentences are found by."""
COMPARED: Final = ("gsm8k", "math500", "aime24", "gpqa_diamond", "ifeval", "humaneval", "mbpp", "livecodebench")
PROBLEMS: Final = 24
"""Of HumanEval's problems, each with a score of completions."""


@dataclass
class Agreement:
    """What came of one benchmark's completions."""

    benchmark: str
    completions: int = 0
    scores: int = 0
    """One for each completion and rule."""
    equal: int = 0
    right: int = 0
    """Scores of ours that are full."""
    differ: list[dict[str, Any]] = field(default_factory=list)


def compare(cache: Path, names: tuple[str, ...] = COMPARED, every: int = 1) -> list[Agreement]:
    """Compare every so manieth completion of these benchmarks."""
    with Scorers() as scorers:
        return [_compare(BENCHMARKS[name], scorers, cache, every) for name in names]


def _compare(benchmark: Benchmark, scorers: Scorers, cache: Path, every: int) -> Agreement:
    # 1. Items of the rows.
    rows = humaneval_rows(cache)[:: 164 // PROBLEMS] if benchmark.name == "humaneval" else ROWS[benchmark.name]
    scorer = BenchmarkScorer(benchmark, scorers)
    with tempfile.TemporaryDirectory() as folder:
        data = Loader(Path(folder), scorers, run_reference(scorers.sandbox))(benchmark.name, rows)
    with data:
        assert len(data.items) == len(rows), data.report.left_out

        # 2. Both scores of each completion.
        cases = fixed_completions(benchmark.name, rows, data.items)[::every]
        theirs = reference_scores([_case(benchmark, rows, data.items, data.reference(one.item), one) for one in cases])
        found = Agreement(benchmark.name, len(cases))
        for case, published in zip(cases, theirs, strict=True):
            item = data.items[case.item]
            scored = scorer.score(item, data.reference(case.item), case.text)
            for rule, score in scored.scores.items():
                ours: Any = units_of(score, item.units) if item.units > 1 else score == MICRO
                wanted = published[rule]
                if isinstance(wanted, list):
                    wanted = sum(wanted) if item.units > 1 else all(wanted)
                found.scores += 1
                found.right += score == MICRO
                found.equal += ours == wanted
                if ours != wanted:
                    reason = scored.reasons.get(rule, "")
                    about = {"item": item.id, "rule": rule, "completion": case.text[-300:]}
                    found.differ.append({**about, "ours": ours, "theirs": wanted, "reason": reason})
    return found


def _case(
    benchmark: Benchmark, rows: Any, items: list[BenchmarkItem], reference: Any, completion: FixedCompletion
) -> dict[str, Any]:
    case = {"benchmark": benchmark.name, "row": rows[completion.item], "completion": completion.text}
    if benchmark.name == "gpqa_diamond":
        aids = items[completion.item].aids
        case |= {"choices": [aids[letter] for letter in "ABCD"], "answer": reference["answer"]}
    return case | ({"code": completion.code} if completion.code else {})


def reference_scores(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the published scorers' scores. Raises CalledProcessError where they are not installed or fail."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    environment = {**os.environ, "NLTK_DATA": str(next(PEER.glob(PUNKT), "")), "PYTHONPATH": ""}
    command = [str(PEER / "bin" / "python"), str(SCRIPT)]
    if not (PEER / "bin" / "python").exists():
        raise subprocess.CalledProcessError(1, command, "the published scorers are not here: make bench-peers")
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]
