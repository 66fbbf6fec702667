"""Receive rollout files: which file belongs to which commitment, and the receipt that proves it.

The rules, so that no node can be framed:

1. A node signs its upload: path and query name the file's hash and (run, index, root), and the body hash is the
   file's. That signature is kept and sent with the file's name, so the storage key alone cannot claim that a node
   uploaded something (`muster.protocol.receipts.check_upload`).
2. One file per (node, index, root), the first one, for ever. The same file again gets the same receipt; another file
   under the same root is refused, so an accusation always means exactly one file.
3. Before the commitment, several roots may be uploaded for one index (after a reorg, a republished step, a crash):
   at most MAX_ROOTS, for the node's next AHEAD indices, by an active worker.
   What has had no commitment for a day goes, and `orchestrator.key_bytes` bounds it.
4. After the commitment, only its own root can still be uploaded, by the node in any state: so missing data can still
   be supplied. It is never refused for want of room.
5. The receipt is given when file and record are on disk, not before. It says the second of the latest block that was
   read by then, so a file that comes after its commitment has a receipt that says so. While the chain cannot be read
   there are no receipts.
6. A node uploads one file at a time, and slow senders give way to those that wait (`orchestrator/upload_slots.py`).
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Final

from sqlalchemy import Connection, bindparam, exists, func, select, update
from starlette.requests import Request

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS, MAX_FILE_BYTES, UNNAMED_SECONDS
from muster.errors import RefusedError
from muster.ledger import tallies
from muster.ledger.database import Database
from muster.ledger.queries import Queries, next_index_of, upload_of
from muster.ledger.statements import insert_once, row_of
from muster.ledger.summaries import gone_work
from muster.ledger.tables import calls, commitments, files, uploads
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, sign_message
from muster.protocol.messages import Upload, UploadReceipt
from muster.protocol.receipts import upload_target
from muster.rollouts.parquet import FileLimits
from muster.runtime import problems, telemetry
from muster.settings.schema import OrchestratorSettings
from orchestrator.auth import Caller, announced_bytes, spool_body
from orchestrator.upload_slots import FILE_SECONDS, UploadSlots

AHEAD: Final = 8
"""Indices a node may upload for from its next one on: it may prepare work while its commitments are mined."""

FOOTER_BYTES: Final = 1 << 16
"""Bytes of a file besides its rows. A file that is larger than a run's rows can be is not kept."""

MAX_ROOTS: Final = 16
"""Roots a node may upload for one index before it commits to one of them."""

SPOOL_BYTES: Final = 8 << 30
"""Room in `state_dir` for the files under way; further ones wait. That is 128 of the largest that a file may be."""

FRESH_SECONDS: Final = 30.0
"""Age of what is known of the chain beyond which no receipt is given: its second would be too early."""

log = telemetry.logger("orchestrator")
BYTES_RECEIVED: Final = telemetry.counter("upload_bytes", "Bytes of rollout files received and kept")


