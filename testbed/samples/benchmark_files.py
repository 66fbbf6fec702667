"""Rows made up in the published schemas, as the files of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.data import BenchmarkData, load_benchmark
from muster.authoring.tasks.sources_code import RunReference
from muster.environments.scoring import Scorers


class Loader:
    """Loads rows as a benchmark's file."""

    def __init__(self, folder: Path, scorers: Scorers, run_reference: RunReference) -> None:
        self.folder, self.scorers, self.run_reference = folder, scorers, run_reference
        self.loaded: list[BenchmarkData] = []

    def file(self, name: str, rows: list[dict[str, Any]]) -> Path:
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def __call__(self, name: str, rows: list[dict[str, Any]] | Path, **options: Any) -> BenchmarkData:
        path = rows if isinstance(rows, Path) else self.file(name, rows)
        benchmark = BENCHMARKS[name]
        environments = [self.scorers.environment(rule.manifest()) for rule in benchmark.rules]
        self.loaded.append(load_benchmark(benchmark, [path], self.run_reference, environments, **options))
        return self.loaded[-1]
