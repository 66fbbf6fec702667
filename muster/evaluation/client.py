"""Asking a checkpoint: starts the process that has the engine, and hands on what it answers, task by task.

    async with aclosing(ask(questions)) as answers:
        async for one in answers: ...

The process is `worker.answering`, in a session of its own, so that Ctrl-C reaches only who asked, who then ends it.
Should the asking process be killed, the answering one ends when it next has something to say.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from muster import errors
from muster.errors import MusterError
from muster.questions import Answers, Questions

END_SECONDS: Final = 20.0
"""The longest wait for an engine to put itself away; then it is killed."""


async def ask(questions: Questions) -> AsyncGenerator[Answers]:
    """The answers to each task, in order, from `questions.first` on. Close it early to end the engine.

    Raises what the answering process says is wrong, and MusterError when it ends without a word.
    """
    expected = questions.first
    if expected >= questions.count:
        return
    async with _answering(questions) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            document: dict[str, Any] = json.loads(line)
            if "error" in document:
                raise _error(document)
            answers = Answers.from_document(document)
            if answers.task != expected:
                raise MusterError(f"the engine answered task {answers.task} where {expected} was next")
            expected += 1
            yield answers
            await asyncio.sleep(0)  # lines that are here already come without a pause in which one could be told to end
        if expected < questions.count:
            raise MusterError(
                f"the engine {await _ending(process)} after {expected} of {questions.count} tasks",
                hint="its last words are above; without any, the machine may be out of memory",
            )


@asynccontextmanager
async def _answering(questions: Questions) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process, with the questions handed over; ended with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # no module of the folder somebody happens to stand in
        "-m",
        "worker.answering",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        with suppress(ConnectionError):  # it ended at once; its status says more than this would
            process.stdin.write(questions.to_line().encode() + b"\n")
            await process.stdin.drain()
        yield process
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
    finally:
        await _end(process)


async def _ending(process: asyncio.subprocess.Process) -> str:
    """How a process ended that says nothing more."""
    try:
        status = await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        return "fell silent"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and whatever it started, if it has not ended by itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)


def refusal_line(error: MusterError) -> str:
    """How the answering process says what is wrong."""
    return json.dumps({"error": str(error), "kind": type(error).__name__, "hint": error.hint})


def _error(document: dict[str, Any]) -> MusterError:
    """The inverse of `refusal_line`, for errors that need no more than words."""
    known = (errors.ConfigError, errors.UsageError, errors.MalformedError, errors.MismatchError, errors.StorageError)
    kinds: dict[str, type[MusterError]] = {kind.__name__: kind for kind in known}
    return kinds.get(document["kind"], MusterError)(document["error"], hint=document["hint"])