class Uploads:
    """Receives rollout files. One per service."""

    def __init__(
        self, where: Domain, signer: TypedSigner, queries: Queries, database: Database, settings: OrchestratorSettings
    ) -> None:
        self._where = where
        self._signer = signer
        self._queries = queries
        self._database = database
        self.files = ContentStore(settings.storage_url, "files")
        self.records = ContentStore(settings.storage_url, "uploads")
        self.spool = settings.state_dir / "uploads"
        """Folder of the files under way."""
        self._slots = UploadSlots(settings.uploads_at_once, SPOOL_BYTES)
        self._uploading: set[str] = set()
        """Nodes whose file is on its way."""
        self._key_bytes = settings.key_bytes
        self._limit = min(MAX_FILE_BYTES, FileLimits.from_terms(queries.terms).decoded_bytes + FOOTER_BYTES)

    async def receive(
        self, request: Request, caller: Caller, name: str, run: int, index: int, root: str
    ) -> UploadReceipt:
        """Receive the file `name` as the caller's file for (index, root); return its receipt."""
        path, query = upload_target(name, run, index, root)
        if (caller.request.path, caller.request.query) != (path, query):
            raise problems.malformed(f"an upload's target is written {path}?{query}, in this order and form")
        if caller.request.body_hash != name:
            raise problems.wrong_hash(f"the path names {name}, the signed body hash is {caller.request.body_hash}")
        known = await self._known(caller, name, index, root)
        if known is None or not await self.files.exists(name):  # a database that was restored may name what went
            known = await self.take(request, caller, name, index, root)
        await self.records.put(known.model_dump_json().encode())
        return known.receipt

    async def _known(self, caller: Caller, name: str, index: int, root: str) -> Upload | None:
        """Return the upload if it was received before. Raises RefusedError when it may not be received."""

        def find(connection: Connection) -> tuple[Upload | None, Exception | None]:
            existing = upload_of(connection, caller.address, index, root)
            if existing is not None:
                return existing, None
            committed = tallies.find_commitment(connection, caller.address, index)
            refusal = refuse_upload(
                caller,
                index=index,
                root=root,
                committed=committed,
                next_index=next_index_of(connection, caller.address),
                roots=connection.execute(_ROOTS, {"node": caller.address, "index": index}).scalar() or 0,
            )
            if refusal is None and committed is None:
                refusal = full(connection, caller.address, self._key_bytes, self._queries.chain.now)
            return None, refusal

        existing, refusal = await self._database.read(find)
        if refusal is not None:
            raise refusal
        if existing is not None and existing.receipt.file_hash != name:
            raise problems.conflict(
                f"{caller.address} has uploaded {existing.receipt.file_hash} for index {index} and this root",
                "upload that file: a root has one file",
            )
        return existing

    async def take(self, request: Request, caller: Caller, name: str, index: int, root: str) -> Upload:
        if caller.address in self._uploading:
            raise problems.try_later(f"another upload of {caller.address} is under way")
        self.receipt_second()
        self._uploading.add(caller.address)
        try:
            size = await self._store(request, caller, name)
        finally:
            self._uploading.discard(caller.address)
        receipt = UploadReceipt(
            run=self._queries.run,
            node=caller.address,
            index=index,
            root=root,
            file_hash=name,
            size=size,
            stored_at=self.receipt_second(),
            signature=UNSIGNED,
        )
        upload = Upload(receipt=sign_message(self._signer, self._where, receipt), request=caller.request)
        if not await self.record(upload, time.time()):
            # Another request with this node's key was faster: its file counts.
            return await self._known(caller, name, index, root) or upload
        BYTES_RECEIVED.inc(size)
        log.info("uploaded", node=caller.address, index=index, bytes=size)
        return upload

    async def _store(self, request: Request, caller: Caller, name: str) -> int:
        """Receive the body once there is a slot, and store it; return its size."""
        announced = announced_bytes(request, self._limit)
        async with (
            self._slots.transfer(self._limit if announced is None else announced) as transfer,
            AsyncExitStack() as stack,
        ):
            spooled = spool_body(
                request, caller, self.spool, limit=self._limit, seconds=FILE_SECONDS, received=transfer.received
            )
            async with transfer.arriving():
                path, size = await stack.enter_async_context(spooled)
            if size == 0:
                raise problems.malformed("the file is empty")
            await self.files.put_named(name, path)
        return size

    @property
    def has_storage_key(self) -> bool:
        """Return whether what this process signs now is a receipt."""
        return self._queries.keys_now.storage_key == self._signer.address

    def receipt_second(self) -> int:
        """Return the second of the latest block.

        Raises RefusedError while the chain was not read of late, and where another key signs receipts now.
        """
        chain = self._queries.chain
        if time.monotonic() - chain.read_at > FRESH_SECONDS:
            raise problems.try_later("the chain cannot be read, so a receipt could not say when the file came")
        if not self.has_storage_key:
            raise problems.not_ready("the run's storage key has changed, and this orchestrator has the former one")
        return chain.now

    async def record(self, upload: Upload, received: float) -> bool:
        """Record an upload in the database. Return False when its (node, index, root) has one."""
        row = row_of(uploads, upload.receipt, document=upload.model_dump_json(), received=received)

        def write(connection: Connection) -> bool:
            if not insert_once(connection, uploads, row):
                return False
            tallies.add(connection, {(row["node"], "files"): int(tallies.is_used(connection, row["file_hash"]))})
            tallies.mark_spent(connection, row["node"], row["index"])
            came = {"of_node": row["node"], "of_index": row["index"], "of_root": row["root"]}
            if connection.execute(_OPEN_LATER, came | {"at": upload.receipt.stored_at}).rowcount:
                self._queries.update_status(connection, row["node"], row["index"])
            return True

        return await self._database.write(write)


