"""How a worker delivers: an upload hashed once, no hasty conclusion when the endpoint is behind. Real chain."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.chain.client import Chain, event_of
from muster.constants import TOKEN, UNNAMED_SECONDS
from muster.contracts import court, run_terms, runs, token
from muster.contracts.run_terms import KeysChanged
from muster.errors import ConfigError, MismatchError, RevertError, UnreachableError
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hash_bytes
from muster.protocol.kinds import kind_of
from muster.protocol.messages import UploadReceipt
from muster.runtime.loop import AGAIN, IDLE, Waiting
from muster.settings.schema import Settings
from muster.verification.profiles import CPU_FP32
from testbed.chain.anvil import Anvil
from testbed.chain.balancer import balanced, first, never
from testbed.http import answer, scripted
from testbed.runs.run_fixture import RunFixture, some_hash
from testbed.samples.messages import receipt_of
from worker.claimer import Claimer
from worker.committer import Committer
from worker.context import WorkerContext
from worker.decisions import Entry
from worker.journal import WorkJournal

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("delivery")
    run_fixture = asyncio.run(
        RunFixture.build(
            folder, deployment.settings, seed="delivery", workers=("w1", "w2", "w3", "w4", "w6", "w7", "w8")
        )
    )
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@asynccontextmanager
async def context_of(
    run_fixture: RunFixture, worker: str, url: str, folder: Path, orchestrator: str = NOWHERE
) -> AsyncIterator[WorkerContext]:
    """Yield a worker's context, with the chain seen through the endpoint at `url`."""
    settings = run_fixture.settings.model_copy(update={"rpc_url": url})
    journal = WorkJournal(folder / "work", worker)
    try:
        async with (
            await Chain.connect(settings, run_fixture.key(worker), journal_folder=folder / "transactions") as chain,
            run_fixture.client(orchestrator, worker) as client,
        ):
            terms = await chain.terms(run_fixture.run)
            yield WorkerContext(Settings(run=run_fixture.run, chain=settings), chain, client, terms, CPU_FP32, journal)
    finally:
        journal.close()


def committer_of(context: WorkerContext) -> Committer:
    return Committer(context, Claimer(context))


async def saved(context: WorkerContext, root: str, data: bytes = b"finished work") -> Entry:
    """Put work for index 0 into the journal."""
    anchor = (await context.chain.checkpoint(context.run, 0)).anchor
    return context.journal.save(0, 0, anchor, hash_bytes(root), data)


@asynccontextmanager
async def storage(run_fixture: RunFixture, receipt: UploadReceipt, key: str = "storage") -> AsyncIterator[str]:
    """Serve an orchestrator that takes an upload at the second attempt, with this receipt; yield its URL.

    key: whose signature the receipt has.
    """
    signed = sign_message(run_fixture.key(key), run_fixture.domain, receipt).model_dump_json()
    stored = answer("201 Created", body=signed.encode())
    async with scripted(answer("503 Busy"), stored) as server:
        yield server.url


