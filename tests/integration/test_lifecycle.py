"""A run's whole life through the Chain facade: work is paid after its window, a cheater is convicted and is not."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from muster.chain.anvil import LocalChain
from muster.chain.client import Chain, charge_of, event_of, vote_hash
from muster.chain.cursor import EventCursor
from muster.chain.keys import Signer
from muster.constants import HOUR_SECONDS
from muster.contracts import court, refutations, registry, run_terms, runs, token
from muster.contracts.court import BallotState, CaseOpened, CaseResolved, Collected, Outcome
from muster.contracts.refutations import Refuted
from muster.contracts.registry import Convicted, Role, Status
from muster.contracts.run_terms import RunCreated
from muster.contracts.runs import CheckpointPublished, Claimed, HourSealed, SealedThrough, Voided, WorkCommitted
from muster.errors import ChainError, ConfigError, RevertError
from muster.protocol.kinds import kind_of, reason_of_flaw
from muster.rollouts.leaves import Leaf, LeafTree, leaf_hash
from testbed.chain.contracts import Deployment
from testbed.runs.run_fixture import VALIDATORS, RunFixture, approve_and_fund

TOKEN = 10**18
EVIDENCE = b"\x0e" * 32
WORKERS = ("honest", "cheater", "suspect", "forger")


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class OpenChains:
    """The chain client of each party, by name, opened once."""

    def __init__(self, run_fixture: RunFixture) -> None:
        self.run_fixture = run_fixture
        self._stack = AsyncExitStack()
        self._chains: dict[str, Chain] = {}

    async def __aenter__(self) -> OpenChains:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stack.aclose()

    async def chain(self, name: str) -> Chain:
        if name not in self._chains:
            self._chains[name] = await self._stack.enter_async_context(self.run_fixture.chain(name))
        return self._chains[name]

    def address(self, name: str) -> str:
        return self.run_fixture.key(name).address

    async def advance(self, seconds: int) -> int:
        return await (await LocalChain.open((await self.chain("owner")).web3)).advance(seconds)


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("lifecycle")
    return asyncio.run(RunFixture.build(folder, deployment.settings, seed="lifecycle", workers=WORKERS))


@pytest.fixture
async def chains(run_fixture: RunFixture) -> AsyncIterator[OpenChains]:
    async with OpenChains(run_fixture) as everybody:
        yield everybody


async def publish(chains: OpenChains) -> CheckpointPublished:
    """The next step."""
    chain = await chains.chain("trainer")
    run = chains.run_fixture.run
    step = (await chain.call(runs.run_state(run))).steps
    await chains.advance(1)
    receipt = await chain.send(runs.publish_checkpoint(run, step, digest(f"manifest {step}"), digest(f"batch {step}")))
    return event_of(receipt, CheckpointPublished)


async def commit(chains: OpenChains, name: str, index: int, root: bytes, step: int) -> WorkCommitted:
    chain = await chains.chain(name)
    anchor = (await chain.checkpoint(chains.run_fixture.run, step)).anchor
    return event_of(
        await chain.send(runs.commit_work(chains.run_fixture.run, step, anchor, index, root)), WorkCommitted
    )


async def seal(chains: OpenChains, hour: int) -> SealedThrough:
    """Two validators seal an hour; the second moves the watermark."""
    for name in ("v1", "v2"):
        receipt = await chains.run_fixture.seal(await chains.chain(name), name, hour, digest(name))
        assert event_of(receipt, HourSealed).validator == chains.address(name)
    return event_of(receipt, SealedThrough)


async def test_work_is_committed_sealed_and_paid_after_its_window(chains: OpenChains, tmp_path: Path) -> None:
    run, worker = chains.run_fixture.run, await chains.chain("honest")
    node, operator = chains.address("honest"), chains.address("operator of honest")
    terms = await worker.terms(run)
    assert terms is await worker.terms(run)
    assert await worker.validators(run) == [chains.address(name) for name in VALIDATORS]
    steps = (await worker.call(runs.run_state(run))).steps
    with pytest.raises(ChainError, match=f"step {steps} of run {run} is not published"):
        await worker.checkpoint(run, steps)

    step = (published := await publish(chains)).step
    checkpoint = await worker.latest_checkpoint(run)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.anchor) == (step, published.anchor) == (steps, published.anchor)
    assert checkpoint.manifest_root == digest(f"manifest {step}")

    events = [await commit(chains, "honest", index, digest(f"root {index}"), step) for index in range(3)]
    work = await worker.call(runs.work(node))
    assert (work.next, work.settled, work.pay, work.run) == (3, 0, terms.pay_of(0), run)
    assert await worker.call(runs.is_committed(node, 2, step, digest("root 2")))
    assert not await worker.call(runs.is_committed(node, 2, step, digest("another root")))
    assert (await worker.call(runs.run_state(run))).reserved == 3 * terms.pay
    assert (await worker.call(runs.commitment(node, 0))).committed_at // HOUR_SECONDS == events[0].hour

    with pytest.raises(RevertError, match="still open to challenges") as caught:
        await worker.send(runs.claim(node, 2))
    assert caught.value.name == "WindowOpen"
    await chains.advance(HOUR_SECONDS)
    assert (await seal(chains, events[-1].hour)).hour == events[-1].hour
    await chains.advance(25 * HOUR_SECONDS)
    assert await worker.call(runs.claimable(node)) == (2, 3 * terms.pay)
    assert await worker.call(runs.matures_at(node, 2)) <= (await worker.head()).timestamp

    before = await worker.call(token.balance_of(operator))
    paid = event_of(await worker.send(runs.claim(node, 2)), Claimed)
    assert (paid.through, paid.paid) == (2, 3 * terms.pay)
    assert await worker.call(token.balance_of(operator)) == before + 3 * terms.pay
    assert await worker.call(runs.claimable(node)) == (0, 0)
    solvency = await worker.solvency()
    assert solvency.solvent
    assert solvency.runs_tokens == solvency.runs_books

    cursor = EventCursor(worker, tmp_path / "place.json", [WorkCommitted, Claimed], run=run)
    assert [*await cursor.poll()] == [*events, paid]
    others = EventCursor(worker, tmp_path / "others.json", [WorkCommitted, Claimed], run=run + 1_000)
    assert len(await others.poll()) == 0


async def accuse(chains: OpenChains, name: str) -> CaseOpened:
    """A commitment of this worker, and v1's case about it."""
    step = (await publish(chains)).step
    root = digest(f"root of {name}")
    await commit(chains, name, 0, root, step)
    challenger = await chains.chain("v1")
    receipt = await challenger.send(
        court.open_case(court.Target(chains.address(name), 0, step, root), kind_of("activation_mismatch"), 5, EVIDENCE)
    )
    return event_of(receipt, CaseOpened)


