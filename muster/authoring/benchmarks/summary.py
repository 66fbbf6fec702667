"""Sum up an evaluation's records: pass@k, shares of units, lengths. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from muster.authoring.benchmarks.definitions import Benchmark
from muster.authoring.evaluation.pass_at_k import Estimate, mean_pass_at_k, ratio_of
from muster.constants import MICRO

Record = Mapping[str, Any]


def summarize(benchmark: Benchmark, records: Iterable[Record], samples: int, ks: Sequence[int]) -> dict[str, Any]:
    """Return the figures of records, each item with so many samples. Intervals are over items, 95 %."""
    # 1. Count, so that no text stays in memory.
    right: dict[str, list[int]] = {rule.name: [] for rule in benchmark.rules}
    followed: dict[str, list[int]] = {rule.name: [] for rule in benchmark.rules}
    units: list[int] = []
    tokens = finished = 0
    stopped: Counter[str] = Counter()
    for record in records:
        units.append(record["units"])
        tokens += sum(one["tokens"] for one in record["samples"])
        finished += sum(one["finished"] for one in record["samples"])
        for rule in benchmark.rules:
            scores = [one["scores"][rule.name] for one in record["samples"]]
            right[rule.name].append(sum(score == MICRO for score in scores))
            followed[rule.name].append(sum(units_of(score, record["units"]) for score in scores))
            stopped[rule.name] += sum(
                one["reasons"].get(rule.name, "").startswith("stopped") for one in record["samples"]
            )

    # 2. The figures of each rule.
    figures = []
    for rule in benchmark.rules:
        for k in ks:
            figures.append(_figure(rule.name, f"pass@{k}", mean_pass_at_k(right[rule.name], samples, k)))
        if rule.counts_units:
            shares = ratio_of(followed[rule.name], [samples * count for count in units], samples)
            figures.append(_figure(rule.name, "units", shares))
    total = samples * len(units)
    return {
        "items": len(units),
        "figures": figures,
        "mean_tokens": round(tokens / total, 2),
        "cut_off": 1 - finished / total,
        "stopped": dict(stopped),
    }


def units_of(score: int, units: int) -> int:
    """Return how many units of an item a score stands for: it was their share, rounded down to millionths."""
    return -(-score * units // MICRO)


def _figure(rule: str, measure: str, estimate: Estimate) -> dict[str, Any]:
    return {"rule": rule, "measure": measure, **asdict(estimate)}
