"""How tests wait: for a condition, under one bound, and on a clock that stands still with the process."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from testbed import waiting
from testbed.waiting import until, wait_until


async def test_a_time_out_counts_no_time_in_which_the_process_did_not_run() -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    there.send(b"x")
    async with asyncio.timeout(0.01):
        time.sleep(0.05)
        assert await reader.readexactly(1) == b"x"
    writer.close()
    there.close()


def test_a_time_out_counts_the_time_in_which_the_process_waits() -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.Event().wait()
        return loop.time() - began

    began = time.monotonic()
    assert 0.05 <= asyncio.run(wait()) < 0.06
    assert time.monotonic() - began >= 0.05


async def test_the_first_true_value_is_what_was_waited_for() -> None:
    values = iter([0, "", 7, 8, None, 9])

    async def coming() -> object:
        return next(values)

    assert await until(coming) == 7
    assert await until(lambda: next(values)) == 8
    assert await asyncio.to_thread(wait_until, lambda: next(values)) == 9


async def test_timeout_names_the_missing_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "BOUND", 0.02)
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: a spring"):
        await until(lambda: False, "a spring")
    with pytest.raises(AssertionError, match=r"not within 0\.02 s: the log"):
        wait_until(lambda: False, lambda: "the log")
