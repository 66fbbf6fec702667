"""An endpoint whose blocks have no logs: what a reader of a long history asks of servers that lag, or limit a query."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from muster.chain.connection import Web3
from muster.chain.provider import BoundedProvider
from muster.chain.reads import ChainReader
from muster.chain.types import AddressBook
from muster.settings.schema import ChainSettings
from testbed.http import connecting, read_request

BEYOND = "block range extends beyond current head block"
BOOK = AddressBook(31337, *(f"0x{number:040x}" for number in range(1, 8)), 1)


@dataclass(eq=False)
class LogServer:
    """Answers for blocks up to `head()`, logs of `limit` blocks at a time."""

    head: Callable[[], int]
    """Asked for each call: the servers behind one address differ."""
    limit: int = 10_000
    beyond: dict[str, Any] = field(default_factory=lambda: {"code": -32000, "message": BEYOND})
    """The error for logs beyond the head."""
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.loads((await read_request(reader))[1])
        self.requests += 1
        answer = json.dumps([{"jsonrpc": "2.0", "id": one["id"], **self._answer(one)} for one in body]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        writer.close()

    def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        head = self.head()
        if call["method"] == "eth_getBlockByNumber":
            number = int(call["params"][0], 16)
            block = {"number": hex(number), "timestamp": "0x1", "hash": f"0x{number:064x}", "transactions": []}
            return {"result": block if number <= head else None}
        first, last = (int(call["params"][0][name], 16) for name in ("fromBlock", "toBlock"))
        if last > head:
            return {"error": self.beyond}
        if last - first >= self.limit:
            return {"error": {"code": -32600, "message": "block range is too wide"}}
        return {"result": []}

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[ChainReader]:
        """Yield a reader of this endpoint."""
        async with connecting(self.serve) as url, BoundedProvider(url, timeout=30) as provider:
            yield ChainReader(Web3(provider), BOOK, ChainSettings(rpc_url=url))
