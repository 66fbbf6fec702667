"""Nonces: each is new once until it expires, and each signer has a bounded number. Bodies that a proxy buffers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from sqlalchemy import func, insert, select
from starlette.requests import Request

from muster.constants import MAX_FILE_BYTES, SLOWEST_BYTES_PER_SECOND
from muster.ledger import tables
from muster.ledger.database import Database
from orchestrator import auth
from orchestrator.auth import SWEPT_ROWS, Nonces

ABOUT = "run 1 of 0xab on chain 31337"
WORKER, VALIDATOR = ("0x" + digit * 40 for digit in "ab")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, ABOUT)
    yield opened
    await opened.close()


async def count(database: Database) -> int:
    query = select(func.count()).select_from(tables.nonces)
    return await database.read(lambda connection: connection.execute(query).scalar_one())


async def remember(kept: Nonces, signer: str, nonce: int, expiry: float, now: float) -> str:
    return await kept.remember(signer, f"0x{nonce:064x}", int(expiry), now)


async def test_nonces_are_new_once_until_they_expire(database: Database) -> None:
    kept, now = Nonces(database), time.time()
    expiry = int(now) + 30
    assert await remember(kept, WORKER, 1, expiry, now) == "new"
    assert await remember(kept, WORKER, 1, expiry, now) == "replayed"
    assert await remember(kept, VALIDATOR, 1, expiry, now) == "new"
    assert await remember(kept, WORKER, 1, expiry, expiry - 0.1) == "replayed"
    # An expired request is refused anyway, so the table need not remember its nonce.
    assert await remember(kept, WORKER, 2, expiry + 90, expiry + 60) == "new"
    assert await count(database) == 1


async def test_replay_is_found_by_another_process_and_after_a_restart(database: Database, database_url: str) -> None:
    now = time.time()
    assert await remember(Nonces(database), WORKER, 1, now + 30, now) == "new"
    other = await Database.open(database_url, ABOUT)
    try:
        assert await remember(Nonces(other), WORKER, 1, now + 30, now + 20) == "replayed"
    finally:
        await other.close()


async def test_live_nonces_of_one_signer_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_NONCES", 3)
    kept, now = Nonces(database), time.time()
    for i in range(3):
        assert await remember(kept, WORKER, i, now + 30, now) == "new"
        assert await remember(kept, WORKER, 0, now + 30, now) in ("replayed", "flooded"), "a replay counts for nothing"
    assert await remember(kept, WORKER, 9, now + 30, now) == "flooded"
    assert await remember(kept, VALIDATOR, 9, now + 30, now) == "new"
    assert await remember(kept, WORKER, 9, now + 99, now + 31) == "new"


async def test_expired_nonces_go_in_pieces_now_and_then(database: Database) -> None:
    kept, now = Nonces(database), time.time()
    rows = [{"signer": WORKER, "nonce": f"0x{i:064x}", "expiry": int(now) + 1} for i in range(SWEPT_ROWS + 500)]
    assert await remember(kept, VALIDATOR, 0, now + 50, now) == "new"
    await database.write(lambda c: c.execute(insert(tables.nonces), rows))
    for later, left in ((4, 2502), (6, 503), (6, 4), (7, 5)):
        assert await remember(kept, VALIDATOR, left, now + 60, now + later) == "new"
        assert await count(database) == left


def buffering(method: str, said: str, *, proxied: bool) -> float:
    scope = {"type": "http", "method": method, "headers": [(b"x-buffering-seconds", said.encode())]}
    return auth.buffering_seconds(Request(scope | {"state": {"connection": SimpleNamespace(proxied=proxied)}}))


def test_proxy_may_buffer_an_upload_for_as_long_as_a_slow_one_takes() -> None:
    assert buffering("PUT", "41.250", proxied=True) == 41.25
    assert buffering("PUT", "999999", proxied=True) == MAX_FILE_BYTES / SLOWEST_BYTES_PER_SECOND
    assert buffering("PUT", "41.250", proxied=False) == 0
    assert buffering("POST", "41.250", proxied=True) == 0
    assert [buffering("PUT", said, proxied=True) for said in ("", "-1", "nan", "1e9", "٣")] == [0] * 5
