"""A run's tasks in one canonical file, whose hash is the `task_root` of the run's terms.

The file is JSON Lines in ASCII: a header, then the training tasks in the order that draws index, then the held-out
tasks, which nobody is ever asked to generate for. Both halves hang from one root, so that anyone who has the file
can check that no held-out problem is a training problem in other clothes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

from pydantic_core import from_json

from muster.errors import ConfigError, MalformedError, MismatchError
from muster.runtime.files import write_durably
from muster.tasks.families import FAMILIES, Family, Task, family_of

FORMAT: Final = "muster.tasks.v1"
MAX_TASK_FILE_BYTES: Final = 512 * 1024 * 1024
MAX_PROMPT_CHARS: Final = 100_000
MAX_MISSES: Final = 10_000
"""Draws in a row that found only known problems, after which a family is taken to be exhausted."""


@dataclass(frozen=True)
class TaskSet:
    """Training and held-out tasks. `size` and `root` are what the run's terms name; draws index `train`."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]

    @property
    def size(self) -> int:
        """Return the number of training tasks: `Terms.task_count`."""
        return len(self.train)

    @cached_property
    def root(self) -> bytes:
        """SHA-256 of the canonical bytes: `Terms.task_root`."""
        return hashlib.sha256(self.canonical_bytes()).digest()

    def task(self, index: int) -> Task:
        """Return the training task of a draw, 0 ≤ index < size."""
        if not 0 <= index < self.size:
            raise IndexError(f"task {index} of {self.size}")
        return self.train[index]

    def choose(self, indices: Sequence[int]) -> TaskSet:
        """Return the set with these training tasks only, in this order, and all held-out ones."""
        return replace(self, train=tuple(self.task(index) for index in indices))

    def canonical_bytes(self) -> bytes:
        """Return the file's content. Equal sets have equal bytes."""
        header = {"format": FORMAT, "held_out": len(self.held_out), "train": len(self.train)}
        lines = [json.dumps(header, sort_keys=True), *(json.dumps(astuple(t)) for t in self.train + self.held_out)]
        return "".join(line + "\n" for line in lines).encode("ascii")

    def check_disjoint(self) -> None:
        """Raise MismatchError if a held-out task shares its key with a training task, or any task occurs twice."""
        prompts = {task.prompt for task in self.train + self.held_out}
        if len(prompts) != len(self.train) + len(self.held_out):
            raise MismatchError("the task set holds a task twice")
        shared = _keys(self.train) & _keys(self.held_out)
        if shared:
            raise MismatchError(f"{len(shared)} held-out problems are training problems too, e.g. {min(shared)!r}")


def _keys(tasks: Iterable[Task]) -> set[str]:
    return {family_of(task.family).key(task) for task in tasks}


def make_task_set(
    seed: int,
    *,
    family: str = "sort",
    levels: Sequence[int] = (3, 4, 5, 6),
    train: int = 4096,
    held_out: int = 640,
) -> TaskSet:
    """Make a task set of one family: the same arguments give the same root.

    Levels are equally frequent as far as there are enough different problems. Raises ConfigError when the levels
    cannot fill the set.
    """
    source = family_of(family)
    if not levels or not all(1 <= level <= source.max_level for level in levels):
        raise ConfigError(f"levels {list(levels)} of {family}", hint=f"give levels from 1 to {source.max_level}")
    if train < 1 or held_out < 1:
        raise ConfigError(f"a set of {train} training and {held_out} held-out tasks", hint="give at least one each")
    rng = Random(f"muster.tasks.{seed}")
    # Held-out problems come first, one task per key: then every training task with one of their keys is refused.
    held = _fill(source, rng, levels, held_out, seen_keys=set(), one_per_key=True)
    return TaskSet(train=_fill(source, rng, levels, train, seen_keys=_keys(held), one_per_key=False), held_out=held)


def _fill(
    source: Family, rng: Random, levels: Sequence[int], count: int, *, seen_keys: set[str], one_per_key: bool
) -> tuple[Task, ...]:
    tasks: dict[str, Task] = {}
    open_levels = list(levels)
    misses = 0
    while len(tasks) < count:
        level = open_levels[len(tasks) % len(open_levels)]
        task = source.make(rng, level)
        key = source.key(task)
        if task.prompt in tasks or key in seen_keys:
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
        tasks[task.prompt] = task
        if one_per_key:
            seen_keys.add(key)
    order = list(tasks.values())
    rng.shuffle(order)
    return tuple(order)


def save_task_set(task_set: TaskSet, path: Path) -> None:
    """Write the canonical file, whole or not at all. Raises StorageError."""
    write_durably(path, task_set.canonical_bytes())


def load_task_set(path: Path, root: bytes | None = None) -> TaskSet:
    """Read a task set and check everything about it; with `root`, that it is the one the run's terms name.

    Raises MismatchError on another root or halves that overlap, MalformedError on anything that is no task set.
    """
    try:
        if path.stat().st_size > MAX_TASK_FILE_BYTES:
            raise MalformedError(f"{path} is larger than {MAX_TASK_FILE_BYTES} bytes")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"no task set at {path}", hint="muster tasks make") from error
    actual = hashlib.sha256(data).digest()
    if root is not None and actual != root:
        raise MismatchError(
            f"{path} has the root 0x{actual.hex()}, the run's terms name 0x{root.hex()}",
            hint="fetch the run's task set again",
        )
    task_set = _parse(data, path)
    if task_set.root != actual:
        raise MalformedError(f"{path} is not in canonical form")
    task_set.check_disjoint()
    return task_set


def _parse(data: bytes, path: Path) -> TaskSet:
    try:
        header, *lines = (from_json(line) for line in data.splitlines())
    except ValueError as error:
        raise MalformedError(f"{path} is not JSON Lines: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise MalformedError(f"{path} is not a {FORMAT} file")
    tasks = tuple(_parse_task(line, path) for line in lines)
    train = header.get("train")
    if not isinstance(train, int) or not 1 <= train < len(tasks) or header.get("held_out") != len(tasks) - train:
        raise MalformedError(f"{path} has {len(tasks)} tasks, not as many as its header says")
    return TaskSet(tasks[:train], tasks[train:])


def _parse_task(value: object, path: Path) -> Task:
    match value:
        case [str(prompt), str(answer), str(family), int(level)] if family in FAMILIES and level is not True:
            if len(prompt) <= MAX_PROMPT_CHARS:
                return Task(prompt, answer, family, level)
    raise MalformedError(f"{path} has a line that is no task: {str(value)[:80]}")
