"""Gas of a node per hour: of a worker by its last commitments, of a validator by its transactions in a day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import update

from muster.chain.gas import COMMITMENT_GAS, TRANSACTION_GAS
from muster.contracts.registry import Role
from muster.ledger.database import Database
from muster.ledger.gas_pace import LAST_COMMITMENTS, hourly_gas
from muster.ledger.statements import insert_once
from muster.ledger.tables import counts, uploads, votes
from testbed.runs.recorded_run import HOUR, ServedSample, address

NOW = (HOUR + 100) * 3600


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[ServedSample]:
    sample = ServedSample(await Database.open(database_url, "a test"), tmp_path, commitments_per_hour=60)
    await sample.join("wanda")
    for validator in ("vera", "viktor"):
        await sample.join(validator, Role.VALIDATOR)
    await sample.publish(0)
    yield sample
    await sample.database.close()


async def gas_of(run: ServedSample, name: str) -> float:
    return await run.database.read(lambda c: hourly_gas(c, address(name), run.terms, NOW))


async def test_a_worker_s_pace_is_that_of_its_last_twenty_commitments(run: ServedSample) -> None:
    assert await gas_of(run, "wanda") == 0, "it has no uploads yet"
    for index in range(LAST_COMMITMENTS + 5):
        await run.commit("wanda")
        await run.record_upload(address("wanda"), index, run.root("wanda", index), run.root("wanda", index))
        minutes = index * 10 if index >= 5 else 0  # the first five within a moment
        slow = update(uploads).where(uploads.c.index == index).values(received=60.0 * minutes)
        await run.database.write(lambda c, slow=slow: c.execute(slow))
    assert await gas_of(run, "wanda") == pytest.approx(6 * COMMITMENT_GAS)
    await run.database.write(lambda c: c.execute(update(uploads).values(received=uploads.c.received / 1_000)))
    assert await gas_of(run, "wanda") == 60 * COMMITMENT_GAS, "the terms limit the pace"


async def test_a_validator_s_pace_is_of_its_seals_votes_and_accusations_in_a_day(run: ServedSample) -> None:
    assert await gas_of(run, "vera") == 0
    run.at(NOW)
    await run.commit("wanda")
    await run.open_case(1, "vera", "wanda", 0)
    for hour in (HOUR + 70, HOUR + 76, HOUR + 90, HOUR + 99):  # the first is more than a day ago
        seal = {"kind": "seal", "subject": address("vera"), "number": hour, "status": "", "reason": "", "count": 1}
        await run.database.write(lambda c, seal=seal: insert_once(c, counts, seal))
    vote = {"case_id": 1, "judge": address("viktor"), "absent": False}
    await run.database.write(lambda c: insert_once(c, votes, vote))
    assert await gas_of(run, "vera") == (3 + 1) / 24 * TRANSACTION_GAS
    assert await gas_of(run, "viktor") == 2 / 24 * TRANSACTION_GAS
