"""Slots of uploads: order, bytes, and which transfer is cut when others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import pytest

from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import RefusedError
from orchestrator import upload_slots
from orchestrator.upload_slots import UploadSlots


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_slots, "WINDOW_SECONDS", 0.3)
    monkeypatch.setattr(upload_slots, "TICK_SECONDS", 0.02)


class Sender:
    """An upload that sends `rate` bytes a second until told to end."""

    def __init__(self, slots: UploadSlots, rate: float = 0, size: int = 1) -> None:
        self.started, self.ending = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._send(slots, rate, size))

    async def _send(self, slots: UploadSlots, rate: float, size: int) -> None:
        async with slots.transfer(size) as transfer:
            self.started.set()
            async with transfer.arriving():
                sent, begun = 0, time.monotonic()
                while not self.ending.is_set():
                    due = int((time.monotonic() - begun) * rate)
                    transfer.received(due - sent)
                    sent = due
                    await asyncio.sleep(0.01)

    async def finish(self) -> None:
        self.ending.set()
        await self.task


async def leave(senders: Iterable[Sender]) -> None:
    for sender in senders:
        sender.task.cancel()
    await asyncio.gather(*(sender.task for sender in senders), return_exceptions=True)


async def test_slow_upload_finishes_while_none_waits() -> None:
    slow = Sender(UploadSlots(2, 10))
    await asyncio.sleep(0.5)
    await slow.finish()


async def test_slowest_is_cut_for_one_that_waits() -> None:
    slots = UploadSlots(3, 10)
    fast, slow, slowest = (Sender(slots, rate * SLOWEST_BYTES_PER_SECOND) for rate in (9, 0.2, 0.1))
    await asyncio.gather(*(sender.started.wait() for sender in (fast, slow, slowest)))
    waiting = Sender(slots)
    await waiting.started.wait()
    with pytest.raises(RefusedError, match="this body was the slowest") as refused:
        await slowest.task
    assert refused.value.status == 408
    assert refused.value.hint
    await slow.finish()
    await fast.finish()
    await waiting.finish()


async def test_floor_rises_with_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_slots, "WAIT_SECONDS", 0.7)
    slots = UploadSlots(1, 10)
    steady = Sender(slots, 2 * SLOWEST_BYTES_PER_SECOND)
    await steady.started.wait()
    with pytest.raises(RefusedError, match="as many bodies") as refused:
        await Sender(slots).task
    assert refused.value.status == 429
    waiting = [Sender(slots) for _ in range(4)]
    with pytest.raises(RefusedError, match="this body was the slowest"):
        await steady.task
    await leave(waiting)


async def test_arrived_file_is_never_cut() -> None:
    slots = UploadSlots(2, 10)
    async with slots.transfer(1) as transfer:
        async with transfer.arriving():
            pass
        slow = Sender(slots, 0.5 * SLOWEST_BYTES_PER_SECOND)
        await slow.started.wait()
        waiting = Sender(slots)
        with pytest.raises(RefusedError, match="this body was the slowest"):
            await slow.task
    await waiting.finish()


async def test_bytes_under_way_are_bounded_and_order_is_kept() -> None:
    slots = UploadSlots(10, 10)
    first = Sender(slots, 9 * SLOWEST_BYTES_PER_SECOND, size=8)
    await first.started.wait()
    large, small = Sender(slots, size=3), Sender(slots, size=1)
    await asyncio.sleep(0.02)
    assert not large.started.is_set()
    assert not small.started.is_set()
    await leave([large])
    await small.started.wait()
    await first.finish()
    full = Sender(slots, size=9)
    await full.started.wait()
    await leave([small, full])


async def test_cancelled_waiter_gives_its_slot_back() -> None:
    slots = UploadSlots(1, 1)
    first = Sender(slots)
    await first.started.wait()
    gone, last = Sender(slots), Sender(slots)
    await asyncio.sleep(0)
    first.task.add_done_callback(lambda _: gone.task.cancel())  # its turn has come, and it has not run since
    first.task.cancel()
    await last.started.wait()
    await leave([gone, last])
