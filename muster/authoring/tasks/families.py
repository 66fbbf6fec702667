"""Families of generated tasks: what a task of a level is, and which problem it asks.

A family knows how to make a task of a level, and which *key* a task has: two tasks with one key are the same problem
in other clothes (the same digits in another order, the same summands swapped or asked in other words), also where they
are of two families. To add a family, write one class and name it in `FAMILIES`.
"""

from __future__ import annotations

import re
from functools import cache
from random import Random
from string import Formatter
from typing import Final, Protocol

from muster.constants import MICRO
from muster.environments.exact import Arithmetic
from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import ChatMessage, Task
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError, MalformedError

AUTHOR: Final = "muster"


class Family(Protocol):
    """A source of tasks. Levels run from 1 to `max_level`."""

    name: str
    max_level: int
    environment: EnvironmentManifest

    def make(self, rng: Random, level: int) -> Task:
        """Make a task of that level; everything random comes from `rng`."""
        ...

    def key(self, task: Task) -> str:
        """Return what identifies the problem, whatever its wording. Raises MalformedError for another family's task."""
        ...


class SortingFamily:
    """`sort 5231` → `1235`; the level is the number of digits."""

    name = "sort"
    max_level = 12
    environment = EnvironmentManifest("sorting", options={"thinking": "tags"}, weights={"correct": MICRO})
    _PROMPT = re.compile(r"sort ([0-9]{1,12})", re.ASCII)

    def make(self, rng: Random, level: int) -> Task:
        digits = "".join(rng.choice("0123456789") for _ in range(level))
        return _task(f"sort {digits}", "".join(sorted(digits)), level)

    def key(self, task: Task) -> str:
        match = self._PROMPT.fullmatch(task.text)
        if match is None or "".join(sorted(match[1])) != _answer(task) or len(match[1]) != task.level:
            raise MalformedError(f"not a sorting task: {task.text[:80]!r} → {_answer(task)!r}")
        return f"sort {_answer(task)}"


class ArithmeticFamily:
    """`17+25=` → `42`, with `+`, `-` and `*`; the level is the number of digits of the larger operand."""

    name = "arithmetic"
    max_level = 9
    SIGNS = "+-*"
    environment = EnvironmentManifest("arithmetic", Arithmetic.VERSION, {"thinking": "tags"}, {"correct": MICRO})
    _PROMPT = re.compile(r"([0-9]{1,9})([+*-])([0-9]{1,9})=", re.ASCII)
    _COMPUTE: Final = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}

    def make(self, rng: Random, level: int) -> Task:
        operands = [rng.randrange(10 ** (level - 1) if level > 1 else 0, 10**level), rng.randrange(10**level)]
        rng.shuffle(operands)
        sign = rng.choice(self.SIGNS)
        answer = self._COMPUTE[sign](*operands)
        return _task(f"{operands[0]}{sign}{operands[1]}=", str(answer), level)

    def key(self, task: Task) -> str:
        match = self._PROMPT.fullmatch(task.text)
        if match is None:
            raise MalformedError(f"not an arithmetic task: {task.text[:80]!r}")
        a, sign, b = int(match[1]), match[2], int(match[3])
        canonical = f"{a}{sign}{b}=" == task.text and len(str(max(a, b))) == task.level
        if not canonical or str(self._COMPUTE[sign](a, b)) != _answer(task):
            raise MalformedError(f"not an arithmetic task: {task.text!r} → {_answer(task)!r}")
        # a-b and b-a are one problem, as are sums and products with their operands swapped.
        return f"{min(a, b)}{sign}{max(a, b)}"


class CalculatorFamily(ArithmeticFamily):
    """Products, `4821*377=`: more than a small model can do in its head, so it may call a calculator."""

    name = "calculator"
    SIGNS = "*"
    environment = EnvironmentManifest(
        "arithmetic",
        Arithmetic.VERSION,
        {"thinking": "none"},
        {"correct": MICRO},
        turns=TurnsManifest(("calculator",), turns=2, fuel=100),
    )


