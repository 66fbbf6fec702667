"""Make a task set of a pack: one part, scored by this machine's component, each task its author's."""

from __future__ import annotations

from pathlib import Path

from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.contribution import Contribution
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet


def unpack(contribution: Contribution, name: str, folder: Path, component: str) -> TaskSet:
    """Write a task set of an environment's tasks, scored by the component of that hash.

    `name`: the hash of its pack. Raises as `write_task_set`.
    """
    origin = f"{contribution.name} {contribution.version} ({name})"
    source = TaskSource(contribution.licence, origin, f"by {contribution.credit}", contribution.author)
    part = NewPart(contribution.name, contribution.manifest(component), contribution.tasks, 1, [source])
    return write_task_set(folder, [part], [])
