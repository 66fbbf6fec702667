"""Which tests share a process of pytest-xdist, and which of them start first.

A module stays in one process, so that its fixtures are made once. All modules that use the engine share one: starting
vLLM takes seconds. The longest groups start first, so that no process is left with one of them at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

ENGINE: Final = "engine"
ENGINE_FIXTURE: Final = "lab"
ENGINE_MODULES: Final = frozenset(
    {
        "tests/adversaries/test_adversaries.py",
        "tests/engine/test_engine.py",
        "tests/engine/test_examination.py",
        "tests/engine/test_replay.py",
    }
)
"""Modules whose tests ask for ENGINE_FIXTURE, also through another fixture."""

LONGEST: Final = (
    "tests/integration/test_kill.py",
    ENGINE,
    "tests/engine/test_calibrate.py",
    "tests/integration/test_demo.py",
    "tests/integration/test_commitment_story.py",
    "tests/integration/test_torchrun.py",
    "tests/integration/test_old_case.py",
    "tests/unit/trainer/test_distributed.py",
    "tests/unit/trainer/test_killed.py",
    "tests/integration/test_orchestrator_start.py",
    "tests/engine/test_engine_processes.py",
    "tests/engine/test_serve.py",
    "tests/integration/test_join.py",
    "tests/integration/test_worker_ends.py",
    "tests/integration/test_idle_run.py",
    "tests/integration/test_eval_run.py",
    "tests/integration/test_cli_money.py",
    "tests/integration/test_orchestrator_storage.py",
)
"""Groups by how long they take, the longest first. A stale entry costs time and nothing else."""


def group_of(nodeid: str) -> str:
    """Return the group of a test: its module, or the one group of all that use the engine."""
    module = nodeid.split("::", 1)[0]
    return ENGINE if module in ENGINE_MODULES else module


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests by their groups, the longest first.

    Raises pytest.UsageError when a module uses the engine and ENGINE_MODULES does not have it.
    """
    users = {item.nodeid.split("::", 1)[0] for item in items if ENGINE_FIXTURE in _fixtures(item)}
    if unknown := users - ENGINE_MODULES:
        raise pytest.UsageError(f"uses the engine: add {sorted(unknown)} to ENGINE_MODULES in {__file__}")
    rank = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(group_of(item.nodeid), len(rank)))


def scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return the scheduler of pytest-xdist that keeps the tests of a group in one process.

    Its own `--dist loadgroup` appends the group to an item's private id, which pytest 9.2 no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())
