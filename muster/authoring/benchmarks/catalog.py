"""Which benchmarks there are. To add one, write its conversion, its rules and its settings, and name it here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from muster.authoring.benchmarks import programs, questions
from muster.authoring.benchmarks.definitions import Benchmark
from muster.authoring.benchmarks.livecodebench import LIVECODEBENCH

BENCHMARKS: Final[Mapping[str, Benchmark]] = MappingProxyType(
    {one.name: one for one in (*questions.BENCHMARKS, *programs.BENCHMARKS, LIVECODEBENCH)}
)
"""Every benchmark by its name."""
