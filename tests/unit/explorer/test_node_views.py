"""A node's page: its commitments, their verdicts and files, and its money as on chain."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from explorer.nodes import MAX_COMMITMENTS, CommitmentPage, NodeView, commitment_page, node_view
from muster.constants import TOKEN
from muster.contracts.court import Outcome
from muster.contracts.registry import Fined, Retired, Role, Withdrawn
from muster.contracts.runs import Claimed, HourSealed
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.ledger.statements import upsert
from muster.ledger.tables import machines
from testbed.runs.recorded_run import HOUR, RUN, SampleRun, address

PAY = 2 * TOKEN


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[SampleRun]:
    """Two workers and two validators; Wanda made five commitments in three hours."""
    database = await Database.open(database_url, "a test")
    sample = SampleRun(database, tmp_path)
    await sample.join("wanda")
    await sample.join("willi")
    for validator in ("vera", "viktor"):
        await sample.join(validator, Role.VALIDATOR)
    await sample.publish(0, 1)
    for hour in (HOUR, HOUR, HOUR + 1, HOUR + 3, HOUR + 3):
        await sample.commit("wanda", hour=hour)
    await sample.name("wanda", "Wanda's A100")
    sample.at((HOUR + 4) * 3600)
    yield sample
    await database.close()


async def view(run: SampleRun, name: str = "wanda") -> NodeView:
    facts = await run.queries.facts()
    found = await run.database.read(lambda connection: node_view(connection, run.source, address(name), facts))
    assert found is not None
    return found


async def page(run: SampleRun, before: int | None = None, limit: int = 2) -> CommitmentPage:
    found = await run.database.read(
        lambda connection: commitment_page(connection, run.source, address("wanda"), before, limit)
    )
    assert found is not None
    return found


async def test_a_node_is_identified_as_on_chain(run: SampleRun) -> None:
    found = await view(run)
    assert (found.address, found.name, found.role, found.status) == (
        address("wanda"),
        "Wanda's A100",
        "worker",
        "active",
    )
    assert found.operator == address("wanda's operator")
    assert (found.since, found.transaction) == (HOUR * 3600 + 60, "0x" + (1).to_bytes(32).hex())
    assert found.block_time == (HOUR + 4) * 3600
    assert found.blocked == ""
    assert (await view(run, "vera")).role == "validator"
    facts = await run.queries.facts()
    with pytest.raises(RefusedError, match="is no node"):
        await run.database.read(lambda c: node_view(c, run.source, address("unknown"), facts))


async def test_view_and_node_report_give_the_same_blocker(run: SampleRun) -> None:
    run.queries.chain = replace(run.queries.chain, min_validators=2)
    assert (await view(run)).blocked == ""
    await run.join("late")
    assert (await view(run, "late")).blocked.startswith("begins at step 3, the second after joining")
    run.queries.chain = replace(run.queries.chain, min_validators=3)
    few = "the run has 2 validators and takes no work before 3"
    for name, blocked in (("wanda", few), ("late", few), ("vera", "")):
        report = await run.queries.node_report(address(name))
        assert report is not None
        assert (await view(run, name)).blocked == report.blocked == blocked


async def test_view_counts_outcomes_of_work(run: SampleRun) -> None:
    await run.accept("wanda", 0)
    await run.judge("vera", "wanda", 1, "wrong_reward", measured=0.5, threshold=0.25)
    await run.judge("viktor", "wanda", 2)
    found = await view(run)
    counts = {"total": 5, "accepted": 1, "pending": 3, "rejected": 1, "void": 0}
    assert found.commitments.model_dump() == counts
    assert found.rejected == {"wrong_reward": 1}
    assert [(hour.hour, hour.counts.total, hour.counts.rejected) for hour in found.hours] == [
        (HOUR, 2, 1),
        (HOUR + 1, 1, 0),
        (HOUR + 3, 2, 0),
    ]
    assert found.uptime == 3 / 5  # hours 0, 1 and 3 of 0 to 4
    assert [line.index for line in found.latest] == [4, 3, 2, 1, 0]
    given = (await view(run, "vera")).given
    assert [(line.node, line.name, line.index, line.accepted, line.reason) for line in given] == [
        (address("wanda"), "Wanda's A100", 1, False, "wrong_reward"),
        (address("wanda"), "Wanda's A100", 0, True, None),
    ]
    assert (await view(run, "vera")).inspections == 2


async def test_commitments_come_in_pages_newest_first(run: SampleRun) -> None:
    assert [(await page(run)).before, [line.index for line in (await page(run)).commitments]] == [3, [4, 3]]
    assert [line.index for line in (await page(run, 3)).commitments] == [2, 1]
    last = await page(run, 1)
    assert ([line.index for line in last.commitments], last.before) == ([0], None)
    assert (await page(run, 0)).commitments == []
    assert (await page(run, None, MAX_COMMITMENTS)).before is None
    exactly = await page(run, None, 5)
    assert (len(exactly.commitments), exactly.before) == (5, None)


async def test_a_commitment_has_its_file_its_verdicts_and_its_use(run: SampleRun) -> None:
    used = await run.upload("wanda", 0)
    left = await run.upload("wanda", 1)
    await run.accept("wanda", 0)
    await run.judge("vera", "wanda", 1, "sampling_mismatch", measured=9.5, threshold=8.0)
    await run.judge("viktor", "wanda", 1, "data_missing")
    await run.report(1, {}, [used], [left])
    pending, *_, second, first = (await page(run, None, 5)).commitments
    assert first.model_dump() == {
        "index": 0,
        "step": 0,
        "hour": HOUR,
        "status": "accepted",
        "reason": None,
        "accepts": 2,
        "rejections": 0,
        "measured": None,
        "threshold": None,
        "file_hash": used,
        "used_in": 1,
        "left_out": False,
    }
    assert (second.status, second.reason, second.rejections) == ("rejected", "sampling_mismatch", 2)
    assert (second.measured, second.threshold, second.used_in, second.left_out) == (9.5, 8.0, None, True)
    assert (pending.file_hash, pending.used_in, pending.left_out) == (None, None, False)


async def test_money_follows_from_seals_and_claims(run: SampleRun) -> None:
    """The rules are those of test_hours; the view sums them."""
    await run.judge("vera", "wanda", 1, "wrong_reward")
    money = (await view(run)).money
    assert (money.pay, money.maturing, money.claimable, money.claimed) == (PAY, 5 * PAY, 0, 0)
    assert money.day == 4 * PAY, "all but the refuted one"
    assert money.stake == 100 * TOKEN
    assert [hour.state for hour in money.waiting] == ["maturing"] * 3

    run.at((HOUR + 1 + 24) * 3600, sealed_through=HOUR + 1)
    money = (await view(run)).money
    assert (money.claimable, money.maturing) == (2 * PAY, 3 * PAY), "without a conviction the refuted one is still paid"
    assert [(hour.hour, hour.state, hour.pay) for hour in money.waiting] == [
        (HOUR, "claimable", 2 * PAY),
        (HOUR + 1, "maturing", PAY),
        (HOUR + 3, "maturing", 2 * PAY),
    ]
    assert money.day == 2 * PAY, "of the hour that has begun and the 23 before it"

    claimed = await run.happen(Claimed, RUN, address("wanda"), 1, 2 * PAY)
    found = await view(run)
    assert (found.money.claimable, found.money.claimed, found.money.maturing) == (0, 2 * PAY, 3 * PAY)
    assert [hour.state for hour in found.hours] == ["settled", "maturing", "maturing"]
    assert [payment.model_dump() for payment in found.money.payments] == [
        {"kind": "claim", "amount": 2 * PAY, "time": HOUR * 3600 + 60 * run.blocks, "transaction": claimed}
    ]


async def test_an_open_case_freezes_and_a_conviction_voids(run: SampleRun) -> None:
    await run.open_case(1, "vera", "wanda", 2)
    frozen = await view(run)
    assert [hour.state for hour in frozen.hours] == ["frozen"] * 3
    assert frozen.hours[0].matures_at == (HOUR + 1 + 72 + 24) * 3600 + 7200
    assert [case.id for case in frozen.cases] == [case.id for case in (await view(run, "vera")).cases] == [1]
    assert (await view(run, "willi")).cases == []

    await run.happen(Claimed, RUN, address("wanda"), 0, PAY)
    await run.resolve(1, "wanda", Outcome.GUILTY)
    await run.convict("wanda", voided=(1, 4))
    found = await view(run)
    assert found.status == "jailed"
    assert [(hour.state, hour.pay) for hour in found.hours] == [("void", PAY), ("void", PAY), ("void", 2 * PAY)]
    money = found.money
    assert (money.claimed, money.voided, money.slashed, money.stake) == (PAY, 4 * PAY, 50 * TOKEN, 50 * TOKEN)
    assert (money.maturing, money.claimable, money.waiting) == (0, 0, [])
    assert [payment.kind for payment in money.payments] == ["void", "slash", "claim"]

    await run.happen(Withdrawn, address("wanda"), address("wanda's operator"), 50 * TOKEN)
    found = await view(run)
    assert (found.status, found.money.stake) == ("jailed", 0)


async def test_withdrawn_stake_is_no_longer_locked(run: SampleRun) -> None:
    await run.happen(Retired, address("willi"), RUN, 0)
    assert (await view(run, "willi")).money.stake == 100 * TOKEN
    await run.happen(Withdrawn, address("willi"), address("willi's operator"), 100 * TOKEN)
    found = await view(run, "willi")
    assert (found.status, found.money.stake) == ("withdrawn", 0)


async def test_a_validators_money_seals_and_fines(run: SampleRun) -> None:
    await run.happen(HourSealed, RUN, HOUR, address("vera"), bytes(32), bytes(32))
    await run.happen(Fined, address("vera"), RUN, 3 * TOKEN)
    found = await view(run, "vera")
    assert found.seals == 1
    assert (found.money.pay, found.money.fined, found.money.stake) == (0, 3 * TOKEN, 197 * TOKEN)
    assert found.hours == []


async def test_machine_report_counts_for_a_limited_time(run: SampleRun) -> None:
    row = {"node": address("wanda"), "device": "H100", "devices": 8, "tokens_per_second": 900.5, "gas_hours": 30.5}
    for received, speed in ((time.time(), 900.5), (time.time() - 3600, 0.0)):
        await run.database.write(lambda c, at=received: upsert(c, machines, {**row, "received": at}))
        found = await view(run)
        assert (found.device, found.devices, found.tokens_per_second) == ("H100", 8, speed)
        assert found.gas_hours == (30.5 if speed else None)
