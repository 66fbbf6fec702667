"""Who sends a request: the signature, whether it was seen before, and what the chain says about its signer.

Everything that costs more than a hash is done after the signature and the membership are known to be good: strangers
cannot fill the table of nonces, nor make the service read a body.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Final

from sqlalchemy import Connection
from starlette.requests import ClientDisconnect, Request

from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import MalformedError, MismatchError, StorageError
from muster.failpoints import failpoint
from muster.hashes import content_hash
from muster.messages import SignedRequest
from muster.signing import Domain, host_of, verify_request
from orchestrator import nonces, problems
from orchestrator.database import Database
from orchestrator.follower import Follower
from orchestrator.ledger import Ledger, Member, member_of

_SPOOL_BYTES: Final = 1 << 20
"""Bytes gathered before they are written to the spool file."""


@dataclass(frozen=True)
class Caller:
    """The proven sender of a request."""

    address: str
    request: SignedRequest
    member: Member | None
    """What the chain says about it; None for the trainer, which is no node."""
    is_trainer: bool


class Gate:
    """Lets signed requests of members in. `hosts` are the names a request may be signed for, the first one ours."""

    def __init__(
        self, where: Domain, url: str, hosts: list[str], *, database: Database, ledger: Ledger, follower: Follower
    ) -> None:
        self._where = where
        self._hosts = [host_of(url), *(host.lower() for host in hosts)]
        self._database = database
        self._ledger = ledger
        self._follower = follower

    async def enter(self, request: Request) -> Caller:
        """The sender of a request whose signature is good, new, and by a member of the run or its trainer."""
        now = time.time()
        address, signed = self._verify(request, now)
        is_trainer = address == self._ledger.terms.trainer

        def admit(connection: Connection) -> tuple[Member | None, str]:
            member = member_of(connection, address)
            if member is None and not is_trainer:
                return None, "unknown"
            return member, nonces.remember(connection, address, signed.nonce, signed.expiry, now)

        member, seen = await self._database.write(admit, news=False)
        if seen == "unknown":
            await self._follower.next_look()  # it may have joined a moment ago
            member, seen = await self._database.write(admit, news=False)
        if seen == "unknown":
            raise problems.not_a_member(address, self._ledger.run)
        if seen == "replayed":
            raise problems.replayed(f"a request of {address} with nonce {signed.nonce} was answered before")
        if seen == "flooded":
            raise problems.try_later(f"{address} has sent too many requests in the last minute")
        return Caller(address, signed, member, is_trainer)

    def _verify(self, request: Request, now: float) -> tuple[str, SignedRequest]:
        named = request.headers.get("host", "").lower()
        host = named if named in self._hosts else self._hosts[0]
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        try:
            return verify_request(
                self._where,
                method=request.method,
                host=host,
                path=raw_path.split(b"?", 1)[0].decode("ascii", "replace"),
                query=request.scope.get("query_string", b"").decode("ascii", "replace"),
                headers=request.headers,
                now=now,
            )
        except MalformedError as error:
            raise problems.unsigned(str(error)) from error
        except MismatchError as error:
            raise problems.expired(str(error), error.hint) from error


async def chunks(request: Request, limit: int, seconds: float) -> AsyncIterator[bytes]:
    """The body as it arrives: at most `limit` bytes in at most `seconds`, and besides what a slow connection needs for
    the bytes that are announced; or a refusal."""
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdigit() else 0
    if announced > limit:
        raise problems.too_large(limit)
    seconds += announced / SLOWEST_BYTES_PER_SECOND
    received = 0
    deadline = asyncio.get_running_loop().time() + seconds
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise problems.too_slow(seconds) from error
        except ClientDisconnect as error:
            raise problems.malformed("the client went away before its body had arrived") from error
        if chunk is None:
            return
        received += len(chunk)
        if received > limit:
            raise problems.too_large(limit)
        yield chunk


async def read_body(request: Request, caller: Caller, *, limit: int, seconds: float) -> bytes:
    """The whole body, found to be what the caller signed."""
    body = b"".join([chunk async for chunk in chunks(request, limit, seconds)])
    _same_hash(content_hash(body), caller)
    return body


@asynccontextmanager
async def spool_body(
    request: Request, caller: Caller, folder: Path, *, limit: int, seconds: float
) -> AsyncIterator[tuple[Path, int]]:
    """The body in a temporary file, found to be what the caller signed, and its size; the file is gone afterwards."""
    digest = hashlib.sha256()
    size = 0
    with NamedTemporaryFile(dir=folder, prefix="upload-") as file:
        waiting = bytearray()
        async for chunk in chunks(request, limit, seconds):
            digest.update(chunk)
            size += len(chunk)
            waiting += chunk
            if len(waiting) >= _SPOOL_BYTES:
                await asyncio.to_thread(_append, file, bytes(waiting))
                waiting.clear()
            failpoint("orchestrator.uploading")
        await asyncio.to_thread(_append, file, bytes(waiting))
        _same_hash("0x" + digest.hexdigest(), caller)
        yield Path(file.name), size


def _append(file: IO[bytes], data: bytes) -> None:
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        raise StorageError(f"cannot spool an upload: {error.strerror}", hint="free space there") from error


def _same_hash(found: str, caller: Caller) -> None:
    signed = caller.request.body_hash
    if found != signed:
        raise problems.wrong_hash(f"the body hashes to {found}, the request was signed for {signed}")
