"""Readers share the slots address by address. Beyond slots and queue they are refused; health is always answered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.admission import ALWAYS, ReaderAdmission
from muster.runtime.slots import Slots


class Readers:
    """Readers of an application that answers once `go` is set, with two slots and no queue."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.answered: list[str] = []
        self.admission = ReaderAdmission(self._answer)
        self.admission.slots = Slots(2, 0)

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
