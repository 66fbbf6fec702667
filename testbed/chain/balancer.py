"""A public endpoint in front of a real Anvil: behind its one address are servers, of which some lag or fail at times.

One HTTP request, a batch too, meets one fate; the next one may meet another. Where there are servers that differ, each
call of a batch is answered by the next of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from muster.chain.provider import BoundedProvider
from testbed.chain.anvil import Anvil
from testbed.http import connecting, read_request

Pick = Callable[[str], bool]
"""Whether a request, as JSON text, meets a certain fate."""


OF_A_TRANSACTION = ("eth_getTransactionReceipt", "eth_getTransactionByHash")


def never(_: str) -> bool:
    return False


def always(_: str) -> bool:
    return True


def first(count: int, word: str) -> Pick:
    """Pick the first so many requests that this word is in."""
    left = iter(range(count))
    return lambda text: word in text and next(left, None) is not None


@dataclass(frozen=True)
class Server:
    """One of several that differ."""

    head: int = 0
    """Newest blocks that it does not have."""
    index: int = 0
    """Newest of its own blocks of which it answers that they have no logs."""
    receipts: int = 0
    """Newest of its own blocks whose transactions and receipts it does not know."""
    pool: bool = True
    """Whether it knows transactions that are not mined."""


class Balancer:
    """The endpoint. Make it with `balanced`."""

    def __init__(self, anvil: BoundedProvider) -> None:
        self._anvil = anvil
        self.url = ""
        self.head = 0
        """The newest block of the server that lags."""
        self.lags: Pick = never
        """Requests that this server answers."""
        self.forgets: Pick = never
        """Requests that are answered as by a server that has indexed no transaction yet."""
        self.fails: Pick = never
        """Requests that are answered with `error`."""
        self.lies: Pick = never
        """Requests that are dealt with, and answered with `error`."""
        self.error: dict[str, Any] = {"code": -32603, "message": "internal error"}
        self.loses: Pick = never
        """Requests that are dealt with, and whose answers get lost."""
        self.server: Callable[[], Server] | None = None
        """Names the server that answers the next call, where servers differ."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.loads((await read_request(reader))[1])
        text, answer = json.dumps(body), json.dumps(await self._answer(body)).encode()
        if not self.loses(text):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(answer) + answer)
            await writer.drain()
        writer.close()

    async def _answer(self, body: Any) -> Any:
        text, calls = json.dumps(body), body if isinstance(body, list) else [body]
        lies = self.lies(text)
        if lies:
            await self._anvil.exchange(body)
        if lies or self.fails(text):
            answers = [_answer(call, error=self.error) for call in calls]
        elif self.forgets(text):
            found = await self._anvil.exchange(calls)
            answers = [
                _answer(call, result=None) if call["method"] in OF_A_TRANSACTION else answer
                for call, answer in zip(calls, found, strict=True)
            ]
        elif self.lags(text):
            server = Server(head=await self._tip() - self.head, pool=False)
            answers = [await self._by(server, call) for call in calls]
        elif self.server is not None:
            answers = [await self._by(self.server(), call) for call in calls]
        else:
            return await self._anvil.exchange(body)
        return answers if isinstance(body, list) else answers[0]

    async def _tip(self) -> int:
        return int(await self._anvil.request("eth_blockNumber"), 16)

    async def _by(self, server: Server, call: dict[str, Any]) -> dict[str, Any]:
        """Answer as this server would."""
        # 1. Its own latest and pending block.
        method, head = call["method"], await self._tip() - server.head
        names = {"latest": hex(head), "pending": "pending" if server.pool else hex(head)}
        params: list[Any] = [names.get(value, value) if isinstance(value, str) else value for value in call["params"]]
        # 2. What it knows of the block that is asked about.
        if method == "eth_getBlockByNumber":
            return await self._known(call, params) if int(params[0], 16) <= head else _answer(call, result=None)
        if method == "eth_getLogs" and "blockHash" in params[0]:
            number = await self._number(params[0]["blockHash"])
            if number is None or number > head:
                return _answer(call, error={"code": -32000, "message": "unknown block"})
            return await self._known(call, params) if number <= head - server.index else _answer(call, result=[])
        if method == "eth_getLogs":
            last = min(int(params[0]["toBlock"], 16), head - server.index)
            if last < int(params[0]["fromBlock"], 16):
                return _answer(call, result=[])
            return await self._known(call, [{**params[0], "toBlock": hex(last)}])
        if method == "eth_getBlockReceipts":
            number = await self._number(params[0])
            has = number is not None and number <= head - server.receipts
            return await self._known(call, params) if has else _answer(call, result=[])
        # 3. What it knows of the transaction.
        answer = await self._known(call, params)
        if method in OF_A_TRANSACTION and (found := answer.get("result")):
            mined = found["blockNumber"]
            is_known = server.pool if mined is None else int(mined, 16) <= head - server.receipts
            return answer if is_known else _answer(call, result=None)
        return answer

    async def _known(self, call: dict[str, Any], params: list[Any]) -> dict[str, Any]:
        return await self._anvil.exchange({**call, "params": params})

    async def _number(self, digest: str) -> int | None:
        """Return the number of the block with a hash."""
        block = await self._anvil.request("eth_getBlockByHash", digest, False)
        return None if block is None else int(block["number"], 16)


def _answer(call: dict[str, Any], **content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call["id"], **content}


@asynccontextmanager
async def balanced(anvil: Anvil) -> AsyncIterator[Balancer]:
    """Yield the endpoint in front of an Anvil."""
    async with BoundedProvider(anvil.url, timeout=60) as provider:
        balancer = Balancer(provider)
        async with connecting(balancer.serve) as balancer.url:
            yield balancer
