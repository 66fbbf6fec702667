"""Nonces: each is new once until it expires, and each signer has a bounded number."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select

from orchestrator import auth, tables
from orchestrator.database import Database

WORKER, VALIDATOR = ("0x" + digit * 40 for digit in "ab")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, "run 1 of 0xab on chain 31337")
    yield opened
    await opened.close()


async def count(database: Database) -> int:
    query = select(func.count()).select_from(tables.nonces)
    return await database.read(lambda connection: connection.execute(query).scalar_one())


async def remember(database: Database, signer: str, nonce: int, expiry: float, now: float) -> str:
    return await database.write(lambda c: auth.remember_nonce(c, signer, f"0x{nonce:064x}", int(expiry), now))


async def test_nonces_are_new_once_until_they_expire(database: Database) -> None:
    now = time.time()
    expiry = int(now) + 30
    assert await remember(database, WORKER, 1, expiry, now) == "new"
    assert await remember(database, WORKER, 1, expiry, now) == "replayed"
    assert await remember(database, VALIDATOR, 1, expiry, now) == "new"
    assert await remember(database, WORKER, 1, expiry, expiry - 0.1) == "replayed"
    # An expired request is refused anyway, so the table need not remember its nonce.
    assert await remember(database, WORKER, 2, expiry + 90, expiry + 60) == "new"
    assert await count(database) == 1


async def test_live_nonces_of_one_signer_are_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_NONCES", 3)
    now = time.time()
    for i in range(3):
        assert await remember(database, WORKER, i, now + 30, now) == "new"
    assert await remember(database, WORKER, 9, now + 30, now) == "flooded"
    assert await remember(database, VALIDATOR, 9, now + 30, now) == "new"
    assert await remember(database, WORKER, 9, now + 99, now + 31) == "new"
