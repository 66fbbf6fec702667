"""Ending in order: what must not be left half done is not, however often somebody says stop."""

from __future__ import annotations

import asyncio

import pytest

from muster.process import to_the_end


async def test_what_must_be_finished_is_before_the_cancellation_counts() -> None:
    done: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        done.append("work")
        return "result"

    task = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work"]


async def test_undisturbed_it_is_a_plain_call() -> None:
    assert await to_the_end(asyncio.sleep(0, "result")) == "result"

    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await to_the_end(fail())


async def test_what_goes_wrong_meanwhile_is_the_cause() -> None:
    go_on = asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise OSError("no")

    task = asyncio.create_task(to_the_end(fail()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert str(caught.value.__cause__) == "no"
