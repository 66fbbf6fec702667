"""Families of tasks with exact answers, made from a seeded generator.

A family knows how to make a task of a level, and which *key* a task has: two tasks with one key are the same problem
in other clothes (the same digits in another order, the same summands swapped). Training and held-out tasks share no
key. To add a family, write one class and name it in `FAMILIES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from muster.errors import ConfigError, MalformedError


@dataclass(frozen=True)
class Task:
    """One question. `answer` is the only text that scores; `level` grows with difficulty within a family."""

    prompt: str
    answer: str
    family: str
    level: int


class Family(Protocol):
    """A source of tasks. Levels run from 1 to `max_level`."""

    name: str
    max_level: int

    def make(self, rng: Random, level: int) -> Task:
        """Make a task of that level; everything random comes from `rng`."""
        ...

    def key(self, task: Task) -> str:
        """Return what identifies the problem, whatever its wording. Raises MalformedError for another family's task."""
        ...


class Sorting:
    """`sort 5231` → `1235`; the level is the number of digits."""

    name = "sort"
    max_level = 12
    _PROMPT = re.compile(r"sort ([0-9]{1,12})", re.ASCII)

    def make(self, rng: Random, level: int) -> Task:
        digits = "".join(rng.choice("0123456789") for _ in range(level))
        return Task(f"sort {digits}", "".join(sorted(digits)), self.name, level)

    def key(self, task: Task) -> str:
        match = self._PROMPT.fullmatch(task.prompt)
        if match is None or "".join(sorted(match[1])) != task.answer or len(match[1]) != task.level:
            raise MalformedError(f"not a sorting task: {task.prompt!r} → {task.answer!r}")
        return f"sort {task.answer}"


class Arithmetic:
    """`17+25=` → `42`, with `+`, `-` and `*`; the level is the number of digits of the larger operand."""

    name = "arithmetic"
    max_level = 9
    _PROMPT = re.compile(r"([0-9]{1,9})([+*-])([0-9]{1,9})=", re.ASCII)
    _COMPUTE: Final = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}

    def make(self, rng: Random, level: int) -> Task:
        operands = [rng.randrange(10 ** (level - 1) if level > 1 else 0, 10**level), rng.randrange(10**level)]
        rng.shuffle(operands)
        sign = rng.choice("+-*")
        answer = self._COMPUTE[sign](*operands)
        return Task(f"{operands[0]}{sign}{operands[1]}=", str(answer), self.name, level)

    def key(self, task: Task) -> str:
        match = self._PROMPT.fullmatch(task.prompt)
        if match is None:
            raise MalformedError(f"not an arithmetic task: {task.prompt!r}")
        a, sign, b = int(match[1]), match[2], int(match[3])
        canonical = f"{a}{sign}{b}=" == task.prompt and len(str(max(a, b))) == task.level
        if not canonical or str(self._COMPUTE[sign](a, b)) != task.answer:
            raise MalformedError(f"not an arithmetic task: {task.prompt!r} → {task.answer!r}")
        # a-b and b-a are one problem, as are sums and products with their operands swapped.
        return f"{min(a, b)}{sign}{max(a, b)}"


FAMILIES: Final[Mapping[str, Family]] = {family.name: family for family in (Sorting(), Arithmetic())}


def family_of(name: str) -> Family:
    """Return the family of that name. Raises ConfigError when there is none."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise ConfigError(f"no task family {name!r}", hint=f"known families: {', '.join(FAMILIES)}") from None
