"""What the load of benchmarks/service.py is told, and the requests that it makes: members and strangers share these."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.page_cost import Load as Workers
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import NOTHING_HASH, content_hash
from muster.protocol.requests import sign_request
from testbed.signing import QuickSigner

ADDRESSES: Final = 50
"""Of this machine, among which the parties of a process divide."""
RETRY_SECONDS: Final = 1.0

_LENGTH: Final = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_TAG: Final = re.compile(rb'etag: *(?:W/)?"([^"]*)"', re.IGNORECASE)


class Load(Workers):
    """What the processes need to know. `keys` are the members'."""

    judges: list[str]
    """Keys of validators."""
    chain_port: int
    runs: str
    """Address of the contract, which has a proxy that emits."""
    sender: str
    step: int
    hour: int
    seconds: float = 0.0

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def domain(self) -> Domain:
        return Domain(self.chain_id, self.registry)


def tag_of(head: bytes) -> str:
    """Return the word of an answer's ETag; "" where it has none."""
    found = _TAG.search(head)
    return found[1].decode() if found else ""


@dataclass(frozen=True)
class Answer:
    status: int
    tag: str
    body: bytes


class Line(asyncio.Protocol):
    """A connection that stays open and carries one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, port: int, number: int, network: int) -> Line:
        """Connect from an address that follows from `number`. network: each kind of party has its own addresses."""
        source = f"127.0.{network}.{1 + number % ADDRESSES}"
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port, local_addr=(source, 0)))[1]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    @property
    def is_free(self) -> bool:
        return self._answer is None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer. Raises ConnectionError when the connection ends before."""
        if not self.is_free:
            raise ConnectionError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and self._answer is not None and (length is None or len(body) >= int(length[1])):
            self._received = b""
            if not self._answer.done():
                self._answer.set_result(Answer(int(head[9:12]), tag_of(head), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the connection was lost"))


def request_of(
    load: Load, method: str, target: str, body: bytes = b"", signer: QuickSigner | None = None, *, name: str = ""
) -> bytes:
    """Return the bytes of a request, signed where there is a signer. name: the body's hash where it is known."""
    headers = {"Host": f"127.0.0.1:{load.port}", "Accept-Encoding": "identity"}
    if method != "GET":
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    if signer is not None:
        digest = name or (content_hash(body) if body else NOTHING_HASH)
        headers |= sign_request(signer, load.domain, method, load.url + target, digest, now=time.time())
    lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


def begin(work: Callable[[Load], Coroutine[Any, Any, None]]) -> None:
    """Be a process of the load: say "ready", read the `Load` from stdin, and work until killed."""
    print("ready", flush=True)
    load = Load.model_validate_json(sys.stdin.readline())
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    run(work(load))
