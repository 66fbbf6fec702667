"""Authenticate requests: the signature, whether it was seen before, and what the chain says about its signer.

Everything that costs more than a hash is done after signature and membership are checked: strangers cannot fill the
table of nonces, take a place among the writes, nor make the service read a body. A signature is recovered once for each
request, and a member read once between two polls of the chain.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final, Literal

from sqlalchemy import Connection, bindparam, delete, select, tuple_
from starlette.requests import ClientDisconnect, Request

from muster.constants import MAX_FILE_BYTES, SLOWEST_BYTES_PER_SECOND
from muster.errors import MalformedError, MismatchError, RefusedError, StorageError
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord, Queries, members_of
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_each
from muster.ledger.tables import nonces
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.messages import SignedRequest
from muster.protocol.requests import host_as_sent, host_of, verify_request
from muster.runtime import problems
from muster.runtime.connection_table import Owner
from muster.runtime.failpoints import failpoint

HEADER_BUFFERING: Final = "X-Buffering-Seconds"
"""How long a reverse proxy has buffered the request that it hands over (deploy/nginx/muster.conf)."""

HEADER_METHOD: Final = "X-Original-Method"
HEADER_TARGET: Final = "X-Original-URI"
"""How such a proxy names the request whose signature it asks about."""

_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")

MAX_NONCES: Final = 6_000
"""Unexpired nonces that one process takes of one signer: a hundred requests a second until they expire."""

SWEEP_SECONDS: Final = 5.0
"""Between two deletions of nonces that have expired."""

SWEPT_ROWS: Final = 2_000
"""Nonces of one deletion; where there are more the next follows at once."""

_SPOOL_BYTES: Final = 1 << 20
"""Bytes gathered before they are written to the spool file."""

MAX_RECOGNISED: Final = 65_536
"""Signatures remembered of requests that were given precedence for them, and addresses whose membership is."""

MEMBER_SECONDS: Final = 2.0
"""Longest time for which a member is remembered, where the chain is not polled meanwhile."""


@dataclass(frozen=True)
class Caller:
    """The proven sender of a request."""

    address: str
    request: SignedRequest
    member: NodeRecord | None
    """What the chain says about it; None for the trainer, which is no node."""
    is_trainer: bool

    def active_validator(self) -> None:
        """Raise RefusedError unless the caller is an active validator."""
        if self.member is None or self.member.role != "validator" or not self.member.active:
            raise problems.not_allowed(f"{self.address} is no active validator of this run", "muster validator join")


class Gate:
    """Admits signed requests of members. `hosts`: names that a request may be signed for, besides that of `url`."""

    def __init__(
        self, where: Domain, url: str, hosts: list[str], *, database: Database, queries: Queries, follower: Follower
    ) -> None:
        self._where = where
        self._hosts = [host_of(url), *(host_of(f"//{host}") for host in hosts)]
        self._read_member = database.together(members_of, writes=False)
        self._queries = queries
        self._follower = follower
        self._nonces = Nonces(database)
        self._recognised: dict[str, int] = {}
        """Expiries by signature, oldest first."""
        self._members: dict[str, NodeRecord | None] = {}
        """What the chain says about addresses, as of `_members_at` and no longer than `_members_until`."""
        self._members_at: ChainState | None = None
        self._members_until = 0.0

    async def recognise(self, request: Request) -> Owner | None:
        """Return the member whose valid signature, not seen before, a request carries; None for everybody else.

        This decides the order of answers, and nothing else. Raises neither for a bad signature nor for a database that
        fails.
        """
        try:
            address, signed = self._verify(request, time.time())
        except RefusedError:
            return None
        if signed.signature in self._recognised:
            return None
        is_trainer = address == self._queries.keys_now.trainer
        if not is_trainer:
            try:
                if await self._member(address) is None:
                    return None
            except StorageError:
                return None  # the route refuses the request, if it needs the database
        self._recognised[signed.signature] = signed.expiry
        while len(self._recognised) > MAX_RECOGNISED:
            del self._recognised[next(iter(self._recognised))]
        return Owner(address, is_trainer)

    def identify(self, request: Request) -> Caller:
        """Return the sender of a validly signed request, member or not.

        Nothing is remembered of it, so the same request may come again: only for what changes nothing the second time.
        """
        address, signed = self._verify(request, time.time())
        return Caller(address, signed, None, is_trainer=address == self._queries.keys_now.trainer)

    async def check(self, request: Request) -> None:
        """Raise RefusedError unless an active member or the trainer has signed the request that a proxy names.

        Nothing is remembered of it: that request comes later, with its body.
        """
        path, _, query = request.headers.get(HEADER_TARGET, "").partition("?")
        named = {"method": request.headers.get(HEADER_METHOD, ""), "raw_path": path.encode()}
        asked = Request({**request.scope, **named, "query_string": query.encode()})
        address, _ = self._recover(asked, time.time())
        member = await self._member(address)
        if address != self._queries.keys_now.trainer and (member is None or not member.active):
            raise problems.not_a_member(address, self._queries.run)

    async def enter(self, request: Request) -> Caller:
        """Return the sender of a request whose signature is valid, new, and by a member of the run or its trainer."""
        now = time.time()
        address, signed = self._verify(request, now)
        self._follower.expect_complete()
        is_trainer = address == self._queries.keys_now.trainer
        member = await self._member(address)
        if member is None and not is_trainer:
            await self._follower.next_poll()  # it may have joined a moment ago
            member = await self._member(address)
            if member is None:
                raise await self._not_a_member(request, address, now)
        seen = await self._nonces.remember(address, signed.nonce, signed.expiry, now)
        if seen == "replayed":
            raise problems.replayed(f"a request of {address} with nonce {signed.nonce} was answered before")
        if seen == "flooded":
            raise problems.try_later(f"{address} has sent too many requests in the last minute")
        return Caller(address, signed, member, is_trainer)

    async def _not_a_member(self, request: Request, address: str, now: float) -> RefusedError:
        """Return what to say to a stranger, who may be a member that signed for another name of this host."""
        named = host_as_sent(request.headers.get("host", ""))
        signer, _ = self._recover(request, now, named)
        if signer != address and (signer == self._queries.keys_now.trainer or await self._member(signer) is not None):
            return problems.signed_for_another(named, self._hosts[0])
        return problems.not_a_member(address, self._queries.run)

    async def _member(self, address: str) -> NodeRecord | None:
        """Return what the chain says about an address, read again after a poll of the chain."""
        chain, now = self._queries.chain, time.monotonic()
        if self._members_at is not chain or now > self._members_until or len(self._members) >= MAX_RECOGNISED:
            self._members, self._members_at, self._members_until = {}, chain, now + MEMBER_SECONDS
        members = self._members
        if address not in members:
            members[address] = await self._read_member(address)
        return members[address]

    def _verify(self, request: Request, now: float) -> tuple[str, SignedRequest]:
        """Return the signer of a request and what it signed, found once. Raises RefusedError, each time."""
        state = request.scope.setdefault("state", {})
        if "signed" not in state:
            try:
                state["signed"] = self._recover(request, now)
            except RefusedError as error:
                state["signed"] = error
        if isinstance(state["signed"], RefusedError):
            raise state["signed"]
        return state["signed"]

    def _recover(self, request: Request, now: float, host: str = "") -> tuple[str, SignedRequest]:
        named = host_as_sent(request.headers.get("host", ""))
        host = host or (named if named in self._hosts else self._hosts[0])
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        try:
            return verify_request(
                self._where,
                method=request.method,
                host=host,
                path=raw_path.split(b"?", 1)[0].decode("ascii", "replace"),
                query=request.scope.get("query_string", b"").decode("ascii", "replace"),
                headers=request.headers,
                now=now - buffering_seconds(request),
            )
        except MalformedError as error:
            raise problems.unsigned(str(error)) from error
        except MismatchError as error:
            raise problems.expired(str(error), error.hint) from error


def buffering_seconds(request: Request) -> float:
    """Return how long a trusted proxy buffered the body of an upload, whose signature counts as of its head.

    Of uploads alone, since the same one again changes nothing: its nonce may be forgotten by then.
    """
    said = request.headers.get(HEADER_BUFFERING, "")
    if request.method != "PUT" or not request.scope["state"]["connection"].proxied or not _SECONDS.fullmatch(said):
        return 0.0
    return min(float(said), MAX_FILE_BYTES / SLOWEST_BYTES_PER_SECOND)


class Nonces:
    """Requests that were seen and have not expired: in the database, where other processes and a restart find them."""

    def __init__(self, database: Database) -> None:
        self._insert = database.together(self._insert_all, news=False)
        self._counts: Counter[str] = Counter()
        self._expiring: dict[int, Counter[str]] = {}
        """What is counted of each signer, by the second of expiry."""
        self._now, self._sweep_at = 0.0, 0.0

    async def remember(self, signer: str, nonce: str, expiry: int, now: float) -> Literal["new", "replayed", "flooded"]:
        """Record a request; return whether it is new, was seen before, or is one too many of its signer's."""
        for second in [second for second in self._expiring if second <= now]:
            self._counts -= self._expiring.pop(second)
        if self._counts[signer] >= MAX_NONCES:
            return "flooded"
        self._now = now
        if not await self._insert({"signer": signer, "nonce": nonce, "expiry": expiry}):
            return "replayed"
        self._counts[signer] += 1
        self._expiring.setdefault(expiry, Counter())[signer] += 1
        return "new"

    def _insert_all(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Record requests; return which of them are new. Forget expired ones, every SWEEP_SECONDS."""
        if (now := self._now) >= self._sweep_at:
            swept = connection.execute(_SWEEP, {"now": int(now)}).rowcount
            self._sweep_at = now + SWEEP_SECONDS * (swept < SWEPT_ROWS)
        new = {tuple(row) for row in insert_each(connection, nonces, rows, "signer", "nonce")}
        found = []
        for row in rows:  # of the same one twice, the first is new
            found.append((key := (row["signer"], row["nonce"])) in new)
            new.discard(key)
        return found


_SWEEP: Final = delete(nonces).where(
    tuple_(nonces.c.signer, nonces.c.nonce).in_(
        select(nonces.c.signer, nonces.c.nonce).where(nonces.c.expiry <= bindparam("now")).limit(SWEPT_ROWS)
    )
)
"""An expired request is refused for its expiry."""


def announced_bytes(request: Request, limit: int) -> int | None:
    """Return the body's announced size, None without one. Raises RefusedError when it is above `limit`."""
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdigit() else None
    if announced is not None and announced > limit:
        raise _too_large(limit)
    return announced


def _too_large(limit: int) -> RefusedError:
    return problems.too_large(f"the body is larger than {limit} bytes")


async def chunks(
    request: Request, limit: int, seconds: float, note: Callable[[int], object] = lambda _: None
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives: at most `limit` bytes. Raises RefusedError when it is longer or too slow.

    It may take `seconds`, and besides what a slow connection needs for the bytes that are announced. `note` is called
    with the bytes of each chunk.
    """
    announced = announced_bytes(request, limit) or 0
    seconds += announced / SLOWEST_BYTES_PER_SECOND
    received = 0
    deadline = asyncio.get_running_loop().time() + seconds
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise problems.too_slow(f"the body did not arrive in {seconds:g} s") from error
        except ClientDisconnect as error:
            raise problems.malformed("the client disconnected before its body had arrived") from error
        if chunk is None:
            return
        received += len(chunk)
        if received > limit:
            raise _too_large(limit)
        note(len(chunk))
        yield chunk


async def read_body(
    request: Request, caller: Caller, *, limit: int, seconds: float, received: Callable[[int], object]
) -> bytes:
    """Read the whole body, and check that it is what the caller signed. `received`: as in `spool_body`."""
    body = b"".join([chunk async for chunk in chunks(request, limit, seconds, received)])
    _same_hash(content_hash(body), caller)
    return body


@asynccontextmanager
async def spool_body(
    request: Request,
    caller: Caller,
    folder: Path,
    *,
    limit: int,
    seconds: float,
    received: Callable[[int], object],
) -> AsyncIterator[tuple[Path, int]]:
    """Read the body into a temporary file, check that it is what the caller signed; yield its path and size.

    `received` is called with the bytes of each chunk.
    """
    digest = hashlib.sha256()
    size = 0
    with NamedTemporaryFile(dir=folder, prefix="upload-") as file:
        waiting = bytearray()
        async for chunk in chunks(request, limit, seconds, received):
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
