"""Which tests share a process of pytest-xdist, and which of them start first.

A module stays in one process, so that its fixtures are made once. All modules that use the engine share one: starting
vLLM takes seconds. So do all that look at the page in a browser: they share a swarm. The longest groups start first,
so that no process is left with one of them at the end. After them modules that wait for blocks and time-outs take turns
with those that compute, so that the cores have work throughout.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import psutil
import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

WAITING: Final = "tests/integration/"
"""Where modules are that mostly wait for other processes."""
ENGINE: Final = "engine"
ENGINE_FIXTURE: Final = "lab"
ENGINE_MODULES: Final = frozenset(
    {
        "tests/adversaries/test_adversaries.py",
        "tests/engine/test_engine.py",
        "tests/engine/test_examination.py",
        "tests/engine/test_gpu_start.py",
        "tests/engine/test_hostile_steps.py",
        "tests/engine/test_live_cheats.py",
        "tests/engine/test_looks.py",
        "tests/engine/test_replay.py",
    }
)
"""Modules whose tests ask for ENGINE_FIXTURE, also through another fixture."""

BROWSER: Final = "browser"
BROWSER_FOLDER: Final = "tests/e2e/"
"""Where modules are that share a browser."""

LONGEST: Final = (
    BROWSER,
    ENGINE,
    "tests/integration/test_demo.py",
    "tests/integration/test_printed.py",
    "tests/integration/test_demo_looks.py",
    "tests/integration/test_chain_lost.py",
    "tests/integration/test_tools_swarm.py",
    "tests/integration/test_demo_own_tasks.py",
    "tests/integration/test_commitment_story.py",
    "tests/integration/test_mixture_story.py",
    "tests/engine/test_calibration.py",
    "tests/engine/test_serve.py",
    "tests/integration/test_old_case.py",
    "tests/integration/test_join.py",
    "tests/integration/test_worker_ends.py",
    "tests/integration/test_contributed_story.py",
    "tests/integration/test_own_a_run.py",
    "tests/integration/test_run_init.py",
    "tests/integration/test_torchrun.py",
    "tests/unit/authoring/contributions/test_checks.py",
    "tests/integration/test_orchestrator_start.py",
    "tests/unit/trainer/test_distributed.py",
    "tests/engine/test_engine_processes.py",
    "tests/integration/test_private_tests.py",
    "tests/integration/test_idle_run.py",
    "tests/integration/test_orchestrator_storage.py",
    "tests/integration/test_cli_money.py",
    "tests/integration/test_cli.py",
    "tests/integration/test_eval_run.py",
    "tests/integration/test_kill.py",
)
"""Groups by how long they take, the longest first. A stale entry costs time and nothing else.

The swarm that is killed comes last of them: the recorded swarm has ended by then, and both at once take 7 GiB.
"""


MEMORY_OF_A_PROCESS: Final = 3 << 30
"""Bytes, with the swarm or the engine that its tests start."""


def processes() -> int:
    """Return how many processes share the tests out: one more than there are cores, for some of them wait."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores + 1, psutil.virtual_memory().total // MEMORY_OF_A_PROCESS))


def group_of(nodeid: str) -> str:
    """Return the group of a test: its module, or the one group of all that use the engine, or the browser."""
    module = nodeid.split("::", 1)[0]
    if module.startswith(BROWSER_FOLDER):
        return BROWSER
    return ENGINE if module in ENGINE_MODULES else module


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests by their groups, the longest first.

    Raises pytest.UsageError when a module uses the engine and ENGINE_MODULES does not have it.
    """
    users = {item.nodeid.split("::", 1)[0] for item in items if ENGINE_FIXTURE in _fixtures(item)}
    if unknown := users - ENGINE_MODULES:
        raise pytest.UsageError(f"uses the engine: add {sorted(unknown)} to ENGINE_MODULES in {__file__}")
    place = places(list(dict.fromkeys(group_of(item.nodeid) for item in items)))
    items.sort(key=lambda item: place[group_of(item.nodeid)])


def places(groups: Sequence[str]) -> dict[str, float]:
    """Return where each group comes: those of LONGEST in its order, then waiting and computing ones in turns."""
    place: dict[str, float] = {group: float(at) for at, group in enumerate(LONGEST)}
    others = [group for group in groups if group not in place]
    waiting = [group for group in others if group.startswith(WAITING)]
    for some in (waiting, [group for group in others if group not in waiting]):
        place |= {group: len(LONGEST) + (at + 0.5) / len(some) for at, group in enumerate(some)}
    return place


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
