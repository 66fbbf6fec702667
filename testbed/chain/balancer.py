"""A public endpoint in front of a real Anvil: behind its one address are servers, of which some lag or fail at times.

One HTTP request, a batch too, is answered by one server; the next one may be answered by another.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
            answers = [await self._earlier(call) for call in calls]
        else:
            return await self._anvil.exchange(body)
        return answers if isinstance(body, list) else answers[0]

    async def _earlier(self, call: dict[str, Any]) -> dict[str, Any]:
        """Answer as a server that does not have the blocks after `head`."""
        method = call["method"]
        params = [hex(self.head) if value in ("latest", "pending") else value for value in call["params"]]
        if method == "eth_getLogs":
            params = [{**params[0], "toBlock": hex(min(self.head, int(params[0]["toBlock"], 16)))}]
        answer = await self._anvil.exchange({**call, "params": params})
        found = answer.get("result")
        if method == "eth_getBlockByNumber" and int(params[0], 16) > self.head:
            return _answer(call, result=None)
        if method == "eth_getTransactionReceipt" and found and int(found["blockNumber"], 16) > self.head:
            return _answer(call, result=None)
        return answer


def _answer(call: dict[str, Any], **content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call["id"], **content}


@asynccontextmanager
async def balanced(anvil: Anvil) -> AsyncIterator[Balancer]:
    """Yield the endpoint in front of an Anvil."""
    async with BoundedProvider(anvil.url, timeout=60) as provider:
        balancer = Balancer(provider)
        async with connecting(balancer.serve) as balancer.url:
            yield balancer
