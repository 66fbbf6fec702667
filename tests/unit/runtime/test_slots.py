"""Slots: who gets one and who waits, party by party. Beyond slots and queue requests are refused, but for health."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from muster.runtime import slots as module
from muster.runtime.slots import ALWAYS, Admission, Slots


async def until_waiting() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_handed_on_address_by_address() -> None:
    slots = Slots(2, 8)
    order: list[str] = []

    async def use(party: str) -> None:
        assert await slots.acquire(party)
        order.append(party)

    assert await slots.acquire("a")
    waiting = [asyncio.create_task(use(party)) for party in ("a", "a", "a", "b", "c")]
    await until_waiting()
    assert order == ["b"], "one address gets at most half of the slots"
    for freed, expected in (("b", "c"), ("a", "a"), ("c", ""), ("a", "a"), ("a", "a")):
        slots.release(freed)
        await until_waiting()
        assert order[-1] == (expected or order[-1])
    await asyncio.gather(*waiting)
    assert order == ["b", "c", "a", "a", "a"]


async def test_a_queue_has_a_bound_and_one_address_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.3)
    slots = Slots(2, 4)
    assert await slots.acquire("a")
    assert await slots.acquire("b")
    waiting = [asyncio.create_task(slots.acquire("a")) for _ in range(2)]
    await until_waiting()
    assert not await slots.acquire("a"), "one address gets at most half of the queue"
    waiting += [asyncio.create_task(slots.acquire(party)) for party in ("b", "c")]
    await until_waiting()
    assert not await slots.acquire("d"), "the queue is full"
    assert await asyncio.gather(*waiting) == [False] * 4, "every wait has a bound"
    slots.release("a")
    assert await slots.acquire("d")


async def test_cancelled_waiter_gives_its_place_back() -> None:
    slots = Slots(1, 8)
    assert await slots.acquire("a")
    gone = asyncio.create_task(slots.acquire("b"))
    await until_waiting()
    slots.release("a")  # the slot passes to b, which is cancelled before it runs
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await slots.acquire("c")


class Readers:
    """Readers of an application that answers once `go` is set, with two slots and no queue."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.answered: list[str] = []
        self.admission = Admission(self._answer, {"reader": Slots(2, 0)})

    async def _answer(self, scope: Any, _receive: Any, _send: Any) -> None:
        if scope["path"] not in ALWAYS:
            await self.go.wait()
        self.answered.append(scope["path"])

    async def request(self, path: str, address: str, forwarded: str = "") -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        connection = SimpleNamespace(address=address, proxied=bool(forwarded))
        headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "state": {"connection": connection}}
        await self.admission(scope, None, send)  # type: ignore[arg-type]
        return sent


@pytest.mark.parametrize("proxied", [False, True])
async def test_one_address_has_half_of_the_slots_and_health_needs_none(*, proxied: bool) -> None:
    readers = Readers()

    def ask(path: str, reader: str) -> Any:
        return readers.request(path, "proxy", reader) if proxied else readers.request(path, reader)

    reading = [asyncio.create_task(ask(f"/{reader}", f"203.0.113.{reader}")) for reader in "12"]
    await asyncio.sleep(0)
    for reader in "13":
        start, _ = await ask("/more", f"203.0.113.{reader}")
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
    for path in sorted(ALWAYS):
        assert await ask(path, "203.0.113.1") == []
    readers.go.set()
    await asyncio.gather(*reading)
    await ask("/again\n", "203.0.113.1")
    assert readers.answered == [*sorted(ALWAYS), "/1", "/2", "/again"]
