"""Private tests on a real chain: a wrong grade costs its validator, a withheld master keeps the owner from money."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from eth_utils.crypto import keccak

from muster.chain.client import Chain, charge_of, event_of, vote_hash
from muster.constants import TOKEN
from muster.contracts import court, masters, registry, runs
from muster.contracts.court import CaseOpened, CaseResolved, GradeAccused, Outcome
from muster.contracts.masters import MasterRevealed
from muster.contracts.registry import Status
from muster.contracts.run_terms import Series
from muster.errors import RevertError
from muster.protocol.draws import chain_preimages
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.kinds import kind_of
from muster.protocol.masters import check_grade, check_master, epochs_begun, grades_commitment
from muster.protocol.messages import Grade
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import RunFixture
from testbed.samples.messages import a_verdict, grade_of

EPOCHS, EPOCH_STEPS = 2, 3
MASTERS = chain_preimages(hashlib.sha256(b"masters").digest(), EPOCHS)
ROOT = hashlib.sha256(b"graded").digest()
SALT = b"s" * 32


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    sealed = {"grade_tip": keccak(MASTERS[0]), "grade_epochs": EPOCHS, "grade_epoch_steps": EPOCH_STEPS}

    async def build() -> RunFixture:
        folder = tmp_path_factory.mktemp("grades")
        built = await RunFixture.build(folder, deployment.settings, seed="grades", workers=("w",), **sealed)
        await built.publish(0)
        await built.commit("w", 0, hex_hash(ROOT))
        return built

    return asyncio.run(build())


def statement(run_fixture: RunFixture, validator: str, **changes: object) -> Grade:
    """What a validator signs about the one commitment of the run."""
    fields = {"run": run_fixture.run, "node": run_fixture.key("w").address, "root": hex_hash(ROOT)}
    fields |= {"validator": run_fixture.key(validator).address, "salt": hex_hash(SALT)}
    grade = grade_of(**{**fields, "grades": hex_hash(keccak(b"wrong grades")), **changes})
    return sign_message(run_fixture.key(validator), run_fixture.domain, grade)


async def accuse(chain: Chain, grade: Grade) -> tuple[CaseOpened, GradeAccused]:
    """Open a case about a statement, and return what the court says of it."""
    target = court.Target(grade.node, grade.index, grade.step, hash_bytes(grade.root))
    said = (hash_bytes(grade.grades), hash_bytes(grade.salt), bytes.fromhex(grade.signature[2:]))
    receipt = await chain.send(court.open_grade_case(target, grade.validator, *said, keccak(b"evidence")))
    return event_of(receipt, CaseOpened), event_of(receipt, GradeAccused)


async def test_a_wrong_grade_convicts_the_validator_that_signed_it(run_fixture: RunFixture) -> None:
    # 1. The grade is v4's own, and opens what it committed to in its verdict.
    grade = statement(run_fixture, "v4")
    committed = grades_commitment(grade.grades, grade.salt, grade.validator)
    about = grade.model_dump(include={"run", "step", "node", "index", "root", "validator"})
    check_grade(run_fixture.domain, grade, a_verdict(**about, grades=committed))

    async with run_fixture.chain("v1") as challenger:
        # 2. The court refuses grades that v4 did not sign.
        for forged in (
            grade.model_copy(update={"grades": hex_hash(keccak(b"other grades"))}),
            grade.model_copy(update={"signature": statement(run_fixture, "v2").signature}),
        ):
            with pytest.raises(RevertError, match=r"the grades are signed by 0x.* and not by the validator"):
                await accuse(challenger, forged)
        with pytest.raises(RevertError, match="a wrong grade is a validator's"):
            await challenger.send(
                court.open_case(court.Target(grade.node, 0, 0, ROOT), kind_of("wrong_grade"), 0, bytes(32))
            )

        # 3. The court accepts its own statement, and both sides compute the same charge.
        opened, accused = await accuse(challenger, grade)
        assert (opened.node, opened.kind, opened.jury) == (grade.validator, kind_of("wrong_grade"), 2)
        assert (accused.case_id, accused.node) == (opened.case_id, grade.node)
        charge = charge_of(opened, accused)
        assert charge == (await challenger.call(court.case_of(opened.case_id))).charge
        assert charge != charge_of(opened)

    # 4. The two other validators judge.
    for name in ("v2", "v3"):
        async with run_fixture.chain(name) as judge:
            hidden = vote_hash(opened.case_id, run_fixture.key(name).address, True, SALT)
            await judge.send(court.commit_vote(opened.case_id, charge, hidden))
    for name in ("v2", "v3"):
        async with run_fixture.chain(name) as judge:
            await judge.send(court.reveal_vote(opened.case_id, True, SALT))
    async with run_fixture.chain("stranger") as chain:
        ended = await chain.send(court.resolve(opened.case_id))
        assert event_of(ended, CaseResolved).outcome is Outcome.GUILTY
        grader, worker = await chain.nodes([grade.validator, grade.node])
        terms = await chain.terms(run_fixture.run)
        assert grader.status is Status.JAILED
        assert grader.lock == terms.validator_stake // 2
        assert (worker.status, worker.lock) == (Status.ACTIVE, terms.worker_stake)
        assert (await chain.call(runs.run_state(run_fixture.run))).reserved == terms.pay
        with pytest.raises(RevertError, match="was withdrawn or slashed already"):
            async with run_fixture.chain("v2") as late:
                await accuse(late, grade)
        held = await chain.call(registry.free_balance(run_fixture.key("operator of v1").address))
        assert held == 400 * TOKEN - terms.validator_stake + terms.validator_stake // 2 * terms.bounty_bps // 10_000


async def test_the_owner_gets_nothing_before_it_shows_its_masters(run_fixture: RunFixture) -> None:
    run = run_fixture.run
    async with run_fixture.local_chain() as dev, run_fixture.chain("owner") as owner:
        terms = await owner.terms(run)
        await owner.send(runs.announce_withdrawal(run))
        # A validator was convicted, so the run has three and the notice takes a week more.
        await dev.advance(await owner.call(runs.noticed_at(run)) - (await owner.head()).timestamp)
        steps = (await owner.call(runs.run_state(run))).steps
        assert epochs_begun(terms.grade_series, steps) == 1
        with pytest.raises(RevertError, match=f"run {run} has not revealed the master of epoch 1") as withheld:
            await owner.send(runs.withdraw_escrow(run, 10 * TOKEN))
        assert withheld.value.name == "MasterWithheld"
        with pytest.raises(RevertError, match=r"not the master of epoch 1 .* it hashes to"):
            await owner.send(masters.reveal_master(run, Series.GRADES, MASTERS[1]))

        # Any holder of the master may publish it.
        check_master(terms.grade_series, 1, MASTERS[0])
        async with run_fixture.chain("stranger") as stranger:
            shown = event_of(await stranger.send(masters.reveal_master(run, Series.GRADES, MASTERS[0])), MasterRevealed)
        assert (shown.run, shown.epoch, shown.master) == (run, 1, MASTERS[0])
        assert await owner.call(masters.masters(run, Series.GRADES)) == (1, MASTERS[0])
        await owner.send(runs.withdraw_escrow(run, 10 * TOKEN))
        balance = (await owner.call(runs.run_state(run))).balance
        assert balance == 4_990 * TOKEN