_ROOTS: Final = select(func.count()).where(uploads.c.node == bindparam("node"), uploads.c.index == bindparam("index"))
"""The number of roots that a node has uploaded for an index."""

IS_COMMITTED: Final = exists().where(*(commitments.c[name] == uploads.c[name] for name in ("node", "index", "root")))
"""Of uploads."""
_COMMITTED: Final = exists().where(
    *(commitments.c[name] == bindparam(f"of_{name}") for name in ("node", "index", "root"))
)
_OPEN_LATER: Final = (
    update(calls)
    .where(calls.c.node == bindparam("of_node"), calls.c.index == bindparam("of_index"), _COMMITTED)
    .where(calls.c.opens < bindparam("at"))
    .values(opens=bindparam("at"))
)
"""The places of a commitment open when its file comes."""
_BEFORE: Final = (
    select(func.coalesce(func.max(commitments.c.index), -1))
    .where(commitments.c.node == bindparam("node"), commitments.c.hour < bindparam("hour"))
    .scalar_subquery()
)
_ROLLOUTS: Final = select(uploads.c.size).where(uploads.c.node == bindparam("node"), uploads.c.index > _BEFORE)
_EVIDENCE: Final = select(files.c.size).where(
    files.c.kind == "evidence", files.c.holder == bindparam("node"), files.c.expiry > bindparam("second")
)
_UNNAMED: Final = _ROLLOUTS.where(~IS_COMMITTED).union_all(_EVIDENCE).subquery()
_UNNAMED_BYTES: Final = select(func.coalesce(func.sum(_UNNAMED.c.size), 0))
"""Bytes of a node that nothing names; rollouts from the index after its last commitment before an hour on."""


def full(connection: Connection, address: str, key_bytes: float, now: int) -> RefusedError | None:
    """Return why no more is taken of a node, or None: what nothing names of it is more than `key_bytes`.

    `now`: the chain's second.
    """
    given = {"node": address, "hour": (now - UNNAMED_SECONDS) // HOUR_SECONDS, "second": time.time()}
    kept = connection.execute(_UNNAMED_BYTES, given).scalar_one()
    if kept < key_bytes:
        return None
    return problems.no_room(f"{int(kept)} bytes of {address} wait to be named, and no more than {key_bytes:.0f} may")


def refuse_upload(
    caller: Caller, *, index: int, root: str, committed: tallies.CommitmentState | None, next_index: int, roots: int
) -> Exception | None:
    """Return why a new file may not be uploaded for (index, root), or None. Pure.

    committed: what the chain has at this index; next_index: the node's next; roots: uploaded for this index so far.
    """
    member = caller.member
    if member is None or member.role != "worker":
        return problems.not_allowed(f"{caller.address} is no worker of this run", "muster worker join")
    if committed is not None:
        if committed.day is not None:
            return gone_work(f"commitment {index} of {caller.address}", committed.day)
        if committed.root == root:
            return None
        return problems.conflict(f"index {index} is committed to root {committed.root}", f"continue with {next_index}")
    if not member.active:
        return problems.not_allowed(f"{caller.address} is {member.status} and cannot commit", "muster worker status")
    if not next_index <= index < next_index + AHEAD:
        return problems.conflict(f"index {index} is not one of the node's next {AHEAD}, from {next_index} on")
    if roots >= MAX_ROOTS:
        return problems.conflict(f"{roots} roots are uploaded for index {index} already", "commit to one of them")
    return None