async def test_a_jury_convicts_and_the_cheater_s_pay_returns_to_the_escrow(chains: OpenChains) -> None:
    run, cheater = chains.run_fixture.run, chains.address("cheater")
    v1 = await chains.chain("v1")
    reserved_before = (await v1.call(runs.run_state(run))).reserved
    free_before = await v1.call(registry.free_balance(chains.address("operator of v1")))
    opened = await accuse(chains, "cheater")
    case_id = opened.case_id
    assert (opened.kind, opened.position, opened.evidence_hash) == (kind_of("activation_mismatch"), 5, EVIDENCE)
    assert opened.jury == 3
    assert not await v1.call(court.is_judge(case_id, chains.address("v1")))

    jury = {name: digest(f"salt of {name}") for name in ("v2", "v3", "v4")}
    for name, salt in jury.items():
        judge = await chains.chain(name)
        secret = vote_hash(case_id, chains.address(name), True, salt)
        assert secret == await judge.call(court.vote_hash(case_id, chains.address(name), True, salt))
        await judge.send(court.commit_vote(case_id, charge_of(opened), secret))
    assert (await v1.call(court.ballot(case_id, chains.address("v2")))).state is BallotState.COMMITTED
    v2 = await chains.chain("v2")
    with pytest.raises(RevertError, match="this vote and salt are not what") as caught:
        await v2.send(court.reveal_vote(case_id, False, jury["v2"]))
    assert caught.value.name == "WrongVote"
    for name, salt in jury.items():
        await (await chains.chain(name)).send(court.reveal_vote(case_id, True, salt))

    assert await v1.call(court.is_resolvable(case_id))
    receipt = await v1.send(court.resolve(case_id))
    assert event_of(receipt, CaseResolved).outcome is Outcome.GUILTY
    convicted, voided = event_of(receipt, Convicted), event_of(receipt, Voided)
    assert (convicted.node, convicted.slashed, convicted.bounty) == (cheater, 50 * TOKEN, 10 * TOKEN)
    assert (voided.from_, voided.through, voided.amount) == (0, 0, 2 * TOKEN)
    assert (await v1.call(court.case_of(case_id))).outcome is Outcome.GUILTY
    node = await v1.call(registry.node(cheater))
    assert (node.status, node.lock) == (Status.JAILED, 50 * TOKEN)
    assert (await v1.call(runs.run_state(run))).reserved == reserved_before
    assert (await v1.call(runs.run_info(run))).kept == 2 * TOKEN
    assert await v1.call(registry.free_balance(chains.address("operator of v1"))) == free_before + 10 * TOKEN + 2
    assert await v1.call(court.collectable(case_id, chains.address("v2"))) == 8 * TOKEN + 2 * TOKEN // 3
    await chains.advance(30 * HOUR_SECONDS)
    assert await v1.call(runs.claimable(cheater)) == (0, 0)
    assert (await v1.solvency()).solvent
    with pytest.raises(RevertError, match=f"case {case_id} has ended: guilty"):
        await v1.send(court.resolve(case_id))