async def test_an_upload_is_hashed_once(
    run_fixture: RunFixture, anvil: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only saving hashes the data. Reading, naming, signing twice and checking the receipt reuse the hash."""
    data, root, hashed = b"finished work" * 1000, some_hash("ours"), []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda given=b"": hashed.append(len(given)) or sha256(given))
    work = {"run": run_fixture.run, "node": run_fixture.key("w3").address, "root": root}
    async with run_fixture.chain("w3") as chain:
        now = (await chain.head()).timestamp
    receipt = receipt_of(**work, file_hash="0x" + sha256(data).hexdigest(), size=len(data), stored_at=now)
    async with storage(run_fixture, receipt) as url, context_of(run_fixture, "w3", anvil.url, tmp_path, url) as context:
        await saved(context, root, data)
        assert await committer_of(context).poll() is AGAIN
        entry = context.journal.entry(0)
    assert entry is not None
    assert entry.state == "committed"
    assert hashed.count(len(data)) == 1


async def test_worker_discards_what_the_orchestrator_may_have_forgotten(
    run_fixture: RunFixture, anvil: Anvil, tmp_path: Path
) -> None:
    """It ended between upload and commitment, for longer than a file without one is kept."""
    data, root = b"finished work", some_hash("ours")
    work = {"run": run_fixture.run, "node": run_fixture.key("w8").address, "root": root}
    work |= {"file_hash": "0x" + hashlib.sha256(data).hexdigest(), "size": len(data)}
    async with run_fixture.chain("w8") as chain:
        now = (await chain.head()).timestamp
    old = receipt_of(**work, stored_at=now - UNNAMED_SECONDS // 2 - 1)
    async with storage(run_fixture, old) as url, context_of(run_fixture, "w8", anvil.url, tmp_path, url) as context:
        await saved(context, root, data)
        context.journal.uploaded(0, old)
        assert await committer_of(context).poll() is AGAIN
        assert context.journal.entry(0) is None
        assert (await context.chain.call(runs.work(context.node))).next == 0


async def test_worker_does_not_commit_when_receipt_is_later_than_chain(
    run_fixture: RunFixture, anvil: Anvil, tmp_path: Path
) -> None:
    """With a receipt later than the chain's clock, the node could not answer an accusation."""
    data, root = b"finished work", some_hash("ours")
    async with run_fixture.chain("w4") as chain:
        head = await chain.head()
    work = {"run": run_fixture.run, "node": run_fixture.key("w4").address, "root": root}
    receipt = receipt_of(
        **work, file_hash="0x" + hashlib.sha256(data).hexdigest(), size=len(data), stored_at=head.timestamp + 3600
    )
    async with storage(run_fixture, receipt) as url, context_of(run_fixture, "w4", anvil.url, tmp_path, url) as context:
        await saved(context, root, data)
        outcome = await committer_of(context).poll()
        assert isinstance(outcome, Waiting)
        assert outcome.reason.startswith(
            f"the receipt is of second {head.timestamp + 3600}, the latest block here of second "
        )
        entry = context.journal.entry(0)
        assert entry is not None
        assert entry.state == "uploaded"
        assert (await context.chain.call(runs.work(context.node))).next == 0


async def test_worker_does_not_commit_when_key_of_receipt_was_never_in_force(
    deployment: Any, anvil: Anvil, tmp_path: Path
) -> None:
    """The receipt is of a second for which its key was announced; by that second the owner has taken that back.

    The court dismisses no case by it, so the work would be defenceless.
    """
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="replaced", workers=("w",))
    await run_fixture.publish(0)
    data, root = b"finished work", some_hash("ours")
    async with run_fixture.chain("owner") as owner:
        keys = await owner.keys_now(run_fixture.run)
        announced = replace(keys, storage_key=run_fixture.key("next storage").address)
        changed = event_of(await owner.send(run_terms.change_keys(run_fixture.run, announced)), KeysChanged)
    work = {"run": run_fixture.run, "node": run_fixture.key("w").address, "root": root, "stored_at": changed.from_}
    receipt = receipt_of(**work, file_hash="0x" + hashlib.sha256(data).hexdigest(), size=len(data))
    async with (
        storage(run_fixture, receipt, "next storage") as url,
        context_of(run_fixture, "w", anvil.url, tmp_path, url) as context,
        run_fixture.chain("owner") as owner,
        run_fixture.local_chain() as clock,
    ):
        # 1. When the file is uploaded, the receipt is as good as what is announced. It waits for its second.
        await saved(context, root, data)
        committer = committer_of(context)
        assert "the receipt is of second" in str(await committer.poll())

        # 2. The owner announces the present key in place of that, so the receipt is of nobody's in its second.
        await owner.send(run_terms.change_keys(run_fixture.run, keys))
        await clock.advance_to(changed.from_)
        with pytest.raises(MismatchError, match="not by the run's storage key"):
            await committer.poll()
        assert (await context.chain.call(runs.work(context.node))).next == 0


