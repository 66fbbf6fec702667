"""A task set in short, as `muster tasks` prints it."""

from __future__ import annotations

from typing import Any

from rich.console import Group

from muster.console.session import as_table
from muster.tasksets.taskset import TaskSet


def about_set(task_set: TaskSet) -> dict[str, Any]:
    """Return a task set's document in short."""
    document = task_set.document
    halves = [("train", part) for part in document.parts] + [("held-out", part) for part in document.held_out]
    return {
        "root": task_set.root,
        "slots": task_set.size,
        "train": document.train_count,
        "held_out": document.held_out_count,
        "absent_shards": len(task_set.missing()) + len(task_set.missing_held_out()),
        "parts": [
            {
                "part": part.name,
                "half": half,
                "environment": part.environment.name,
                "weight": part.weight if half == "train" else None,
                "sealed": part.sealed or None,
                "tasks": part.count,
                "shards": len(part.shards),
                "bytes": sum(shard.bytes for shard in part.shards),
                "sources": [f"{source.origin} ({source.licence})" for source in part.sources],
                "author": part.author,
            }
            for half, part in halves
        ],
    }


def set_for_people(document: dict[str, Any]) -> Group:
    totals = {name: value for name, value in document.items() if name != "parts"}
    return Group(as_table(totals), "", as_table(document["parts"]))
