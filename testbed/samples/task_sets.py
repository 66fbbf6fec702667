"""Task sets of the generators in folders of this process, which go when it ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from muster.authoring.tasks.generated import make_task_set
from muster.tasksets.taskset import TaskSet


@cache
def generated(seed: int, **options: Any) -> TaskSet:
    """Return the task set that `make_task_set` makes of these arguments; the same one each time."""
    folder = Path(tempfile.mkdtemp(prefix="muster-tasks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_task_set(seed, folder=folder / "tasks", **options)