async def test_lagging_endpoint_leaves_committed_work_pending(
    run_fixture: RunFixture, anvil: Anvil, tmp_path: Path
) -> None:
    async with balanced(anvil) as balancer, context_of(run_fixture, "w1", balancer.url, tmp_path) as context:
        entry = await saved(context, some_hash("ours"))
        balancer.head = (await context.chain.head()).number
        await run_fixture.commit("w1", 0, some_hash("ours"))
        question = runs.is_committed(context.node, 0, entry.step, entry.root).encode().hex()
        balancer.lags = first(1, question)
        committer = committer_of(context)
        with pytest.raises(UnreachableError, match="the endpoint is behind"):
            await committer.poll()
        assert context.journal.pending(1) == [entry]
        assert await committer.poll() == Waiting("no finished work to deliver")
        assert context.journal.pending(1) == []


async def test_another_root_at_our_index_is_another_machine_s(
    run_fixture: RunFixture, anvil: Anvil, tmp_path: Path
) -> None:
    async with context_of(run_fixture, "w2", anvil.url, tmp_path) as context:
        await saved(context, some_hash("ours"))
        await run_fixture.commit("w2", 0, some_hash("theirs"))
        with pytest.raises(ConfigError, match="index 0 was committed with another root"):
            await committer_of(context).poll()


async def test_a_worker_whose_stake_covers_no_more_claims_by_itself(
    deployment: Any, anvil: Anvil, tmp_path: Path
) -> None:
    """A slash of 50 tokens, 10 of them the bounty, covers four commitments of 10."""
    terms = {"pay": 10 * TOKEN, "case_fee": 10 * TOKEN, "jury_deposit": 40 * TOKEN}
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="cover", workers=("w",), **terms)
    await run_fixture.publish(0)
    for number in range(4):
        await run_fixture.commit("w", number, some_hash(f"root {number}"))
    async with context_of(run_fixture, "w", anvil.url, tmp_path) as context:
        committer, operator = committer_of(context), run_fixture.key("operator of w").address
        assert await committer.poll() == Waiting(
            "4 commitments wait for their pay, and its stake covers no more: muster worker claim"
        )
        anchor = (await context.chain.checkpoint(context.run, 0)).anchor
        with pytest.raises(RevertError, match="has 4 unsettled commitments, and its stake covers 4") as refused:
            await context.chain.send(runs.commit_work(context.run, 0, anchor, 4, hash_bytes(some_hash("fifth"))))
        assert refused.value.name == "CoverShort"
        async with run_fixture.local_chain() as clock:
            await clock.advance(73 * 3600)
        before = await context.chain.call(token.balance_of(operator))
        assert await committer.poll() is AGAIN
        assert await context.chain.call(token.balance_of(operator)) == before + 40 * TOKEN
        assert await committer.poll() == Waiting("no finished work to deliver")


async def test_worker_uploads_nothing_to_an_empty_escrow(deployment: Any, anvil: Anvil, tmp_path: Path) -> None:
    """A file is uploaded before its pay is reserved: no work is given away where there is nothing to reserve."""
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="empty", workers=("w",))
    await run_fixture.publish(0)
    async with run_fixture.chain("owner") as owner, run_fixture.local_chain() as clock:
        await owner.send(runs.announce_withdrawal(run_fixture.run))
        await clock.advance(3600)
        await owner.send(runs.withdraw_escrow(run_fixture.run, 5_000 * TOKEN))
    async with context_of(run_fixture, "w", anvil.url, tmp_path) as context:
        await saved(context, some_hash("ours"))
        assert await committer_of(context).poll() == Waiting(
            "the run's escrow cannot pay for another commitment: its owner must fund it"
        )
        assert [entry.state for entry in context.journal.pending(1)] == ["saved"]