class SumsFamily:
    """`What is 7 + 5? Answer with only the number.` → `12`, in several wordings; the level is the largest summand.

    For pretrained language models: they do not think, and the last number that they write is the answer. A short system
    message replaces the longer one that many chat templates add.
    """

    name = "sums"
    max_level = 10**6
    environment = EnvironmentManifest(
        "arithmetic", Arithmetic.VERSION, {"answer": "number", "thinking": "none"}, {"correct": MICRO}
    )
    SYSTEM: Final = "Reply with a number."
    WORDINGS: Final = (
        "What is {a} + {b}? Answer with only the number.",
        "Add {a} and {b}. Reply with just the number.",
        "What is the sum of {a} and {b}? Give only the number.",
        "Compute {a} + {b}. Write only the result.",
        "How much is {a} plus {b}? Answer with only the number.",
    )
    _SUMMANDS = re.compile(r"([0-9]{1,7})[^0-9]{1,8}([0-9]{1,7})", re.ASCII)

    def make(self, rng: Random, level: int) -> Task:
        a, b = rng.randint(1, level), rng.randint(1, level)
        wording = rng.choice(self.WORDINGS)
        return _task(wording.format(a=a, b=b), str(a + b), level, system=self.SYSTEM)

    def key(self, task: Task) -> str:
        match = self._SUMMANDS.search(task.text)
        if match is not None:
            a, b = int(match[1]), int(match[2])
            asked = any(f"{self.SYSTEM}\n{wording.format(a=a, b=b)}" == task.text for wording in self.WORDINGS)
            if asked and 1 <= min(a, b) <= max(a, b) <= task.level and str(a + b) == _answer(task):
                return f"{min(a, b)}+{max(a, b)}"
        raise MalformedError(f"not a sum: {task.text[:80]!r} → {_answer(task)!r}")


class StoriesFamily:
    """`Tom has 5 apples. Mia gives Tom 7 more apples. How many apples does Tom have now?` → `12`, in several plots.

    Word problems with sums and differences, as in primary school. The level is the largest summand; for a difference,
    the larger of its subtrahend and its result. Scored and introduced as sums are.
    """

    name = "stories"
    max_level = 10**6
    environment = SumsFamily.environment
    SYSTEM: Final = SumsFamily.SYSTEM
    NAMES: Final = ("Anna", "Ben", "Emma", "Jack", "Lily", "Mia", "Sam", "Tom")
    THINGS: Final = ("apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stickers")
    JOINED: Final = (
        "{x} has {a} {things}. {y} gives {x} {b} more {things}. How many {things} does {x} have now?",
        "{x} has {a} {things} and {y} has {b} {things}. How many {things} do they have together?",
        "There are {a} {things} on the table. {x} puts {b} more {things} there. How many {things} are there now?",
    )
    """Plots whose answer is a + b."""
    TAKEN: Final = (
        "{x} has {a} {things}. {x} gives {b} {things} to {y}. How many {things} does {x} have left?",
        "{x} has {a} {things}. {y} has {b} {things}. How many more {things} does {x} have than {y}?",
        "There are {a} {things} in the box. {x} takes {b} {things} out. How many {things} are left in the box?",
    )
    """Plots whose answer is a - b."""

    def make(self, rng: Random, level: int) -> Task:
        plot = rng.choice((*self.JOINED, *self.TAKEN))
        x, y = rng.sample(self.NAMES, 2)
        things = rng.choice(self.THINGS)
        first, second = rng.randint(1, level), rng.randint(1, level)
        a, answer = (first, first + second) if plot in self.JOINED else (first + second, first)
        story = plot.format(x=x, y=y, things=things, a=a, b=second)
        return _task(story, str(answer), level, system=self.SYSTEM)

    def key(self, task: Task) -> str:
        for plot in (*self.JOINED, *self.TAKEN):
            match = _pattern_of(f"{self.SYSTEM}\n{plot}").fullmatch(task.text)
            if match is None:
                continue
            a, b, joined = int(match["a"]), int(match["b"]), plot in self.JOINED
            first, answer = (a, a + b) if joined else (a - b, a - b)
            if 1 <= min(first, b) <= max(first, b) <= task.level and str(answer) == _answer(task):
                return f"{min(a, b)}+{max(a, b)}" if joined else f"{a}-{b}"
        raise MalformedError(f"not a story: {task.text[:80]!r} → {_answer(task)!r}")


FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (SortingFamily(), ArithmeticFamily(), CalculatorFamily(), SumsFamily(), StoriesFamily())
}


def family_of(name: str) -> Family:
    """Return the family of that name. Raises ConfigError when there is none."""
    try:
        return FAMILIES[name]
    except KeyError:
        raise ConfigError(f"no task family {name!r}", hint=f"known families: {', '.join(FAMILIES)}") from None


@cache
def _pattern_of(plot: str) -> re.Pattern[str]:
    """Return what matches every telling of a plot. A field's first place names it; its others must repeat that."""
    number, name = "[0-9]{1,7}", "[A-Z][a-z]{1,7}"
    forms = {"a": number, "b": number, "x": name, "y": name, "things": "[a-z]{1,8}"}
    parts, seen = [], set[str]()
    for literal, field, _, _ in Formatter().parse(plot):
        parts.append(re.escape(literal))
        if field is not None:
            parts.append(f"(?P={field})" if field in seen else f"(?P<{field}>{forms[field]})")
            seen.add(field)
    return re.compile("".join(parts), re.ASCII)


def _task(prompt: str, answer: str, level: int, *, system: str = "") -> Task:
    before = (ChatMessage("system", system),) if system else ()
    return Task(prompt, (*before, ChatMessage("user", prompt)), {"answer": answer}, level, AUTHOR)


def _answer(task: Task) -> str:
    return str(task.reference.get("answer"))
