"""Families of generated tasks: what a task of a level is, and which problem it asks.

A family makes a task of a level, and says which *key* it has: two tasks with one key are the same problem in other
clothes (the same digits in another order, the same summands swapped or asked in other words), also where they are of
two families. To add a family, write one class and name it in `FAMILIES`.
"""

from __future__ import annotations

from random import Random
from typing import Final, Protocol

from muster.constants import MICRO
from muster.environments.exact import Arithmetic
from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import ChatMessage, Task
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError

AUTHOR: Final = "muster"


class Family(Protocol):
    """A source of tasks. Levels run from 1 to `max_level`."""

    name: str
    max_level: int
    environment: EnvironmentManifest

    def make(self, rng: Random, level: int) -> tuple[Task, str]:
        """Make a task of that level, with what identifies its problem, whatever its wording.

        Everything random comes from `rng`.
        """
        ...


class SortingFamily:
    """`sort 5231` → `1235`; the level is the number of digits."""

    name = "sort"
    max_level = 12
    environment = EnvironmentManifest("sorting", options={"thinking": "tags"}, weights={"correct": MICRO})

    def make(self, rng: Random, level: int) -> tuple[Task, str]:
        digits = "".join(rng.choice("0123456789") for _ in range(level))
        answer = "".join(sorted(digits))
        return _task(f"sort {digits}", answer, level), f"sort {answer}"


class ArithmeticFamily:
    """`17+25=` → `42`, with `+`, `-` and `*`; the level is the number of digits of the larger operand."""

    name = "arithmetic"
    max_level = 9
    SIGNS = "+-*"
    environment = EnvironmentManifest("arithmetic", Arithmetic.VERSION, {"thinking": "tags"}, {"correct": MICRO})
    _COMPUTE: Final = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}

    def make(self, rng: Random, level: int) -> tuple[Task, str]:
        operands = [rng.randrange(10 ** (level - 1) if level > 1 else 0, 10**level), rng.randrange(10**level)]
        rng.shuffle(operands)
        sign = rng.choice(self.SIGNS)
        a, b = operands
        # a-b and b-a are one problem, as are sums and products with their operands swapped.
        return _task(f"{a}{sign}{b}=", str(self._COMPUTE[sign](a, b)), level), f"{min(a, b)}{sign}{max(a, b)}"


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

    def make(self, rng: Random, level: int) -> tuple[Task, str]:
        a, b = rng.randint(1, level), rng.randint(1, level)
        wording = rng.choice(self.WORDINGS)
        return _task(wording.format(a=a, b=b), str(a + b), level, system=self.SYSTEM), f"{min(a, b)}+{max(a, b)}"


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

    def make(self, rng: Random, level: int) -> tuple[Task, str]:
        plot = rng.choice((*self.JOINED, *self.TAKEN))
        x, y = rng.sample(self.NAMES, 2)
        things = rng.choice(self.THINGS)
        first, b = rng.randint(1, level), rng.randint(1, level)
        if plot in self.JOINED:
            a, answer, key = first, first + b, f"{min(first, b)}+{max(first, b)}"
        else:
            a, answer, key = first + b, first, f"{first + b}-{b}"
        story = plot.format(x=x, y=y, things=things, a=a, b=b)
        return _task(story, str(answer), level, system=self.SYSTEM), key


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


def _task(prompt: str, answer: str, level: int, *, system: str = "") -> Task:
    before = (ChatMessage("system", system),) if system else ()
    return Task(prompt, (*before, ChatMessage("user", prompt)), {"answer": answer}, level, AUTHOR)
