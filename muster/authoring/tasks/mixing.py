"""Make one task set of several: by weights, and without any held-out problem among the training problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from muster.authoring.tasks.duplicates import NEAR, Signatures, clusters, exact_key
from muster.environments.task import MAX_ID_CHARS, Task
from muster.errors import UsageError
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetPart
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet, check_unsealed

HELD_OUT_ELSEWHERE = "like a held-out task"
IN_ANOTHER = "in another of the sets too"


def mix_sets(folder: Path, sets: Sequence[tuple[TaskSet, int]], near: float = NEAR) -> tuple[TaskSet, Counter[str]]:
    """Write a set with the parts of all `sets`, each set drawn by its weight. Return it, and what was left out.

    Training tasks that are nearly equal to any held-out task are left out, and those that an earlier set has as well.
    Parts of one name are numbered. Raises UsageError on bad weights, ConfigError on sealed parts, and as
    `write_task_set`.
    """
    if not sets or any(weight < 1 for _, weight in sets):
        raise UsageError("a mixture needs sets with weights of at least 1", hint="write them like gsm8k:3 sums:1")

    for task_set, _ in sets:
        check_unsealed(task_set.document)

    # 1. Go through all tasks once, to know what must go.
    dropped = _doubles([one for one, _ in sets], near)

    # 2. One part after the other, under unique names and ids.
    left_out: Counter[str] = Counter()
    parts, kept = [], []
    names: set[str] = set()
    ids: set[str] = set()
    weights = _weights(sets)
    number = 0
    for task_set, _ in sets:
        training = {part.name: _free_name(part.name, names) for part in task_set.document.parts}
        names |= set(training.values())
        for part in task_set.document.parts:
            reasons = dropped[number : number + part.count]
            left_out.update(reason for reason in reasons if reason)
            label = training[part.name]
            tasks = _remaining(task_set, part, reasons, label, ids)
            parts.append(NewPart(label, part.environment, tasks, weights.pop(0), part.sources))
            number += part.count
        for part in task_set.document.held_out:
            name = training.get(part.name) or _free_name(part.name, names)
            names.add(name)
            tasks = _remaining(task_set, part, [""] * part.count, name, ids)
            kept.append(NewPart(name, part.environment, tasks, 1, part.sources))
    return write_task_set(folder, parts, kept, [one.folder / COMPONENTS_NAME for one, _ in sets]), left_out


def _doubles(sets: Sequence[TaskSet], near: float) -> list[str]:
    """Return for each training task of all sets why it must go, empty if it need not."""
    signatures = Signatures()
    first_set: dict[bytes, int] = {}
    keys: list[bytes] = []
    owners: list[int] = []
    for number, task_set in enumerate(sets):
        for _, task in task_set.train:
            key = exact_key(task.text)
            first_set.setdefault(key, number)
            keys.append(key)
            owners.append(number)
            signatures.add(task.text)
    held_keys = set()
    for task_set in sets:
        for _, task in task_set.held_out:
            held_keys.add(exact_key(task.text))
            signatures.add(task.text)
    leaders = clusters(signatures.matrix(), near)
    held_clusters = np.unique(leaders[len(keys) :])
    like_held = np.isin(leaders[: len(keys)], held_clusters)
    reasons = []
    for i, key in enumerate(keys):
        if like_held[i] or key in held_keys:
            reasons.append(HELD_OUT_ELSEWHERE)
        else:
            reasons.append(IN_ANOTHER if first_set[key] < owners[i] else "")
    return reasons


def _remaining(
    task_set: TaskSet, part: TaskSetPart, reasons: Sequence[str], name: str, ids: set[str]
) -> Iterator[Task]:
    for task, reason in zip(task_set.tasks_of(part), reasons, strict=True):
        if reason:
            continue
        label = task.id
        if label in ids:
            label = f"{name}/{label}"[:MAX_ID_CHARS]
        ids.add(label)
        yield task if label == task.id else replace(task, id=label)


def _weights(sets: Sequence[tuple[TaskSet, int]]) -> list[int]:
    """Return the weight of each part of all sets, so that each set has its weight as a whole; as small as possible."""
    totals = [sum(part.weight for part in task_set.document.parts) for task_set, _ in sets]
    common = math.lcm(*totals)
    weights = [
        weight * part.weight * (common // total)
        for (task_set, weight), total in zip(sets, totals, strict=True)
        for part in task_set.document.parts
    ]
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights]


def _free_name(name: str, names: set[str]) -> str:
    number, free = 2, name
    while free in names:
        free = f"{name[:60]}-{number}"
        number += 1
    return free