async def test_a_silent_jury_loses_its_deposits_and_case_stays_open_until_then(chains: OpenChains) -> None:
    opened = await accuse(chains, "suspect")
    case_id = opened.case_id
    v1, v2 = await chains.chain("v1"), await chains.chain("v2")
    salt = digest("salt")
    secret = vote_hash(case_id, chains.address("v2"), False, salt)
    with pytest.raises(RevertError, match=f"case {case_id} is about .* a reorg gave its number to another"):
        await v2.send(court.commit_vote(case_id, bytes(32), secret))
    await v2.send(court.commit_vote(case_id, charge_of(opened), secret))
    with pytest.raises(RevertError, match="cannot be resolved before"):
        await v1.send(court.resolve(case_id))
    await chains.advance(HOUR_SECONDS)
    await v2.send(court.reveal_vote(case_id, False, salt))
    await chains.advance(HOUR_SECONDS)
    assert event_of(await v1.send(court.resolve(case_id)), CaseResolved).outcome is Outcome.NO_QUORUM
    assert await v1.call(court.collectable(case_id, chains.address("v2"))) == 10 * TOKEN
    assert event_of(await v1.send(court.collect(case_id, chains.address("v2"))), Collected).amount == 10 * TOKEN


async def test_other_node_proves_wrong_draw(chains: OpenChains) -> None:
    run, chain = chains.run_fixture.run, await chains.chain("honest")
    terms = await chain.terms(run)
    published = await publish(chains)
    step, node = published.step, chains.address("forger")
    draw = await chain.draw(run, node, 0)
    leaves = [
        Leaf(p, group.task, draw.seeds[p], group.budget, 3, 0, bytes(32), bytes(32), bytes(32))
        for p in range(terms.positions)
        for group in [draw.groups[p // terms.group_size]]
    ]
    wrong = Leaf(2, leaves[2].task, leaves[2].seed ^ 1, leaves[2].budget, 3, 0, bytes(32), bytes(32), bytes(32))
    tree = LeafTree.from_hashes([leaf_hash(leaf) for leaf in [*leaves[:2], wrong, *leaves[3:]]])
    await commit(chains, "forger", 0, tree.root, step)
    target = court.Target(node, 0, step, tree.root)
    with pytest.raises(RevertError, match="nothing is wrong with row 1 of commitment 0"):
        await chain.send(refutations.prove(target, [refutations.Opening(leaves[1], tree.proof(1))]))
    with pytest.raises(RevertError, match="is not under the root"):
        await chain.send(refutations.prove(target, [refutations.Opening(wrong, tree.proof(1))]))
    receipt = await chain.send(refutations.prove(target, [refutations.Opening(wrong, tree.proof(2))]))
    refuted = event_of(receipt, Refuted)
    found = (refuted.node, refuted.index, refuted.position, reason_of_flaw(refuted.flaw))
    assert found == (node, 0, 2, "wrong_draw")
    assert refuted.prover == chains.address("honest")
    assert (await chain.call(registry.node(node))).status is Status.JAILED


async def test_joining_and_leaving(chains: OpenChains) -> None:
    run = chains.run_fixture.run
    owner = await chains.chain("owner")
    chain = await chains.chain("operator of honest")
    fresh = chains.run_fixture.key("a fresh node")
    await chain.send(registry.withdraw_free(await chain.call(registry.free_balance(chain.signer.address))))
    joined = await chain.join(fresh, run, Role.WORKER)
    assert len(joined.events) >= 2
    node = await owner.call(registry.node(fresh.address))
    assert (node.operator, node.run, node.role, node.status) == (chain.signer.address, run, Role.WORKER, Status.ACTIVE)
    with pytest.raises(RevertError, match="was registered before"):
        await chain.join(fresh, run, Role.WORKER)

    # A consent counts for the operator it names.
    thief = await chains.chain("operator of cheater")
    other = chains.run_fixture.key("another node")
    registration, consent = await chain.consent(other, run, Role.WORKER, operator=chain.signer.address)
    with pytest.raises(RevertError, match="the consent is signed by") as caught:
        await thief.send(registry.register(registration, consent))
    assert caught.value.name == "ConsentNotByNode"

    await chain.send(registry.retire(fresh.address))
    at = await chain.call(registry.withdrawable_at(fresh.address))
    with pytest.raises(RevertError, match="can be withdrawn from"):
        await chain.send(registry.withdraw(fresh.address))
    await chains.advance(at - (await chain.head()).timestamp)
    before = await chain.call(token.balance_of(chain.signer.address))
    await chain.send(registry.withdraw(fresh.address))
    assert await chain.call(token.balance_of(chain.signer.address)) == before + 100 * TOKEN


async def test_money_and_nodes_go_to_the_run_that_was_read_and_to_no_other(chains: OpenChains) -> None:
    run = chains.run_fixture.run
    owner, operator = await chains.chain("owner"), await chains.chain("operator of honest")
    read = await owner.run_hash(run)
    assert read == await owner.call(run_terms.run_hash(run))

    # A run that differs from it in one number, or in one key.
    terms, keys = await owner.terms(run), (await owner.keys(run)).tenures[0].keys
    created = run_terms.create_run(replace(terms, slash_bps=terms.slash_bps + 1).to_chain(), keys)
    other = event_of(await owner.send(created), RunCreated).run
    created = run_terms.create_run(terms.to_chain(), replace(keys, trainer=Signer.random().address))
    third = event_of(await owner.send(created), RunCreated).run
    await owner.send(token.approve(owner.addresses.runs, TOKEN))
    hashes = {number: await owner.run_hash(number) for number in (run, other, third)}
    assert len(set(hashes.values())) == 3
    for number in (other, third):
        message = f"run {number} is 0x{hashes[number].hex()} and not 0x{read.hex()}: a reorg gave"
        with pytest.raises(RevertError, match=message):
            await owner.send(runs.fund(number, read, TOKEN))
        with pytest.raises(RevertError, match=message):
            await operator.join(Signer.random(), number, Role.WORKER, run_hash=read)
        # The node consented to the first run: its operator cannot join the other by the same signature.
        node = Signer.random()
        agreed, consent = await operator.consent(
            node, number, Role.WORKER, operator=operator.signer.address, run_hash=read
        )
        moved = replace(agreed, run_hash=hashes[number])
        with pytest.raises(RevertError, match="the consent is signed by"):
            await operator.send(registry.register(moved, consent))
        assert (await owner.call(runs.run_state(number))).balance == 0
    await owner.send(runs.fund(run, read, TOKEN))


async def test_an_owner_s_money_comes_back_after_notice(chains: OpenChains) -> None:
    owner = await chains.chain("owner")
    terms, keys = await owner.terms(chains.run_fixture.run), await owner.keys_now(chains.run_fixture.run)
    run = event_of(await owner.send(run_terms.create_run(terms.to_chain(), keys)), RunCreated).run
    await approve_and_fund(owner, run, 20 * TOKEN)
    assert await owner.call(runs.withdrawable(run)) == 20 * TOKEN
    await owner.send(runs.announce_withdrawal(run))
    with pytest.raises(RevertError, match=f"the notice of run {run} ends at"):
        await owner.send(runs.withdraw_escrow(run, 7 * TOKEN))
    with pytest.raises(RevertError, match=f"run {run} has an announcement; the next can be made from"):
        await owner.send(runs.announce_withdrawal(run))
    # It has no validators, so the notice takes a week more.
    await chains.advance(await owner.call(runs.noticed_at(run)) - (await owner.head()).timestamp)
    before = await owner.call(token.balance_of(owner.signer.address))
    await owner.send(runs.withdraw_escrow(run, 7 * TOKEN))
    await owner.send(runs.close(run))
    assert await owner.call(token.balance_of(owner.signer.address)) == before + 20 * TOKEN
    assert (await owner.call(runs.run_state(run))).phase is runs.Phase.CLOSED


async def test_a_preview_decodes_reverts_and_sends_nothing(chains: OpenChains) -> None:
    chain = await chains.chain("owner")
    preview, run = chain.dry_run(), chains.run_fixture.run
    count = await chain.web3.eth.get_transaction_count(chain.signer.address, "pending")
    receipt = await preview.send(token.approve(chain.addresses.runs, 5))
    assert receipt.hash == b""
    assert receipt.gas_used > 21_000
    with pytest.raises(RevertError, match="may spend"):
        await preview.send(runs.fund(run, await chain.run_hash(run), 10**25))
    await preview.close()
    assert await chain.web3.eth.get_transaction_count(chain.signer.address, "pending") == count


async def test_without_a_key_a_chain_only_reads(deployment: Deployment) -> None:
    async with await Chain.connect(deployment.settings) as chain:
        assert (await chain.head()).number > 0
        with pytest.raises(ConfigError, match="needs a key"):
            await chain.send(token.faucet())
        with pytest.raises(ChainError, match="there is no run 4000000000"):
            await chain.terms(4_000_000_000)
        with pytest.raises(ChainError, match="has no block"):
            await chain.block(10**9)
        answers = await asyncio.gather(*(chain.call(run_terms.run_count()) for _ in range(20)))
        assert len(set(answers)) == 1
