"""Read rollout files from strangers: parsed in another process, with limits on memory, time and output.

`RolloutReader` owns a server process (`reader_server`) that forks once per file. It answers with packed columns, which
are safe to read even from an attacker. A server that misbehaves is killed and replaced.

Two kinds of failure are kept apart, because one of them costs somebody a stake: MalformedError means that the file
did it (format, size, memory, CPU time), UnreachableError that this machine could not decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from muster.constants import MAX_FILE_BYTES
from muster.errors import MalformedError, UnreachableError
from muster.rollouts.parquet import Columns, FileLimits
from muster.rollouts.sandbox import ANSWER, HEAD, PACKED_OVERHEAD, ParseStatus
from muster.rollouts.schema import Rollout
from muster.runtime.closing import AsyncClosing
from muster.runtime.module_command import bare_environment, module_command

CPU_SECONDS: Final = 10.0
"""CPU time for one file. The largest honest one takes about a tenth of it."""

WALL_SECONDS: Final = 60.0
ATTEMPTS: Final = 2
_GRACE_SECONDS: Final = 10.0


class RolloutReader(AsyncClosing):
    """Parses one file at a time. Use as an async context manager, or `close` it."""

    def __init__(self, *, cpu_seconds: float = CPU_SECONDS, wall_seconds: float = WALL_SECONDS) -> None:
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self._lock = asyncio.Lock()
        self.server: asyncio.subprocess.Process | None = None

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        """Return the rows of a file, in its order. They fit the schema; nothing else is checked.

        Raises MalformedError when the file is to blame, UnreachableError when it could not be read here and now.
        """
        if len(data) > MAX_FILE_BYTES:
            raise MalformedError(f"the file has {len(data)} bytes; at most {MAX_FILE_BYTES}")
        async with self._lock:
            for _ in range(ATTEMPTS):
                answer = await self._request(data, limits)
                if answer is None:
                    continue
                status, body = answer
                if status == ParseStatus.PARSED:
                    return Columns.unpack(body).rollouts()
                if status == ParseStatus.MALFORMED:
                    reason = body.decode(errors="replace")  # parts of it may come from the file
                    raise MalformedError("".join(c if c.isprintable() else "?" for c in reason))
        raise UnreachableError(
            "the process that parses rollout files did not answer", hint="is this machine short of memory or CPU?"
        )

    async def close(self) -> None:
        """End the server process."""
        server, self.server = self.server, None
        if server is None:
            return
        assert server.stdin is not None
        server.stdin.close()
        try:
            await asyncio.wait_for(server.wait(), timeout=2)
        except TimeoutError:
            with suppress(ProcessLookupError):  # it ended in this moment
                server.kill()
            await server.wait()

    async def _request(self, data: bytes, limits: FileLimits) -> tuple[int, bytes] | None:
        """Send one request. Return None when the server failed, or could not decide."""
        try:
            async with self._running_server() as server, asyncio.timeout(self.wall_seconds + _GRACE_SECONDS):
                assert server.stdin is not None
                assert server.stdout is not None
                head = HEAD.pack(len(data), limits.rows, limits.decoded_bytes, self.cpu_seconds, self.wall_seconds)
                server.stdin.writelines([head, data])
                await server.stdin.drain()
                status, size = ANSWER.unpack(await server.stdout.readexactly(ANSWER.size))
                if size > limits.decoded_bytes + PACKED_OVERHEAD:
                    raise MalformedError(f"the file decodes to {size} bytes; at most {limits.decoded_bytes}")
                body = await server.stdout.readexactly(size)
        except (TimeoutError, EOFError, ConnectionError):
            return None
        return None if status == ParseStatus.FAILED else (status, body)

    @asynccontextmanager
    async def _running_server(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Yield the server, started when needed. Kill it if the exchange fails: its pipes would be out of step."""
        if self.server is None or self.server.returncode is not None:
            self.server = await asyncio.create_subprocess_exec(
                *module_command("muster.rollouts.sandbox"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
                env=bare_environment(ARROW_DEFAULT_MEMORY_POOL="system", OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="2"),
            )
        server = self.server
        try:
            yield server
        except BaseException:
            if server.returncode is None:
                server.kill()
            await self.close()
            raise
