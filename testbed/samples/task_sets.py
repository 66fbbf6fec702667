"""Task sets of the generators, in folders of this process which go when it ends, and of numbered questions."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from muster.authoring.tasks.generated import make_task_set
from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import ChatMessage, Task
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet

SORTING = EnvironmentManifest("sorting", options={"thinking": "tags"}, weights={"correct": MICRO})
ARITHMETIC = EnvironmentManifest("arithmetic", options={"thinking": "none"}, weights={"correct": MICRO})
SOURCE = TaskSource("MIT", "made for tests", "Ünïcode, too")


@cache
def generated(seed: int, **options: Any) -> TaskSet:
    """Return the task set that `make_task_set` makes of these arguments; the same one each time."""
    folder = Path(tempfile.mkdtemp(prefix="muster-tasks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_task_set(seed, folder=folder / "tasks", **options)


def numbered(count: int, name: str = "q") -> list[Task]:
    """Return tasks that differ in all they hold."""
    return [
        Task(f"{name}{i}", (ChatMessage("user", f"{name} number {i}?"),), {"answer": str(i)}, i % 7)
        for i in range(count)
    ]


def write_numbered(
    folder: Path, counts: Sequence[int] = (1500,), held_out: int = 20, weights: Sequence[int] = ()
) -> TaskSet:
    """Write a set with parts of that many tasks, and held-out tasks."""
    names = "abcdefgh"
    parts = [
        NewPart(names[i], ARITHMETIC, numbered(count, names[i]), weight, [SOURCE])
        for i, (count, weight) in enumerate(zip(counts, weights or [1] * len(counts), strict=True))
    ]
    held = [NewPart("held", SORTING, numbered(held_out, "h"), 1, [SOURCE])] if held_out else []
    return write_task_set(folder, parts, held)
