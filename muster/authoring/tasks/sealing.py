"""Make a task set some of whose references are sealed (`muster.tasksets.sealing`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from muster.environments.task import Task
from muster.errors import UsageError
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetPart
from muster.tasksets.masters import Masters
from muster.tasksets.sealing import seal_task
from muster.tasksets.taskset import TaskSet, check_unsealed


def seal_set(task_set: TaskSet, names: Sequence[str], folder: Path, masters: Masters) -> TaskSet:
    """Write the set with the references of the named parts sealed, divided over the masters' epochs.

    With several epochs, task i of a part goes to epoch i mod E + 1. Each epoch has its part: NAME-1, NAME-2 and so on,
    all of the part's weight, for in every epoch one of them is drawn. The masters must be new: keys follow from them
    and from the names of parts and tasks. Raises UsageError for a part that the set lacks, or that is too small,
    ConfigError for a set with sealed parts, and as `write_task_set`.
    """
    # 1. The parts exist, and have a task for each epoch.
    document = task_set.document
    check_unsealed(document)
    counts = {part.name: part.count for part in document.parts}
    for name in names:
        if name not in counts:
            raise UsageError(f"the task set has no training part {name!r}", hint=f"its parts: {', '.join(counts)}")
        if counts[name] < masters.epoch:
            raise UsageError(f"part {name} has {counts[name]} tasks for {masters.epoch} epochs", hint="take fewer")

    # 2. Each of them in one part per epoch; the others as they are.
    parts = []
    for part in document.parts:
        if part.name not in names:
            parts.append(NewPart.of(task_set, part))
            continue
        for epoch in range(1, masters.epoch + 1):
            label = part.name if masters.epoch == 1 else f"{part.name[:58]}-{epoch}"
            tasks = _sealed(task_set, part, label, masters, epoch)
            parts.append(NewPart(label, part.environment, tasks, part.weight, part.sources, epoch))
    return write_task_set(folder, parts, [NewPart.of(task_set, part) for part in document.held_out])


def _sealed(task_set: TaskSet, part: TaskSetPart, label: str, masters: Masters, epoch: int) -> Iterator[Task]:
    master = masters.of(epoch)
    for task in islice(task_set.tasks_of(part), epoch - 1, None, masters.epoch):
        yield seal_task(task, master, label)
