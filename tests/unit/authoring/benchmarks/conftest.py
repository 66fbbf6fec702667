"""Scorers, and a loader of benchmarks, for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.tasks.sources_code import RunReference, run_in_sandbox
from muster.environments.scoring import Scorers
from testbed.samples.benchmark_files import Loader


@pytest.fixture(scope="module")
def scorers() -> Iterator[Scorers]:
    with Scorers() as one:
        yield one


@pytest.fixture(scope="module")
def run_reference(scorers: Scorers) -> RunReference:
    manifest = BENCHMARKS["humaneval"].rules[0].manifest()
    return run_in_sandbox(scorers.call_of(manifest))


@pytest.fixture
def load(tmp_path: Path, scorers: Scorers, run_reference: RunReference) -> Iterator[Loader]:
    loader = Loader(tmp_path, scorers, run_reference)
    yield loader
    for data in loader.loaded:
        data.close()
