"""A line that is cut, silent or lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from testbed.faulty_line import FLIPPED, FaultyLine
from testbed.http import connecting
from testbed.waiting import BOUND

ANSWER = bytes(FLIPPED)
ENDED = (asyncio.IncompleteReadError, ConnectionError)
Ask = Callable[[], Awaitable[bytes]]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(100):
        writer.write(ANSWER)


@asynccontextmanager
async def _client(line: FaultyLine) -> AsyncIterator[Ask]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(line.url.rpartition(":")[2]))

    async def ask() -> bytes:
        writer.write(b"x")
        async with asyncio.timeout(BOUND):
            return await reader.readexactly(FLIPPED)

    try:
        yield ask
    finally:
        writer.close()


async def test_line_carries_flips_a_bit_falls_silent_and_is_cut() -> None:
    async with connecting(_answer) as url:
        line = FaultyLine(int(url.rpartition(":")[2]))
        async with line.carrying():
            async with _client(line) as ask:
                assert await ask() == ANSWER
                line.lies = True
                assert sum(byte.bit_count() for byte in await ask()) == 1
                line.fall_silent()
                asked = asyncio.ensure_future(ask())
                assert not (await asyncio.wait([asked], timeout=0.05))[0]
                line.mend()
                assert await asked == ANSWER
                line.cut()
                with pytest.raises(ENDED):
                    await ask()
            async with _client(line) as ask:
                with pytest.raises(ENDED):
                    await ask()
            line.mend()
            async with _client(line) as ask:
                assert await ask() == ANSWER
