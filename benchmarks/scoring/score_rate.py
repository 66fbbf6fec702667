"""How many completions a core scores in a second, once everything is warm, and what starting an instance takes.

A call is made by two processes in turn: this one, and the one behind the walls. So what is measured is the CPU time of
both; on a machine that does nothing else it is the time that passes, which stands beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import psutil

from muster.constants import MICRO
from muster.environments.registry import own_manifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task, ask
from muster.sandbox.client import Sandbox

THINKING: Final = "First I add the numbers, then I look at what is left over, and I check it once more. " * 20


@dataclass(frozen=True)
class Rate:
    """What one run came to."""

    per_cpu_second: float
    per_second: float


class Rates:
    """Scores with warm processes. Close it."""

    def __init__(self) -> None:
        self._scorers = Scorers()

    def __enter__(self) -> Rates:
        return self

    def __exit__(self, *_: object) -> None:
        self._scorers.close()

    def fast(self, count: int) -> Rate:
        """Return the rate of scores that need no call, half exact and half boxed integers."""
        exact, boxed = ask("17+25=", answer="42"), ask("?", answer="1024")
        return self._rate(
            count,
            ("arithmetic", exact, lambda i: f"{THINKING}</think>{i}"),
            ("math", boxed, lambda i: f"{THINKING}</think>So it is \\boxed{{{i}}}."),
        )

    def math(self, count: int) -> Rate:
        """Return the rate of answers that math-verify has to read, no two alike."""
        return self._rate(
            count,
            ("math", ask("?", answer="\\frac{7}{12}"), lambda i: f"hm</think>\\boxed{{{7 * i + 7}/{12 * i + 12}}}"),
            ("math", ask("?", answer="x^2-5x+6"), lambda i: f"hm</think>\\boxed{{(x-2)(x-{i})}}"),
            ("math", ask("?", answer="\\{1,2,3\\}"), lambda i: f"hm</think>\\boxed{{\\{{3, {i}, 1\\}}}}"),
            ("math", ask("?", answer="2\\sqrt{3}"), lambda i: f"hm</think>\\boxed{{\\sqrt{{{i}}}}}"),
        )  # fmt: skip

    def code(self, count: int) -> Rate:
        """Return the rate of right programs with ten tests."""
        tests = [{"input": [[n, *range(n)]], "output": n + n * (n - 1) // 2} for n in range(10)]
        task = ask("Add.", kind="function", entry="add", tests=tests)
        program = "def add(xs):\n    total = {i}\n    for x in xs:\n        total += x\n    return total - {i}"
        return self._rate(
            count, ("code", task, lambda i: f"hm</think>```python\n{program.format(i=i)}\n```"), right=True
        )

    def start(self, count: int) -> float:
        """Return the milliseconds of a call that does nothing, in a fresh instance."""
        manifest = own_manifest("math")
        assert manifest.scorer is not None
        echo = replace(manifest.scorer, function="echo")
        self._scorers.sandbox.call(echo, 0)
        begun = self._cpu()
        for i in range(count):
            self._scorers.sandbox.call(echo, i)
        return (self._cpu() - begun) / count * 1000

    def _rate(self, count: int, *kinds: tuple[str, Task, Callable[[int], str]], right: bool = False) -> Rate:
        work = [(own_manifest(name), task, make) for name, task, make in kinds]
        for manifest, task, make in work:
            self._scorers.score(manifest, task, make(0))
        cpu, begun = self._cpu(), time.perf_counter()
        for i in range(count):
            manifest, task, make = work[i % len(work)]
            score = self._scorers.score(manifest, task, make(i))
            assert not right or score.parts == (MICRO,), score
        passed, used = time.perf_counter() - begun, self._cpu() - cpu
        return Rate(count / used, count / passed)

    def _cpu(self) -> float:
        """Return the CPU time of this process and of those that score, in seconds."""
        return time.process_time() + scorer_seconds(self._scorers.sandbox)


def scorer_seconds(sandbox: Sandbox) -> float:
    """Return the CPU time of the processes that score for a sandbox, in seconds, those below bubblewrap included."""
    total = 0.0
    for server in sandbox._servers.values():  # noqa: SLF001 - a process is looked at from outside
        if server._process is not None:  # noqa: SLF001
            first = psutil.Process(server._process.pid)  # noqa: SLF001
            times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
            total += sum(one.user + one.system for one in times)
    return total
