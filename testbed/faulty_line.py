"""A TCP line to a server that can be cut, fall silent, or carry answers with a bit flipped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Self

from testbed.http import connecting

CHUNK: Final = 1 << 16
FLIPPED: Final = 4_096
"""Answers flip a bit in pieces of at least so many bytes: in weights, and not in heads."""


class FaultyLine:
    """A line to the server on a port of this machine, which may be down or come back."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._is_cut = False
        self.lies = False
        """Whether a bit of every large piece of an answer is flipped."""
        self.url = ""

    def cut(self) -> None:
        """End all connections and refuse new ones, until mended."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def fall_silent(self) -> None:
        """Let connections stay open and carry nothing, until mended."""
        self._speaks.clear()

    def mend(self) -> None:
        self._is_cut = self.lies = False
        self._speaks.set()

    @asynccontextmanager
    async def carrying(self) -> AsyncIterator[Self]:
        async with connecting(self._connected) as self.url:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if self._is_cut:
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(up_writer)
            self._open.update(ends)
            ways = (self._carry(reader, up_writer), self._carry(up_reader, writer, is_answer=True))
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass  # the server is down
        finally:
            self._open.difference_update(ends)
            for end in ends:
                end.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._speaks.wait()
                if self.lies and is_answer and len(data) >= FLIPPED:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                writer.write(data)
                await writer.drain()
