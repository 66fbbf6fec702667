"""A taskset of verifiers whose reward can be chosen, so that every kind of import is tried on the real package."""

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


KINDS = {kind.__name__.lower(): kind for kind in (Boxed, Exact, Letter, Plugged, Length, Numbers, Steps)}


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
