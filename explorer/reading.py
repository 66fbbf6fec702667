"""Ask the reading process for a row of a file.

The process starts with the first request, and ends when nothing was asked for a while, so that its memory is free
between. At most READS_AT_ONCE requests are with it; a bounded number of others wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from explorer.rows import ReadAnswer, ReadingSettings, ReadRequest, TaskPlace
from muster.errors import ConfigError, UnreachableError
from muster.models.files import tokenizer_hash
from muster.protocol.terms import Terms
from muster.runtime import problems, telemetry
from muster.runtime.module_command import module_command

READS_AT_ONCE: Final = 2
MAX_WAITING: Final = 32
"""Requests that may wait for their turn; others are refused."""
ANSWER_SECONDS: Final = 150.0
"""Longest wait for an answer: what the parser may take for the files of two requests."""
IDLE_SECONDS: Final = 120.0
"""Time without a request after which the process ends."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer; three texts of `MAX_TEXT` characters are well below it."""
MAX_DEPTH: Final = 4
"""Folders below the run's own in which a tokenizer is looked for."""
TOKENIZER: Final = "tokenizer.json"

log = telemetry.logger("orchestrator")


def find_tokenizer(folder: Path | None, terms: Terms) -> Path | None:
    """Return the tokenizer.json of a run within its folder; None when no folder there has the hash of the terms.

    Blocks. Files of a checkpoint count together (`muster.models.files.FIXED_FILES`): one alone could fit any model.
    """
    if folder is None:
        return None
    for path in sorted(folder.rglob(TOKENIZER)):
        if len(path.relative_to(folder).parts) > MAX_DEPTH:
            continue
        with suppress(ConfigError, OSError):
            if tokenizer_hash(path.parent) == terms.tokenizer_hash:
                return path.absolute()
    return None


class ReadingProcess:
    """The process that reads files, started when it is needed. One per service; use within `running`."""

    def __init__(self, settings: ReadingSettings) -> None:
        self.settings = settings
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self._waiting = 0
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """One that listens to each process, and those that end one."""
        self._ids = itertools.count()
        self._pending: dict[int, tuple[asyncio.subprocess.Process, asyncio.Future[ReadAnswer]]] = {}
        """What was asked of which process, by the request's id."""

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReadingProcess]:
        """Yield this, and end the process when left."""
        try:
            yield self
        finally:
            await self.close()
            await asyncio.gather(*self._tasks)

    async def ask(
        self, file_hash: str, position: int, *, root: str = "", thinks: bool = True, task: TaskPlace | None = None
    ) -> ReadAnswer:
        """Return the answer to a request. `root`: of the file's rows; `task`: whose reference is read with the row.

        Raises RefusedError when too many wait, UnreachableError when the process fails or takes too long.
        """
        if self._waiting >= MAX_WAITING:
            raise problems.busy("as many rollout files as can be read at once are being read")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            thinking = "tags" if thinks else "none"
            request = ReadRequest(
                id=next(self._ids), file_hash=file_hash, position=position, root=root, thinking=thinking, task=task
            )
            return await self._exchange(request)
        finally:
            self._turns.release()

    async def _exchange(self, request: ReadRequest) -> ReadAnswer:
        process = await self._running_process()
        answer: asyncio.Future[ReadAnswer] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = process, answer
        self._restart_idle_timer()
        assert process.stdin is not None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                process.stdin.write(request.model_dump_json().encode() + b"\n")
                await process.stdin.drain()
                return await answer
        except (TimeoutError, ConnectionError) as error:
            self._kill(process)
            raise UnreachableError("the process that reads rollout files did not answer", hint="try again") from error
        finally:
            del self._pending[request.id]
            self._restart_idle_timer()

    async def _running_process(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return self._process
            self._process = process = await asyncio.create_subprocess_exec(
                *module_command("explorer.reading_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_ANSWER,
            )
            assert process.stdin is not None
            process.stdin.write(self.settings.model_dump_json().encode() + b"\n")
            self._own(asyncio.create_task(self._listen(process), name="reading process"))
            return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Hand out answers until the process ends."""
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                answer = ReadAnswer.model_validate_json(line)
                _, waiting = self._pending.get(answer.id, (None, None))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ValueError, ValidationError) as error:  # a line that is too long, or no answer
            log.warning("the process that reads rollout files sent no answer", reason=str(error).splitlines()[0])
        if self._process is process:
            self._process = None  # the next request starts another one
        self._kill(process)
        for asked, waiting in self._pending.values():
            if asked is process and not waiting.done():
                ended = UnreachableError("the process that reads rollout files has ended", hint="try again")
                waiting.set_exception(ended)
        await process.wait()

    def _restart_idle_timer(self) -> None:
        """Let the process run for IDLE_SECONDS from now on."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if not self._pending:
            self._own(asyncio.create_task(self.close(), name="reading process ends"))

    def _own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it ended in this moment
                process.kill()

    async def close(self) -> None:
        """End the process: it ends by itself once its pipe is closed."""
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), timeout=2)
        except TimeoutError:
            self._kill(process)
            await process.wait()
