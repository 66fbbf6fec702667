"""Tasks with exact answers, made by a seeded generator of one or several families (`muster.authoring.tasks.families`).

Training and held-out tasks share no key, whichever families they are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from muster.authoring.tasks.families import Family, family_of
from muster.environments.task import Task
from muster.errors import ConfigError
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSource
from muster.tasksets.taskset import Scored, TaskSet

MAX_MISSES: Final = 10_000
"""Draws in a row that found only known problems, after which a level is taken to be exhausted."""

LICENCE: Final = "Apache-2.0"


def make_tasks(
    seed: int,
    *,
    families: Sequence[str] = ("sort",),
    levels: Sequence[int] = (3, 4, 5, 6),
    train: int = 4096,
    held_out: int = 640,
) -> dict[str, tuple[list[Task], list[Task]]]:
    """Make training and held-out tasks of each family, by its name: the same arguments give the same tasks.

    `train` and `held_out` count the tasks of one family. No training task of any family shares its key with a held-out
    task of any. Levels are equally frequent as far as there are enough different problems. Raises ConfigError when the
    levels cannot fill the set.
    """
    sources = [family_of(name) for name in families]
    for source in sources:
        if not levels or not all(1 <= level <= source.max_level for level in levels):
            wrong = f"levels {list(levels)} of {source.name}"
            raise ConfigError(wrong, hint=f"give levels from 1 to {source.max_level}")
    if not sources or len({source.name for source in sources}) != len(sources):
        raise ConfigError(f"families {list(families)}", hint="name one or several, each once")
    if train < 1 or held_out < 1:
        raise ConfigError(f"a set of {train} training and {held_out} held-out tasks", hint="give at least one each")
    rng = Random(f"muster.tasks.{seed}")
    # Held-out problems come first, one task per key: then every training task with one of their keys is refused.
    kept = [set[str]() for _ in sources]
    held = [
        _fill(source, rng, levels, held_out, keys, one_per_key=True) for source, keys in zip(sources, kept, strict=True)
    ]
    known = set[str]().union(*kept)
    trained = [_fill(source, rng, levels, train, known, one_per_key=False) for source in sources]
    return {source.name: (ours, theirs) for source, ours, theirs in zip(sources, trained, held, strict=True)}


def sample_of(seed: int, family: str = "sort") -> list[Scored]:
    """Return training tasks of a family with what scores them, for measurements without a task set of their own."""
    training, _ = make_tasks(seed, families=(family,))[family]
    return [(family_of(family).environment, task) for task in training]


def make_task_set(
    seed: int,
    *,
    folder: Path,
    families: Sequence[str] = ("sort",),
    levels: Sequence[int] = (3, 4, 5, 6),
    train: int = 4096,
    held_out: int = 640,
) -> TaskSet:
    """Make a task set in `folder`, one part of equal weight per family, as `make_tasks`.

    Raises ConfigError, and as `write_task_set`.
    """
    made = make_tasks(seed, families=families, levels=levels, train=train, held_out=held_out)
    words = f"muster tasks make --family {','.join(families)} --seed {seed} --levels {','.join(map(str, levels))}"
    origin = [TaskSource(LICENCE, words[:1000], "made by a generator")]

    def parts(half: int) -> list[NewPart]:
        return [NewPart(name, family_of(name).environment, halves[half], 1, origin) for name, halves in made.items()]

    return write_task_set(folder, parts(0), parts(1))


def _fill(
    source: Family, rng: Random, levels: Sequence[int], count: int, seen_keys: set[str], *, one_per_key: bool
) -> list[Task]:
    """Make so many tasks of a family with none of the keys seen; with `one_per_key` theirs are added."""
    tasks: dict[str, Task] = {}
    open_levels = list(levels)
    misses = 0
    while len(tasks) < count:
        level = open_levels[len(tasks) % len(open_levels)]
        task, key = source.make(rng, level)
        if task.text in tasks or key in seen_keys:
            misses += 1
            if misses > MAX_MISSES:
                open_levels.remove(level)
                misses = 0
            if not open_levels:
                raise ConfigError(
                    f"{source.name} at levels {list(levels)} has only {len(tasks)} of {count} different tasks",
                    hint="ask for fewer tasks or for higher levels",
                )
            continue
        misses = 0
        tasks[task.text] = task
        if one_per_key:
            seen_keys.add(key)
    order = list(tasks.values())
    rng.shuffle(order)
    return order
