"""Make a task set of a pack: one part, scored by this machine's component, each task its author's."""

from __future__ import annotations

from pathlib import Path

from muster.authoring.tasks.duplicates import Signatures, clusters, split_clusters
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.contribution import Contribution
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import TaskSet


def unpack(
    contribution: Contribution, name: str, folder: Path, component: str, held_out: int = 0, seed: int = 0
) -> TaskSet:
    """Write a task set of an environment's tasks, of which some are held out, scored by the component of that hash.

    `name`: the hash of its pack. Raises ConfigError when so many cannot be held out, and as `write_task_set`.
    """
    # 1. Whole clusters of nearly equal tasks are held out, so that none is like a training task.
    signatures = Signatures()
    for task in contribution.tasks:
        signatures.add(task.text)
    chosen = split_clusters(clusters(signatures.matrix()), held_out, seed)

    # 2. One part, with its author in its source.
    origin = f"{contribution.name} {contribution.version} ({name})"
    source = TaskSource(contribution.licence, origin, f"by {contribution.credit}", contribution.author)
    manifest = contribution.manifest(component)
    parts = [
        NewPart(
            contribution.name,
            manifest,
            [task for task, out in zip(contribution.tasks, chosen, strict=True) if bool(out) == kept],
            1,
            [source],
        )
        for kept in (False, True)
    ]
    return write_task_set(folder, parts[:1], parts[1:])
