"""A commitment's page: its draws, its verdicts with their meaning, and commands that repeat them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from explorer.commitments import CommitmentView, commitment_view
from muster.constants import TOKEN
from muster.contracts.court import Outcome
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Role
from muster.contracts.runs import Claimed
from muster.environments.registry import default_manifest
from muster.environments.task import ask
from muster.errors import RefusedError
from muster.ledger.database import Database
from muster.protocol.draws import DrawSource, draw_of
from muster.protocol.hashes import hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.reasons import POOLED, REASONS
from muster.protocol.terms import WorkClass
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetDocument, TaskSource
from testbed.runs.recorded_run import CHAIN, HOUR, RUN, RUNS, SampleRun, address, hash_of

CLASSES = (WorkClass(10_000, (8, 16)), WorkClass(20_000, (16, 32)))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> TaskSetDocument:
    """Two parts without authors: draws do not depend on them."""
    manifest, source = default_manifest("sorting"), TaskSource("MIT", "here")
    parts = [
        NewPart(name, manifest, [ask(f"{name} {i}", answer="1") for i in range(count)], weight, [source])
        for name, count, weight in (("short", 5, 2), ("long", 3, 1))
    ]
    return write_task_set(tmp_path_factory.mktemp("tasks") / "set", parts).document


async def opened(url: str, folder: Path, document: TaskSetDocument | None) -> SampleRun:
    run = SampleRun(await Database.open(url, "a test"), folder, document, classes=CLASSES, pay=2 * TOKEN)
    await run.join("wanda", work_class=1)
    for validator in ("vera", "viktor"):
        await run.join(validator, Role.VALIDATOR)
    await run.publish(0, 1)
    for _ in range(3):
        await run.commit("wanda", step=1)
    run.at((HOUR + 1) * 3600)
    return run


@pytest.fixture
async def run(database_url: str, tmp_path: Path, document: TaskSetDocument) -> AsyncIterator[SampleRun]:
    sample = await opened(database_url, tmp_path, document)
    yield sample
    await sample.database.close()


async def view(run: SampleRun, index: int = 0) -> CommitmentView:
    found = await run.database.read(lambda c: commitment_view(c, run.source, address("wanda"), index))
    assert found is not None
    return found


async def test_draws_are_those_of_workers_and_validators(run: SampleRun, document: TaskSetDocument) -> None:
    source = DrawSource(address("wanda"), hash_bytes(hash_of("entropy 0")), 1)
    for index in range(3):
        found = await view(run, index)
        expected = draw_of(source, index, run.terms, chain_id=CHAIN, runs=RUNS, run=RUN).groups
        assert [(line.group, line.task, line.budget) for line in found.groups] == [
            (group, drawn.task, drawn.budget) for group, drawn in enumerate(expected)
        ]
        parts = [document.parts[document.locate(drawn.task)[0]].name for drawn in expected]
        assert [line.part for line in found.groups] == parts
        assert found.draws_from == 0


async def test_without_the_task_set_slots_are_shown_and_no_parts(database_url: str, tmp_path: Path) -> None:
    run = await opened(database_url, tmp_path, None)
    found = await view(run)
    assert len(found.groups) == 4
    assert {line.part for line in found.groups} == {""}
    await run.database.close()


async def test_an_entropy_that_is_not_known_draws_nothing(run: SampleRun) -> None:
    await run.join("late")  # it begins at step 3
    await run.commit("late")
    found = await run.database.read(lambda c: commitment_view(c, run.source, address("late"), 0))
    assert found is not None
    assert (found.draws_from, found.groups) == (None, [])


async def test_view_has_chain_and_file_facts(run: SampleRun) -> None:
    file_hash = await run.upload("wanda", 1)
    assert (await view(run, 1)).file_hash is None, "verdicts say which file it is"
    await run.judge("vera", "wanda", 1, step=1)
    await run.report(2, {}, [file_hash])
    found = await view(run, 1)
    assert (found.node, found.index, found.step, found.hour, found.block) == (address("wanda"), 1, 1, HOUR, 7)
    assert found.root == run.root("wanda", 1)
    assert (found.file_hash, found.used_in, found.left_out) == (file_hash, 2, False)
    assert (found.pay, found.matures_at, found.if_sealed) == (4 * TOKEN, (HOUR + 73) * 3600, (HOUR + 25) * 3600)
    assert (await view(run, 0)).file_hash is None
    with pytest.raises(RefusedError, match="has made no commitment 3"):
        await run.database.read(lambda c: commitment_view(c, run.source, address("wanda"), 3))
    assert found.settled is False
    await run.happen(Claimed, RUN, address("wanda"), 1, 8 * TOKEN)
    assert [(await view(run, index)).settled for index in range(3)] == [True, True, False]


async def test_verdicts_say_what_they_mean(run: SampleRun) -> None:
    await run.name("vera", "Vera")
    pooled = {"measured": 3.4, "threshold": 3.0, "step": 1}
    await run.judge("vera", "wanda", 0, "activation_mismatch", evidence=hash_of("evidence"), **pooled)
    await run.judge("viktor", "wanda", 0, step=1)
    bad, good = (await view(run)).verdicts
    assert bad.model_dump() == {
        "validator": address("vera"),
        "name": "Vera",
        "accepted": False,
        "reason": "activation_mismatch",
        "means": REASONS["activation_mismatch"].means + POOLED,
        "advice": REASONS["activation_mismatch"].advice,
        "position": None,
        "measured": 3.4,
        "threshold": 3.0,
        "evidence": hash_of("evidence"),
        "inspected": 4,
        "received": 1000.0,
    }
    assert (good.accepted, good.means, good.advice, good.name) == (True, "", "", "")


async def test_one_sentence_says_why(run: SampleRun) -> None:
    async def why(index: int = 0) -> str:
        return (await view(run, index)).why

    assert await why() == "Pending: 0 of the 2 validators that must accept it have accepted."
    await run.judge("vera", "wanda", 0)
    assert await why() == "Pending: 1 of the 2 validators that must accept it have accepted."
    await run.judge("viktor", "wanda", 0)
    assert await why() == "Accepted: 2 validators inspected it and found nothing wrong."

    await run.name("vera", "Vera")
    await run.judge("vera", "wanda", 1, "wrong_reward", position=3)
    assert await why(1) == "Rejected by Vera: a reward is not what the task's verifier gives (row 3)."
    await run.open_case(5, "vera", "wanda", 1, step=1)
    await run.open_case(6, "viktor", "wanda", 2, kind_of("wrong_draw"), step=1)
    assert await why(2) == "Pending: case 6 about it is open."
    await run.resolve(5, "wanda", Outcome.GUILTY)
    await run.convict("wanda", voided=(0, 2))
    assert await why(0) == "Void: no validator found it wrong, but its node was convicted, and all of its work is void."
    assert (await view(run, 0)).settled is True


async def test_a_verdict_of_a_convict_is_not_the_reason(run: SampleRun) -> None:
    await run.name("viktor", "Viktor")
    await run.judge("vera", "wanda", 0, "wrong_draw")
    await run.judge("viktor", "wanda", 0, "wrong_reward")
    assert (await view(run)).reason == "wrong_draw"
    await run.convict("vera")
    found = await view(run)
    assert (found.reason, found.why) == (
        "wrong_reward",
        "Rejected by Viktor: a reward is not what the task's verifier gives.",
    )
    await run.judge("vera", "wanda", 1, "data_missing")
    assert (await view(run, 1)).why == "Pending: storage does not have its file, so it cannot be inspected."
    await run.judge("viktor", "wanda", 1)
    assert (await view(run, 1)).why == "Pending: 1 of the 2 validators that must accept it have accepted."


async def test_cases_and_proofs_are_listed_with_commands_to_repeat_them(run: SampleRun) -> None:
    await run.open_case(5, "vera", "wanda", 1, step=1)
    await run.open_case(6, "viktor", "wanda", 0, kind_of("wrong_draw"), step=1)
    flaw = (address("wanda"), 1, address("viktor"), 2, Flaw.WRONG_SEED)
    transaction = await run.happen(Refuted, *flaw)
    found = await view(run, 1)
    assert [case.id for case in found.cases] == [5]
    assert [proof.model_dump() for proof in found.proofs] == [
        {
            "node": address("wanda"),
            "name": "",
            "index": 1,
            "prover": address("viktor"),
            "prover_name": "",
            "kind": "wrong_draw",
            "flaw": "wrong_seed",
            "position": 2,
            "block": run.blocks,
            "transaction": transaction,
        }
    ]
    assert [line.command for line in found.commands] == [
        f"muster worker why 1 --node {address('wanda')} --url https://run.example",
        f"muster validator verify {address('wanda')}:1 --url https://run.example",
        "muster slash verify 5 --url https://run.example",
    ]
    # An open case freezes the pay of every commitment of its node.
    assert found.matures_at == (HOUR + 1 + 72 + 24) * 3600 + 7200
    assert (await view(run, 2)).matures_at == found.matures_at
