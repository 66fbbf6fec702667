"""Cases on the page: charge, phase, votes and outcome, by the rules of the court."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from explorer.courtroom import CasePage, CaseView, case_page, case_view
from muster.constants import TOKEN
from muster.contracts.court import AbsenceReported, Outcome
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Role
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.protocol.kinds import NO_ROW, kind_of
from muster.protocol.reasons import REASONS
from testbed.runs.recorded_run import HOUR, SampleRun, address, hash_of

OPENED = (HOUR + 1) * 3600
COMMIT_ENDS, REVEAL_ENDS = OPENED + 3600, OPENED + 7200
JUDGES = ("viktor", "vito", "viola")


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[SampleRun]:
    sample = SampleRun(await Database.open(database_url, "a test"), tmp_path)
    await sample.join("wanda")
    for validator in ("vera", *JUDGES):
        await sample.join(validator, Role.VALIDATOR)
    await sample.publish(0)
    for _ in range(3):
        await sample.commit("wanda")
    await sample.name("wanda", "Wanda")
    await sample.name("vera", "Vera")
    sample.at(OPENED)
    yield sample
    await sample.database.close()


async def view(run: SampleRun, number: int = 1) -> CaseView:
    found = await run.database.read(lambda connection: case_view(connection, run.source, number))
    assert found is not None
    return found


async def page(run: SampleRun, before: int | None = None, limit: int = 50) -> CasePage:
    def read(connection: Connection) -> CasePage:
        return case_page(connection, run.source, before, limit)

    return await run.database.read(read)


async def test_charge_has_the_challengers_measurement(run: SampleRun) -> None:
    await run.judge("vera", "wanda", 1, "sampling_mismatch", position=2, measured=9.5, threshold=8.0)
    await run.open_case(1, "vera", "wanda", 1, kind_of("sampling_mismatch"))
    found = await view(run)
    assert found.charge == (
        "Vera says of commitment 1 of Wanda, made at step 0: the tokens are not those that this model and this seed "
        "produce. Row 2 shows it."
    )
    assert (found.measured, found.threshold, found.position) == (9.5, 8.0, 3)
    assert found.root == run.root("wanda", 1)
    assert found.case.model_dump() == {
        "id": 1,
        "node": address("wanda"),
        "name": "Wanda",
        "index": 1,
        "step": 0,
        "kind": "sampling_mismatch",
        "challenger": address("vera"),
        "challenger_name": "Vera",
        "outcome": "open",
        "jury": 3,
        "commits": 0,
        "reveals": 0,
        "guilty_votes": 0,
        "opened_at": OPENED,
        "commit_ends": COMMIT_ENDS,
        "reveal_ends": REVEAL_ENDS,
        "evidence": hash_of("evidence"),
        "opened_in": "0x" + run.blocks.to_bytes(32).hex(),
        "resolved_in": None,
    }
    assert found.commands == [
        "muster slash verify 1 --url https://run.example",
        "muster slash show 1 --url https://run.example",
        f"muster validator verify {address('wanda')}:1 --url https://run.example",
    ]
    with pytest.raises(RefusedError, match="has no case 2"):
        await run.database.read(lambda connection: case_view(connection, run.source, 2))


@pytest.mark.parametrize("kind", [len(REASONS), 255])
async def test_a_case_of_a_kind_without_a_name_is_shown_by_its_number(run: SampleRun, kind: int) -> None:
    await run.open_case(1, "vera", "wanda", 1, kind)
    found = await view(run)
    assert (found.case.kind, found.case.outcome) == (f"unknown_{kind}", "open")
    assert found.charge == (
        "Vera says of commitment 1 of Wanda, made at step 0: what this version does not know: judges vote not guilty."
    )
    assert [case.kind for case in (await page(run)).cases] == [f"unknown_{kind}"]


async def test_without_a_verdict_the_charge_names_no_row(run: SampleRun) -> None:
    await run.open_case(1, "viola", "wanda", 0, kind_of("wrong_root"), row=NO_ROW)
    found = await view(run)
    assert found.position is None
    assert found.charge == (
        f"{address('viola')} says of commitment 0 of Wanda, made at step 0: the rows do not hash to the root on chain."
    )
    assert (found.measured, found.threshold) == (None, None)


async def test_the_state_follows_the_courts_phases(run: SampleRun) -> None:
    await run.open_case(1, "vera", "wanda", 0)

    async def state(now: int) -> str:
        run.at(now)
        return (await view(run)).state

    commits_until = "Judges look at the evidence and commit to votes until 2027-01-15 10:00 UTC"
    assert await state(OPENED) == f"{commits_until}: 0 of 3 have."
    await run.vote(1, "viktor")
    await run.vote(1, "vito")
    assert await state(COMMIT_ENDS - 1) == f"{commits_until}: 2 of 3 have."
    reveals_until = "Judges reveal their votes until 2027-01-15 11:00 UTC"
    assert await state(COMMIT_ENDS) == f"{reveals_until}: 0 of 2 have."
    await run.vote(1, "viktor", guilty=True)
    assert await state(COMMIT_ENDS) == f"{reveals_until}: 1 of 2 have."
    over = "Voting is over: any account may have the court end the case, and validators do."
    assert await state(REVEAL_ENDS) == over
    await run.vote(1, "vito", guilty=False)
    assert await state(COMMIT_ENDS) == over, "every judge that committed has revealed"
    row = (await view(run)).case
    assert (row.commits, row.reveals, row.guilty_votes) == (2, 2, 1)


async def test_a_whole_jury_need_not_wait_except_about_missing_data(run: SampleRun) -> None:
    await run.open_case(1, "vera", "wanda", 0)
    await run.open_case(2, "vera", "wanda", 1, kind_of("data_missing"))
    for number in (1, 2):
        for judge in JUDGES:
            await run.vote(number, judge)
    assert (await view(run, 1)).state.startswith("Judges reveal their votes until 2027-01-15 11:00 UTC: 0 of 3")
    assert (await view(run, 2)).state == (
        "Judges look at the evidence and commit to votes until 2027-01-15 10:00 UTC: 3 of 3 have. "
        "The storage's receipt ends it at once."
    )


async def test_conviction_shows_slash_bounty_and_votes(run: SampleRun) -> None:
    await run.open_case(1, "vera", "wanda", 0)
    for judge in JUDGES:
        await run.vote(1, judge)
    for judge, guilty in zip(JUDGES, (True, True, False), strict=True):
        await run.vote(1, judge, guilty)
    ended = await run.resolve(1, "wanda", Outcome.GUILTY)
    await run.convict("wanda", voided=(0, 2))
    found = await view(run)
    assert (found.slashed, found.bounty) == (50 * TOKEN, 10 * TOKEN)
    assert found.state == (
        "Guilty by 2 of 3 votes: Wanda lost its unsettled pay and 50 MUST, of which 10 MUST went to the challenger."
    )
    assert found.case.resolved_in == ended
    assert {(vote.judge, vote.guilty) for vote in found.votes} == {
        (address("viktor"), True),
        (address("vito"), True),
        (address("viola"), False),
    }
    assert all(vote.committed_in and vote.revealed_in and not vote.absent for vote in found.votes)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.NOT_GUILTY, "Not guilty: 0 of 3 judges voted guilty. The challenger lost its fee."),
        (Outcome.NO_QUORUM, "No verdict: 1 of 3 judges revealed a vote, and more than half must."),
        (Outcome.MOOT, "Moot: the accused was convicted in another case before this one ended."),
        (Outcome.DISMISSED, "Dismissed: by the storage's receipt the file was there before the commitment."),
        (Outcome.CURED, "The file came late, when it was missed: Wanda pays the judges and lost its unsettled pay."),
    ],
)
async def test_every_other_end_has_its_sentence(run: SampleRun, outcome: Outcome, state: str) -> None:
    await run.open_case(1, "vera", "wanda", 0)
    await run.resolve(1, "wanda", outcome, guilty=0, reveals=1)
    found = await view(run)
    assert (found.state, found.slashed, found.bounty) == (state, 0, 0)


async def test_an_absent_judge_is_shown(run: SampleRun) -> None:
    await run.open_case(1, "vera", "wanda", 0)
    await run.vote(1, "viktor")
    await run.happen(AbsenceReported, 1, address("viktor"), address("vera"), False)
    assert [(vote.judge, vote.guilty, vote.absent) for vote in (await view(run)).votes] == [
        (address("viktor"), None, True)
    ]


async def test_cases_come_newest_first_with_counts_over_all(run: SampleRun) -> None:
    for number, kind in enumerate((kind_of("wrong_draw"), kind_of("wrong_prompt"), kind_of("wrong_reward")), 1):
        await run.open_case(number, "vera", "wanda", 0, kind)
    await run.resolve(1, "wanda", Outcome.NOT_GUILTY, guilty=0)
    await run.happen(Refuted, address("wanda"), 1, address("vito"), 5, Flaw.OUT_OF_BOUNDS)
    found = await page(run, limit=2)
    assert ([case.id for case in found.cases], found.before) == ([3, 2], 2)
    assert (found.total, found.outcomes, found.block_time) == (3, {"open": 2, "not_guilty": 1}, OPENED)
    (proof,) = found.proofs
    assert (proof.node, proof.index, proof.kind, proof.flaw) == (address("wanda"), 1, "out_of_bounds", "out_of_bounds")
    rest = await page(run, before=2, limit=2)
    assert ([case.id for case in rest.cases], rest.before) == ([1], None)
