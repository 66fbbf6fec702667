"""A taskset of verifiers whose reward can be chosen, so that every kind of import is tried on the real package."""

import math
import time
from fractions import Fraction as Exactly
from functools import reduce

import verifiers.v1 as vf
from verifiers.v1 import verify_boxed_math_answer as by_math_verify

print("a package may print when it is imported")


class SumsData(vf.TaskData):
    answer: str
    letter: str = "B"


def right(task, trace) -> float:
    """Plugged in by name in the configuration of a task."""
    return 1.0 if trace.last_reply == task.answer else 0.0


class SumsTask(vf.Task[SumsData]):
    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Boxed(SumsTask):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        """As most published tasksets do it."""
        reply = trace.last_reply
        return float(by_math_verify(reply, self.data.answer, timeout_seconds=10))


class Exact(SumsTask):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class Letter(SumsTask):
    @vf.reward
    async def choice(self, trace: vf.Trace) -> float:
        return 1.0 if self.data.letter == vf.extract_boxed_answer(trace.last_reply, strict=True).strip() else 0.0


class Plugged(SumsTask):
    pass


class Length(Boxed):
    """Named as if it were known, and it is not; another one has no weight."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return vf.verify_boxed_math_answer(trace.last_reply, self.data.answer) / (1 + len(trace.last_reply))

    @vf.reward(weight=0.0)
    async def format(self, trace: vf.Trace) -> float:
        return float("</think>" in trace.last_reply)


class Numbers(SumsTask):
    @vf.reward
    async def equal(self, trace: vf.Trace) -> float:
        return float(int(trace.last_reply) == int(self.data.answer))


class Steps(SumsTask):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        if not trace.last_reply:
            return 0.0
        return vf.verify_boxed_math_answer(trace.last_reply, self.data.answer)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await runtime.write("/tmp/x", b"")


RATES = {"km": 1000}


class Pure(vf.Toolset[vf.ToolsetConfig]):
    """Each depends on its arguments alone."""

    TOOL_PREFIX = "sums"

    @vf.tool
    def divide(self, a: int, b: int = 3, *, digits: int = 2, exact: bool = False) -> str:
        """Divides a by b."""
        value = Exactly(a, b)
        return str(value) if exact else f"{float(value):.{digits}f}"

    @vf.tool(name="product")
    def multiply(self, numbers: str) -> int:
        """Multiplies numbers with commas between them."""
        import re

        return reduce(lambda x, y: x * y, [int(one) for one in re.split(",", numbers)], 1)

    @vf.tool
    def root(self, number: float) -> str:
        return f"""{number}
        has the root {math.sqrt(number)}"""

    @vf.tool
    def is_even(self, number: int) -> bool:
        """Says whether a number is even."""
        return number % 2 == 0


class Impure(vf.Toolset[vf.ToolsetConfig]):
    """Each needs more than its arguments."""

    @vf.tool
    def counts(self, a: int) -> int:
        self.count = getattr(self, "count", 0) + a
        return self.count

    @vf.tool
    def table(self, unit: str) -> int:
        return RATES[unit]

    @vf.tool
    def untyped(self, a) -> str:
        return str(a)

    @vf.tool
    def nested(self, numbers: list[int]) -> int:
        return sum(numbers)

    @vf.tool
    async def fetch(self, url: str) -> str:
        return url

    @vf.tool
    def clock(self, zone: str) -> str:
        return zone + str([time.time() for _ in zone])

    @vf.tool
    def inner(self, name: str) -> str:
        from pathlib import Path

        return Path(name).read_text()

    @vf.tool
    def reads(self, name: str) -> str:
        return open(name).read()

    @vf.tool
    def inherits(self, name: str) -> str:
        return str(super()) + name

    @vf.tool
    def fraction(self, a: int) -> float:
        return a / 3

    @vf.tool
    def optional(self, a: int = None) -> str:  # noqa: RUF013
        return str(a)


class Tools(Boxed):
    @classmethod
    def toolsets(cls, config):
        return [Pure(vf.ToolsetConfig())]


class Mixed(Boxed):
    @classmethod
    def toolsets(cls, config):
        return [Pure(vf.ToolsetConfig()), Impure(vf.ToolsetConfig())]


class Ready(Pure):
    async def setup(self) -> None:
        self.ready = True


class Prepared(Boxed):
    @classmethod
    def toolsets(cls, config):
        return [Ready(vf.ToolsetConfig())]


class Served(Boxed):
    @classmethod
    def toolsets(cls, config):
        return [Pure(vf.ToolsetConfig(url="http://127.0.0.1:9/mcp"))]


PLAIN = (Boxed, Exact, Letter, Plugged, Length, Numbers, Steps)
KINDS = {kind.__name__.lower(): kind for kind in (*PLAIN, Tools, Mixed, Prepared, Served)}


class SumsConfig(vf.TasksetConfig):
    kind: str = "boxed"
    tasks: int = 12


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        config = self.config.task
        if self.config.kind == "plugged":
            config = vf.TaskConfig(rewards={"right": {"fn": "sums_for_muster:right"}})
        for i in range(self.config.tasks):
            prompt = f"What is {i} + {i * i}? Number {i} of the book {'abcdefghijkl'[i % 12]}{i}."
            if i == 3:
                prompt = [
                    vf.UserMessage(content="Hello."),
                    vf.AssistantMessage(content="Hi."),
                    vf.UserMessage(content=prompt),
                ]
            data = SumsData(
                prompt=prompt, answer=rf"\boxed{{{i + i * i}}}" if i % 2 else str(i + i * i), system_prompt="Be brief."
            )
            if i == 5:
                data = data.model_copy(update={"image": "python:3.12"})
            yield KINDS[self.config.kind](data, config)


__all__ = ["SumsTaskset"]
