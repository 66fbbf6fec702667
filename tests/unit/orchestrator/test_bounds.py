"""Limits on one member's use of an orchestrator: slow uploads, unnamed evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from starlette.requests import Request

from muster.constants import UNNAMED_SECONDS
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.queries import NodeRecord
from muster.ledger.run_facts import ChainState
from muster.ledger.statements import insert_once
from muster.ledger.tables import commitments, uploads
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.messages import Upload
from muster.protocol.receipts import upload_target
from muster.settings.schema import OrchestratorSettings
from orchestrator.auth import Caller, chunks
from orchestrator.log import Log
from orchestrator.uploads import Uploads, full
from orchestrator.verdicts import MAX_UNNAMED, Verdicts, mark_named
from testbed.samples.commitments import KEYS, NODE, STORAGE, rules
from testbed.samples.messages import receipt_of, request_of, verdict_of

ANNE, BERT = ("0x" + digit * 40 for digit in "12")
WHERE = Domain(31337, "0x" + "22" * 20)
NOTHING = "0x" + "00" * 32


def caller(address: str, body: bytes = b"x", role: str = "validator") -> Caller:
    return Caller(
        address, request_of(content_hash(body)), NodeRecord(address, address, role, "active"), is_trainer=False
    )


def verdicts_of(database: Database, folder: Path, **changes: Any) -> Verdicts:
    queries: Any = SimpleNamespace(chain=ChainState(now=9))
    unused: Any = None
    url = f"file:{folder}"
    documents = Log(WHERE, database, queries, storage_url=url)
    return Verdicts(WHERE, queries, database, documents, unused, storage_url=url, **changes)


@pytest.fixture
def verdicts(tmp_path: Path, database: Database) -> Verdicts:
    return verdicts_of(database, tmp_path)


async def test_evidence_that_no_verdict_names_is_bounded(verdicts: Verdicts, database: Database) -> None:
    for i in range(MAX_UNNAMED):
        await verdicts.expect_evidence(caller(ANNE, b"%d" % i))
    await verdicts.expect_evidence(caller(ANNE, b"0"))  # again, because the answer was lost
    with pytest.raises(RefusedError, match="no verdict names 256 bundles") as refused:
        await verdicts.expect_evidence(caller(ANNE, b"one more"))
    assert refused.value.status == 429
    await verdicts.expect_evidence(caller(BERT, b"one more"))
    named = verdict_of(node=ANNE, validator=ANNE, evidence=content_hash(b"0"))
    await database.write(lambda connection: mark_named(connection, named))
    await verdicts.expect_evidence(caller(ANNE, b"one more"))


async def test_evidence_that_no_verdict_names_counts_for_a_day(
    verdicts: Verdicts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(MAX_UNNAMED):
        await verdicts.expect_evidence(caller(ANNE, b"%d" % i))
    tomorrow = time.time() + UNNAMED_SECONDS
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    await verdicts.expect_evidence(caller(ANNE, b"one more"))


async def test_what_is_kept_of_one_node_before_it_is_named_is_bounded(database: Database, tmp_path: Path) -> None:
    """Rollouts and evidence together; the same bundle again is no more of it, and what is named is none."""
    verdicts = verdicts_of(database, tmp_path, key_bytes=100)
    row = {"node": ANNE, "index": 0, "root": NOTHING, "file_hash": NOTHING, "size": 60, "document": "", "received": 0}
    await database.write(lambda connection: insert_once(connection, uploads, row))
    await verdicts.expect_evidence(caller(ANNE, b"fits"), 39)
    for size in (1, 0):
        with pytest.raises(RefusedError, match=f"bytes of {ANNE} wait to be named, and no more than 100") as refused:
            await verdicts.expect_evidence(caller(ANNE, b"more"), 1 + size)
        assert (refused.value.status, refused.value.title) == (413, "No room")
    await verdicts.expect_evidence(caller(ANNE, b"fits"), 39)
    await verdicts.expect_evidence(caller(BERT, b"more"), 99)
    assert await database.read(lambda connection: full(connection, BERT, 100, 9)) is None
    assert str(await database.read(lambda connection: full(connection, BERT, 99, 9))) == (
        f"99 bytes of {BERT} wait to be named, and no more than 99 may"
    )
    named = verdict_of(node=ANNE, validator=BERT, evidence=content_hash(b"more"))
    await database.write(lambda connection: mark_named(connection, named))
    assert await database.read(lambda connection: full(connection, BERT, 1, 9)) is None
    made = {"node": ANNE, "index": 0, "root": NOTHING, "step": 0, "hour": 0, "block": 1, "status": "pending"}
    await database.write(lambda connection: insert_once(connection, commitments, made))
    assert await database.read(lambda connection: full(connection, ANNE, 40, 9)) is None
    assert await database.read(lambda connection: full(connection, ANNE, 39, 9)) is not None


async def test_a_node_uploads_one_file_at_a_time(tmp_path: Path) -> None:
    unused: Any = None
    queries: Any = SimpleNamespace(
        terms=rules().terms, keys_now=KEYS.at(9), chain=ChainState(now=9, read_at=time.monotonic())
    )
    settings = OrchestratorSettings(storage_url=f"file:{tmp_path}", state_dir=tmp_path)
    uploads = Uploads(WHERE, STORAGE, queries, unused, settings)
    uploads.spool.mkdir()

    class Slow:
        """A request whose body never comes."""

        headers: ClassVar[dict[str, str]] = {}
        started = asyncio.Event()

        async def stream(self) -> AsyncIterator[bytes]:
            self.started.set()
            await asyncio.sleep(3600)
            yield b""

    def take(address: str) -> asyncio.Task:
        request: Any = Slow()
        return asyncio.create_task(uploads.take(request, caller(address, role="worker"), NOTHING, 0, NOTHING))

    first = take(ANNE)
    await Slow.started.wait()
    with pytest.raises(RefusedError, match="another upload of"):
        await take(ANNE)
    Slow.started.clear()
    other = take(BERT)
    await Slow.started.wait()
    Slow.started.clear()
    first.cancel()
    await asyncio.wait([first])
    again = take(ANNE)
    await Slow.started.wait()
    for task in (other, again):
        task.cancel()
    await asyncio.wait([other, again])


async def test_a_file_that_went_is_kept_again_before_its_receipt_is_given_again(
    database: Database, tmp_path: Path
) -> None:
    """An older database was restored, or filled: it names a file that storage had to keep for a day only."""
    queries: Any = SimpleNamespace(terms=rules().terms, keys_now=KEYS.at(9), chain=ChainState(now=9), run=1)
    settings = OrchestratorSettings(storage_url=f"file:{tmp_path}", state_dir=tmp_path)
    kept, name = Uploads(WHERE, STORAGE, queries, database, settings), content_hash(b"x")
    kept.spool.mkdir()
    queries.chain = ChainState(now=9, read_at=time.monotonic())
    known = Upload(receipt=receipt_of(node=ANNE, index=0, root=NOTHING, file_hash=name), request=request_of(name))
    assert await kept.record(known, 0.0)
    path, query = upload_target(name, 1, 0, NOTHING)
    sender = caller(ANNE, role="worker")
    sender = replace(sender, request=sender.request.model_copy(update={"path": path, "query": query}))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    request = Request({"type": "http", "method": "PUT", "headers": []}, receive)
    assert await kept.receive(request, sender, name, 1, 0, NOTHING) == known.receipt
    assert await kept.files.get(name) == b"x"


def upload(announced: int, receive: Callable[[], Awaitable[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """Return a body whose header announces so many bytes; its limit is what they need plus 0.1 s."""
    headers = [(b"content-length", str(announced).encode())]
    request = Request({"type": "http", "method": "PUT", "headers": headers}, receive)
    return chunks(request, limit=1 << 20, seconds=0.1)


async def test_a_body_has_a_second_more_for_every_64_kib_that_are_announced() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(RefusedError, match=r"the body did not arrive in 0\.35 s") as refused:
        await anext(upload(16 * 1024, receive))
    assert refused.value.status == 408


async def test_a_slow_connection_s_body_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.auth.SLOWEST_BYTES_PER_SECOND", 1)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.3)
        return {"type": "http.request", "body": bytes(60), "more_body": False}

    assert b"".join([part async for part in upload(60, receive)]) == bytes(60)


async def test_there_is_no_receipt_while_the_chain_cannot_be_read(tmp_path: Path) -> None:
    """Its time would be too early, and a late file would count as punctual."""
    unused: Any = None
    queries: Any = SimpleNamespace(terms=rules().terms, chain=ChainState(now=9, read_at=time.monotonic() - 31))
    settings = OrchestratorSettings(storage_url=f"file:{tmp_path}", state_dir=tmp_path)
    uploads = Uploads(WHERE, unused, queries, unused, settings)
    with pytest.raises(RefusedError, match="the chain cannot be read, so a receipt could not say when") as refused:
        await uploads.take(unused, caller(ANNE, role="worker"), NOTHING, 0, NOTHING)
    assert refused.value.status == 429


async def test_there_is_no_receipt_by_a_key_that_was_changed(tmp_path: Path) -> None:
    unused: Any = None
    chain = ChainState(now=9, read_at=time.monotonic())
    queries: Any = SimpleNamespace(terms=rules().terms, keys_now=KEYS.at(9), chain=chain)
    settings = OrchestratorSettings(storage_url=f"file:{tmp_path}", state_dir=tmp_path)
    uploads = Uploads(WHERE, NODE, queries, unused, settings)
    with pytest.raises(RefusedError, match="the run's storage key has changed") as refused:
        await uploads.take(unused, caller(ANNE, role="worker"), NOTHING, 0, NOTHING)
    assert refused.value.status == 503