async def test_worker_goes_on_while_only_a_case_keeps_its_pay(deployment: Any, anvil: Anvil, tmp_path: Path) -> None:
    terms = {"pay": 10 * TOKEN, "case_fee": 10 * TOKEN, "jury_deposit": 40 * TOKEN}
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="frozen", workers=("w",), **terms)
    await run_fixture.publish(0)
    for number in range(4):
        await run_fixture.commit("w", number, some_hash(f"root {number}"))
    async with context_of(run_fixture, "w", anvil.url, tmp_path) as context, run_fixture.chain("v1") as accuser:
        target = court.Target(context.node, 3, 0, hash_bytes(some_hash("root 3")))
        await accuser.send(court.open_case(target, kind_of("wrong_reward"), 0, bytes(32)))
        assert "its stake covers no more" in str(await committer_of(context).poll())
        async with run_fixture.local_chain() as clock:
            await clock.advance(73 * 3600)
        assert not (await context.chain.call(runs.claimable(context.node))).amount
        assert await committer_of(context).poll() == Waiting("no finished work to deliver")
        await run_fixture.commit("w", 4, some_hash("root 4"))


async def test_a_worker_claims_once_its_pay_has_been_payable_for_six_hours(
    deployment: Any, anvil: Anvil, tmp_path: Path
) -> None:
    """Whatever it does besides: here it has nothing to commit. A restarted one knows as much."""
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="claim", workers=("w",), pay=2 * TOKEN)
    await run_fixture.publish(0)
    async with context_of(run_fixture, "w", anvil.url, tmp_path) as context:
        operator = run_fixture.key("operator of w").address

        async def wallet() -> int:
            return await context.chain.call(token.balance_of(operator))

        before = await wallet()
        assert await Claimer(context).poll() is IDLE, "nothing has been committed"
        for index in range(2):
            await run_fixture.commit("w", index, some_hash(f"work {index}"))
        payable_at = await context.chain.call(runs.payable_at(context.node, 0))
        async with run_fixture.local_chain() as clock:
            await clock.advance_to(payable_at + 6 * 3600 - 30)
            assert await Claimer(context).poll() is IDLE
            assert await wallet() == before
            await clock.advance_to(payable_at + 6 * 3600)
        claimer = Claimer(context)
        assert await asyncio.gather(claimer.poll(), claimer.poll()) == [IDLE, IDLE], "one claim at a time"
        assert await wallet() == before + 4 * TOKEN
        work = await context.chain.call(runs.work(context.node))
        assert (work.settled, work.next) == (2, 2)


async def test_a_server_that_does_not_know_a_commitment_yet_puts_the_claim_off(
    deployment: Any, anvil: Anvil, tmp_path: Path
) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="behind", workers=("w",), pay=2 * TOKEN)
    await run_fixture.publish(0)
    async with balanced(anvil) as balancer, context_of(run_fixture, "w", balancer.url, tmp_path) as context:
        balancer.head = (await context.chain.head()).number
        await run_fixture.commit("w", 0, some_hash("work"))
        asked = runs.payable_at(context.node, 0).encode().hex()
        balancer.lags = lambda text: asked in text
        assert await Claimer(context).poll() == Waiting(
            f"the claim failed: Runs.payableAt: {context.node} has not made this commitment 0"
        )
        balancer.lags = never
        async with run_fixture.local_chain() as clock:
            await clock.advance(100 * 3600)
        assert await Claimer(context).poll() is IDLE
        assert (await context.chain.call(runs.work(context.node))).settled == 1


async def test_failed_claim_is_reported_and_retried(deployment: Any, anvil: Anvil, tmp_path: Path) -> None:
    run_fixture = await RunFixture.build(tmp_path, deployment.settings, seed="poor", workers=("w",), pay=2 * TOKEN)
    await run_fixture.publish(0)
    await run_fixture.commit("w", 0, some_hash("work"))
    async with context_of(run_fixture, "w", anvil.url, tmp_path) as context, run_fixture.local_chain() as clock:
        await clock.advance(100 * 3600)
        await clock.fund([context.node], wei=0)
        outcome = await Claimer(context).poll()
        assert isinstance(outcome, Waiting)
        assert outcome.reason.startswith("the claim failed: ")
        assert (await context.chain.call(runs.work(context.node))).settled == 0
        await clock.fund([context.node])
        assert await Claimer(context).poll() is IDLE
        assert (await context.chain.call(runs.work(context.node))).settled == 1
