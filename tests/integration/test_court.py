"""The court through the Chain facade: what leaves alone prove, what a seal answers for, what a receipt dismisses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from muster.chain.client import Chain, event_of, vote_hash
from muster.chain.cursor import EventCursor
from muster.constants import HOUR_SECONDS
from muster.contracts import court, refutations, registry, runs
from muster.contracts.codec import Call
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.refutations import Flaw, Refuted, VouchRefuted
from muster.contracts.registry import Status
from muster.contracts.runs import Paused
from muster.errors import TRANSIENT, RevertError
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hex_hash
from muster.protocol.kinds import kind_of
from muster.protocol.merkle import LeafTree
from muster.rollouts.leaves import Leaf, leaf_hash
from muster.settings.schema import Settings
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork
from testbed.chain.anvil import Anvil
from testbed.chain.contracts import Deployment, deploy_on, funded_on
from testbed.runs.run_fixture import RunFixture
from testbed.samples.messages import receipt_of
from validator.journal import ValidatorJournal
from validator.sealing import vouch_leaf, vouch_tree
from worker.context import WorkerContext
from worker.decisions import ConvictedError, waiting_reason
from worker.defender import Defender
from worker.journal import WorkJournal

WORKERS = ("honest", "long", "beyond", "twice", "vouched", "missing", "defended", "caught")
LENGTH = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Scene:
    """A run with one published step, and a stranger without a stake."""

    run_fixture: RunFixture
    stranger: Chain

    async def leaves(self, name: str, index: int = 0) -> list[Leaf]:
        """What an honest worker commits to."""
        chain, run = self.stranger, self.run_fixture.run
        terms, draw = await chain.terms(run), await chain.draw(run, self.address(name), index)
        groups = [draw.groups[p // terms.group_size] for p in range(terms.positions)]
        return [
            Leaf(p, g.task, draw.seeds[p], g.budget, LENGTH, 0, bytes(32), bytes(32), bytes([p]) * 32)
            for p, g in enumerate(groups)
        ]

    async def commit(self, name: str, leaves: list[Leaf], index: int = 0) -> LeafTree:
        tree = LeafTree.from_hashes([leaf_hash(leaf) for leaf in leaves])
        await self.run_fixture.commit(name, index, hex_hash(tree.root))
        return tree

    def address(self, name: str) -> str:
        return self.run_fixture.key(name).address

    async def is_jailed(self, name: str) -> bool:
        return (await self.stranger.call(registry.node(self.address(name)))).status is Status.JAILED


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    async def build() -> RunFixture:
        folder = tmp_path_factory.mktemp("court")
        built = await RunFixture.build(folder, deployment.settings, seed="court", workers=WORKERS)
        await built.publish(0)
        return built

    return asyncio.run(build())


@pytest.fixture
async def scene(run_fixture: RunFixture) -> AsyncIterator[Scene]:
    async with run_fixture.chain("stranger") as chain:
        yield Scene(run_fixture, chain)


async def test_stranger_proves_overlong_completion(scene: Scene) -> None:
    leaves, node, chain = await scene.leaves("long"), scene.address("long"), scene.stranger
    limit = (await chain.terms(scene.run_fixture.run)).max_completion_tokens
    leaves[5] = replace(leaves[5], length=limit + 1)
    tree = await scene.commit("long", leaves)
    target = court.Target(node, 0, 0, tree.root)
    with pytest.raises(RevertError, match=r"nothing is wrong with row 4 of commitment 0"):
        await chain.send(refutations.prove(target, [refutations.Opening(leaves[4], tree.proof(4))]))
    receipt = await chain.send(refutations.prove(target, [refutations.Opening(leaves[5], tree.proof(5))]))
    refuted = event_of(receipt, Refuted)
    assert (refuted.flaw, refuted.position) == (Flaw.OUT_OF_BOUNDS, 5)
    assert await scene.is_jailed("long")


async def test_stranger_proves_leaf_beyond_last_position(scene: Scene) -> None:
    leaves, node, chain = await scene.leaves("beyond"), scene.address("beyond"), scene.stranger
    leaves[7] = replace(leaves[7], position=8)
    tree = await scene.commit("beyond", leaves)
    target = court.Target(node, 0, 0, tree.root)
    with pytest.raises(RevertError, match="nothing is wrong with row 6 of commitment 0"):
        await chain.send(refutations.prove(target, [refutations.Opening(leaves[6], tree.proof(6))]))
    receipt = await chain.send(refutations.prove(target, [refutations.Opening(leaves[7], tree.proof(7))]))
    assert event_of(receipt, Refuted).flaw is Flaw.POSITION_BEYOND
    assert await scene.is_jailed("beyond")


async def test_stranger_proves_two_leaves_at_one_position(scene: Scene) -> None:
    leaves, node, chain = await scene.leaves("twice"), scene.address("twice"), scene.stranger
    leaves[3] = replace(leaves[2], row_hash=bytes(32))
    tree = await scene.commit("twice", leaves)
    target = court.Target(node, 0, 0, tree.root)
    shown = [refutations.Opening(leaf, tree.proof(i)) for i, leaf in enumerate(leaves)]
    with pytest.raises(RevertError, match="the leaves are of two positions, 1 and 2"):
        await chain.send(refutations.prove(target, [shown[1], shown[2]]))
    with pytest.raises(RevertError, match="at one place of the tree"):
        await chain.send(refutations.prove(target, [shown[2], shown[2]]))
    receipt = await chain.send(refutations.prove(target, [shown[2], shown[3]]))
    assert event_of(receipt, Refuted).flaw is Flaw.POSITION_TWICE
    assert await scene.is_jailed("twice")


async def test_a_storage_receipt_dismisses_a_case_about_missing_data(scene: Scene) -> None:
    run_fixture, node = scene.run_fixture, scene.address("missing")
    root = hashlib.sha256(b"missing").digest()
    await run_fixture.commit("missing", 0, hex_hash(root))
    async with run_fixture.chain("v1") as challenger:
        opened = await challenger.send(
            court.open_case(court.Target(node, 0, 0, root), kind_of("data_missing"), 0, bytes(32))
        )
    case_id = event_of(opened, CaseOpened).case_id
    committed_at = (await scene.stranger.call(runs.commitment(node, 0))).committed_at
    work = {"run": run_fixture.run, "node": node, "root": hex_hash(root)}
    unsigned = receipt_of(**work, stored_at=committed_at + 1)
    storage = run_fixture.key("storage")
    with pytest.raises(
        RevertError, match=f"at second {committed_at + 1}, after the commitment at second {committed_at}"
    ):
        await scene.stranger.dismiss(case_id, 0, sign_message(storage, run_fixture.domain, unsigned))
    unsigned = unsigned.model_copy(update={"stored_at": committed_at})
    forged = sign_message(run_fixture.key("missing"), run_fixture.domain, unsigned)
    with pytest.raises(RevertError, match="not by the run's storage key"):
        await scene.stranger.dismiss(case_id, 0, forged)
    ended = await scene.stranger.dismiss(case_id, 0, sign_message(storage, run_fixture.domain, unsigned))
    assert event_of(ended, CaseResolved).outcome is Outcome.DISMISSED
    assert (await scene.stranger.call(runs.work(node))).open_cases == 0
    with pytest.raises(RevertError, match=f"case {case_id} has ended: dismissed"):
        await scene.stranger.send(court.resolve(case_id))


async def test_a_worker_shows_its_receipt_by_itself(scene: Scene, tmp_path: Path) -> None:
    run_fixture, node = scene.run_fixture, scene.address("defended")
    root = hashlib.sha256(b"defended").digest()
    await run_fixture.commit("defended", 0, hex_hash(root))
    journal = WorkJournal(tmp_path, node)
    entry = journal.save(0, 0, bytes(32), root, b"file")
    async with run_fixture.chain("v1") as accuser:
        for kind in (kind_of("data_missing"), kind_of("wrong_reward")):
            await accuser.send(court.open_case(court.Target(node, 0, 0, root), kind, 0, bytes(32)))
    last = await scene.stranger.call(court.case_count())
    async with run_fixture.chain("defended") as chain:
        terms, settings = await chain.terms(run_fixture.run), Settings.model_validate({"run": run_fixture.run})
        defender = Defender(WorkerContext(settings, chain, None, terms, CPU_FP32, journal))  # type: ignore[arg-type]
        await defender.dismiss_open()
        assert (await chain.call(runs.work(node))).open_cases == 2, "nothing to show yet"
        work = {"run": run_fixture.run, "node": node, "root": hex_hash(root)}
        committed_at = (await chain.call(runs.commitment(node, 0))).committed_at
        unsigned = receipt_of(**work, file_hash=entry.file_hash, size=4, stored_at=committed_at)
        journal.uploaded(0, sign_message(run_fixture.key("missing"), run_fixture.domain, unsigned))
        with pytest.raises(TRANSIENT):  # which the loop of `watch` logs and tries again, beside those that work
            await defender.dismiss_open()
        assert (await chain.call(runs.work(node))).open_cases == 2
        journal.uploaded(0, sign_message(run_fixture.key("storage"), run_fixture.domain, unsigned))
        await defender.dismiss_open()
        assert (await chain.call(court.case_of(last - 1))).outcome is Outcome.DISMISSED
        assert (await chain.call(court.case_of(last))).outcome is Outcome.OPEN, "a receipt answers nothing else"
        await defender.dismiss_open()
    journal.close()


async def test_a_worker_convicted_while_it_reads_its_state_says_so(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_fixture, node = scene.run_fixture, scene.address("caught")
    leaves = await scene.leaves("caught")
    leaves[7] = replace(leaves[7], position=8)
    tree = await scene.commit("caught", leaves)
    journal = WorkJournal(tmp_path, node)
    async with run_fixture.chain("caught") as chain:
        terms, settings = await chain.terms(run_fixture.run), Settings.model_validate({"run": run_fixture.run})
        context = WorkerContext(settings, chain, None, terms, CPU_FP32, journal)  # type: ignore[arg-type]
        read = chain.call_all

        async def convicted_after_the_first(calls: Sequence[Call[T]]) -> list[T]:
            found = await read(calls)
            if not await scene.is_jailed("caught"):
                shown = refutations.Opening(leaves[7], tree.proof(7))
                await scene.stranger.send(refutations.prove(court.Target(node, 0, 0, tree.root), [shown]))
            return found

        monkeypatch.setattr(chain, "call_all", convicted_after_the_first)
        facts = await context.facts()
        assert facts.node.status is Status.JAILED
        with pytest.raises(ConvictedError, match="this worker is jailed"):
            waiting_reason(facts)
    journal.close()


async def test_a_validator_answers_for_what_its_seal_vouched_for(scene: Scene) -> None:
    run_fixture, chain = scene.run_fixture, scene.stranger
    wrong = await scene.leaves("vouched")
    wrong[2] = replace(wrong[2], budget=wrong[2].budget + 1)
    tree = await scene.commit("vouched", wrong)
    good = await scene.commit("honest", await scene.leaves("honest"))
    hour = (await chain.head()).timestamp // HOUR_SECONDS
    roots = {"vouched": tree.root, "honest": good.root}
    accepted = [
        CommittedWork(run_fixture.run, 0, scene.address(name), 0, root, hour, 0) for name, root in roots.items()
    ]
    anchors = {0: (await chain.checkpoint(run_fixture.run, 0)).anchor}
    vouched = vouch_tree(accepted, anchors)
    async with run_fixture.local_chain() as dev:
        await dev.advance(HOUR_SECONDS)
    async with run_fixture.chain("v4") as sealer:
        await run_fixture.seal(sealer, "v4", hour, vouched.root)

    target = court.Target(scene.address("vouched"), 0, 0, tree.root)
    assert await chain.call(refutations.vouch_leaf(target, anchors[0])) == vouch_leaf(accepted[0], anchors[0])
    sealer_node, shown = scene.address("v4"), [refutations.Opening(wrong[2], tree.proof(2))]
    honest = court.Target(scene.address("honest"), 0, 0, good.root)
    right = [refutations.Opening((await scene.leaves("honest"))[2], good.proof(2))]
    with pytest.raises(RevertError, match="nothing is wrong with row 2"):
        await chain.send(refutations.prove_vouched(sealer_node, hour, vouched.proof(1), honest, right))
    with pytest.raises(RevertError, match="did not vouch for"):
        await chain.send(refutations.prove_vouched(scene.address("v1"), hour, vouched.proof(0), target, shown))
    receipt = await chain.send(refutations.prove_vouched(sealer_node, hour, vouched.proof(0), target, shown))
    event = event_of(receipt, VouchRefuted)
    assert (event.validator, event.hour, event.node, event.index) == (sealer_node, hour, target.node, 0)
    assert event.flaw is Flaw.WRONG_BUDGET
    assert await scene.is_jailed("v4")
    assert not await scene.is_jailed("vouched")
    assert (await chain.solvency()).solvent


async def test_only_the_guardian_pauses(scene: Scene) -> None:
    with pytest.raises(RevertError, match=f"{scene.address('stranger')} is not the guardian"):
        await scene.stranger.send(runs.pause())
    assert await scene.stranger.call(runs.paused_until()) == 0
    assert await scene.stranger.call(runs.guardian()) == scene.run_fixture.book.guardian


def test_a_pause_stops_commitments(start_anvil: Callable[..., Anvil], tmp_path: Path) -> None:
    """Use a separate chain, since a pause affects all runs. The settings name the guardian."""
    anvil = start_anvil()
    (key,) = funded_on(anvil, 1)
    settings = deploy_on(anvil, tmp_path, guardian=key.address).settings
    root = "0x" + "ab" * 32

    async def story() -> None:
        run_fixture = await RunFixture.build(tmp_path, settings, seed="pause", workers=("honest",))
        await run_fixture.publish(0)
        async with await Chain.connect(settings, key) as guardian:
            paused = event_of(await guardian.send(runs.pause()), Paused)
            assert paused.until == await guardian.call(runs.paused_until())
            with pytest.raises(RevertError, match="new commitments are paused until"):
                await run_fixture.commit("honest", 0, root)
            await guardian.send(runs.unpause())
            with pytest.raises(RevertError, match="commitments can be paused again from"):
                await guardian.send(runs.pause())
        await run_fixture.commit("honest", 0, root)

    asyncio.run(story())


def test_a_reorg_moves_no_vote_to_another_case(start_anvil: Callable[..., Anvil], tmp_path: Path) -> None:
    """Numbers count openings: after a reorg the one under which a judge looked at a cheat is an honest node's."""
    settings = deploy_on(start_anvil(), tmp_path).settings
    roots = {name: hashlib.sha256(name.encode()).digest() for name in ("cheat", "honest")}

    async def story() -> None:
        run_fixture = await RunFixture.build(tmp_path, settings, seed="reorg", workers=tuple(roots))
        await run_fixture.publish(0)
        for name, root in roots.items():
            await run_fixture.commit(name, 0, hex_hash(root))
        journal = ValidatorJournal(tmp_path / "v2", "v2", run_fixture.run, run_fixture.key("v2").address)

        async def accuse(challenger: str, name: str) -> None:
            async with run_fixture.chain(challenger) as chain:
                node = run_fixture.key(name).address
                await chain.send(
                    court.open_case(court.Target(node, 0, 0, roots[name]), kind_of("sampling_mismatch"), 3, bytes(32))
                )

        async with run_fixture.chain("v2") as judge, run_fixture.local_chain() as dev:
            cursor = EventCursor(judge, tmp_path / "place.json", [CaseOpened, CaseResolved], run=run_fixture.run)

            async def cases() -> dict[int, tuple[str, str]]:
                """By number: whom it is about, and how far this judge is with it."""
                journal.record(await cursor.poll(), 0.0)
                await cursor.ack()
                return {case.case_id: (case.commitment.node, case.ballot) for case in journal.cases()}

            cheat, honest = run_fixture.key("cheat").address, run_fixture.key("honest").address
            await accuse("v1", "cheat")
            assert await cases() == {1: (cheat, "none")}
            (seen,) = journal.cases()
            journal.seal_ballot(seen, True, bytes(32))
            await dev.reorg(1, drop=True)
            await accuse("v3", "honest")
            await accuse("v1", "cheat")
            assert await cases() == {1: (honest, "none"), 2: (cheat, "none")}

            secret = vote_hash(1, judge.signer.address, True, bytes(32))
            with pytest.raises(RevertError, match=f"case 1 is about .* and not about 0x{seen.charge.hex()}"):
                await judge.send(court.commit_vote(1, seen.charge, secret))
            moved = journal.cases()[1]
            assert moved.charge == seen.charge == (await judge.call(court.case_of(2))).charge
            await judge.send(court.commit_vote(2, moved.charge, vote_hash(2, judge.signer.address, True, bytes(32))))
        journal.close()

    asyncio.run(story())
