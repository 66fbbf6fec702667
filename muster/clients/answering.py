"""Evaluate a checkpoint: start the process that has the engine, and pass on its answers, task by task.

    async with aclosing(ask(questions)) as answers:
        async for one in answers: ...

The process is `worker.answering`. It leads a separate session, so Ctrl-C reaches only the caller, which then ends it.
If the caller is killed, the process ends at its next answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from muster import errors
from muster.clients.evaluation import EvalRequest, TaskResult, read_result, request_line
from muster.errors import MusterError
from muster.runtime.module_command import module_command

MAX_LINE_BYTES: Final = 1 << 30
"""Longest line of the process: all answers to one prompt."""

END_SECONDS: Final = 20.0
"""The longest wait for an engine to shut down; then it is killed."""


async def ask(questions: EvalRequest) -> AsyncGenerator[TaskResult]:
    """Yield the answers to each task, in order, from `questions.first` on. Close it early to end the engine.

    Raises the error that the process reports, and MusterError when it ends without one.
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
            if document["task"] != expected:
                raise MusterError(f"the engine answered task {document['task']} where {expected} was next")
            expected += 1
            yield read_result(document)
            await asyncio.sleep(0)  # buffered lines come without a pause in which the task could be cancelled
        if expected < questions.count:
            raise MusterError(
                f"the engine {await ending_of(process)} after {expected} of {questions.count} tasks",
                hint="the end of its output is above; without any, the machine may be out of memory",
            )


@asynccontextmanager
async def _answering(questions: EvalRequest) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the process and send it the request; end it with the block."""
    process = await asyncio.create_subprocess_exec(
        *module_command("worker.answering"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=MAX_LINE_BYTES,
    )
    try:
        assert process.stdin is not None
        with suppress(ConnectionError):  # it ended at once; its status says more than this error
            process.stdin.write(request_line(questions).encode() + b"\n")
            await process.stdin.drain()
        yield process
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
    finally:
        await end_process(process)


async def ending_of(process: asyncio.subprocess.Process) -> str:
    """Return how a process ended that writes nothing more."""
    try:
        status = await asyncio.wait_for(process.wait(), END_SECONDS)
    except TimeoutError:
        return "closed its output"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


async def end_process(process: asyncio.subprocess.Process) -> None:
    """End the process if it has not ended by itself, and whatever it started.

    Only the process is asked to end: one whose children die first takes that for a failure, and says so at length.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


def refusal_line(error: MusterError) -> str:
    """Return the line with which the process reports an error."""
    return json.dumps({"error": str(error), "kind": type(error).__name__, "hint": error.hint})


def _error(document: dict[str, Any]) -> MusterError:
    """Return the error of a `refusal_line`, for kinds that need no more than a text."""
    known = (errors.ConfigError, errors.UsageError, errors.MalformedError, errors.MismatchError, errors.StorageError)
    kinds: dict[str, type[MusterError]] = {kind.__name__: kind for kind in known}
    return kinds.get(document["kind"], MusterError)(document["error"], hint=document["hint"])
