"""A run's owner changes trainer and storage key: what the former ones signed counts, and nothing later of theirs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from muster.chain.client import event_of
from muster.chain.keys import write_secret
from muster.contracts import court, run_terms, runs
from muster.contracts.court import CaseOpened, Outcome
from muster.contracts.run_terms import KeysChanged
from muster.errors import MismatchError, RefusedError, RevertError, UnreachableError
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import hash_bytes
from muster.protocol.keys import ZERO_ADDRESS
from muster.protocol.kinds import kind_of
from muster.protocol.messages import StepReport, UploadReceipt
from muster.protocol.receipts import check_receipt
from testbed.chain.anvil import Anvil
from testbed.processes import run_to_end
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.runs.story import Story, content_of
from testbed.waiting import until


class KeysStory(Story):
    """What happens in the test."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer) -> None:
        super().__init__(run_fixture, orchestrator)
        self.explorer = explorer

    async def announce(self) -> KeysChanged:
        people = "next trainer", "next storage"
        keys = run_terms.Keys(*(self.run_fixture.key(name).address for name in people), ZERO_ADDRESS)
        async with self.run_fixture.chain("owner") as chain:
            return event_of(await chain.send(run_terms.change_keys(self.run, keys)), KeysChanged)

    async def shown(self, *expected: str) -> None:
        """Wait until the page shows these storage keys, in force first."""
        wanted = [self.run_fixture.key(name).address for name in expected]

        async def found() -> bool:
            summary = await asyncio.to_thread(self.explorer.summary)
            return [line["storage_key"] for line in summary.get("keys", [])] == wanted

        await until(found)

    async def receipt(self, worker: str, index: int) -> UploadReceipt:
        async with self.client(None) as client:
            node, root = self.run_fixture.key(worker).address, content_of(worker, index)[1]
            return (await client.upload(self.run, node, index, root)).receipt

    async def is_dismissed(self, index: int, receipt: UploadReceipt) -> bool:
        """Accuse w1 of missing data, show a receipt, and return whether that ended the case."""
        node, root = self.run_fixture.key("w1").address, hash_bytes(receipt.root)
        async with self.run_fixture.chain("v1") as chain:
            target = court.Target(node, index, 0, root)
            case_id = await chain.call(court.case_count())
            if not case_id or (await chain.call(court.case_of(case_id))).outcome != Outcome.OPEN:
                opened = await chain.send(court.open_case(target, kind_of("data_missing"), 0, bytes(32)))
                case_id = event_of(opened, CaseOpened).case_id
            try:
                await chain.dismiss(case_id, 0, receipt)
            except RevertError as error:
                return error.name != "ReceiptNotByStorage"
            return (await chain.call(court.case_of(case_id))).outcome == Outcome.DISMISSED

    def give(self, name: str) -> None:
        """Give the orchestrator another storage key."""
        key = self.orchestrator.folder / "storage.key"
        key.unlink()
        write_secret(key, self.run_fixture.secret(name))


@pytest.fixture
def run_fixture(start_anvil: Any, built_contracts: None, tmp_path: Path) -> RunFixture:
    anvil: Anvil = start_anvil()
    return asyncio.run(RunFixture.build_on(anvil, tmp_path / "run", seed="keys", workers=("w1",)))


def test_change_of_keys_takes_effect_after_notice(run_fixture: RunFixture, tmp_path: Path) -> None:
    with (
        Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator,
        Explorer(run_fixture, tmp_path / "explorer", orchestrator.url) as explorer,
    ):
        asyncio.run(_the_story(KeysStory(run_fixture, orchestrator, explorer)))


async def _the_story(story: KeysStory) -> None:
    run_fixture, orchestrator = story.run_fixture, story.orchestrator
    await run_fixture.publish(0)
    await story.work("w1", 0)
    old = await story.receipt("w1", 0)

    # 1. The notice: everybody sees it, and nothing changes yet.
    announced = await story.announce()
    await story.shown("storage", "next storage")
    overview, join = [(await asyncio.to_thread(story.explorer.get, path))[1].decode() for path in ("/", "/join")]
    assert "changes the run's keys at" in overview
    assert run_fixture.key("next trainer").address in join
    await story.work("w1", 1)
    before = await story.receipt("w1", 1)

    # 2. It is in force. The orchestrator takes no more files, says why, and answers what it has.
    async with run_fixture.local_chain() as dev:
        await dev.advance_to(announced.from_)
    await story.shown("next storage")
    reason = f"storage key is {run_fixture.key('next storage').address} now"
    await until(lambda: reason in orchestrator.get("/readyz")[1].decode(), reason)
    assert orchestrator.get("/readyz")[0] == 503
    async with run_fixture.client(orchestrator.url, "w1", timeout=2) as client:
        data, root = content_of("w1", 2)
        with pytest.raises(UnreachableError):  # 503, after retries
            await client.put_file(data, story.run, 2, root)
    assert await story.receipt("w1", 0) == old
    orchestrator.stop()
    code, _, why = await run_to_end(*orchestrator.command, folder=None, **orchestrator.environment)
    assert (code, "trusts receipts of" in why) == (78, True)

    # 3. With the new key it goes on. The new trainer is let in, and the former one is not.
    story.give("next storage")
    orchestrator.start()
    async with story.client("trainer") as former, story.client("next trainer") as trainer:
        report = StepReport(run=story.run, step=1, metrics={})
        with pytest.raises(RefusedError, match="is no node of run"):
            await former.post_step(report)
        await trainer.post_step(report)
    async with run_fixture.chain("trainer") as chain:
        with pytest.raises(RevertError, match="is not the trainer"):
            await chain.send(runs.publish_checkpoint(story.run, 1, bytes([1] * 32), bytes(32)))
    async with run_fixture.local_chain() as dev:
        await dev.fund([run_fixture.key("next trainer").address])
    async with run_fixture.chain("next trainer") as chain:
        await chain.send(runs.publish_checkpoint(story.run, 1, bytes([1] * 32), bytes(32)))
    await story.work("w1", 2)
    new = await story.receipt("w1", 2)

    # 4. Each receipt is judged by the key of its second: on chain, and by those who check it here.
    async with run_fixture.chain("v1") as chain:
        keys = await chain.keys(story.run)
    forged = sign_message(run_fixture.key("storage"), run_fixture.domain, new)
    for index, receipt in ((0, old), (1, before), (2, new)):
        check_receipt(run_fixture.domain, receipt, keys)
        if receipt is new:
            assert not await story.is_dismissed(index, forged)
        assert await story.is_dismissed(index, receipt)
    with pytest.raises(MismatchError, match="not by the run's storage key"):
        check_receipt(run_fixture.domain, forged, keys)

    # 5. So does a rebuild from storage.
    orchestrator.kill()
    shutil.rmtree(orchestrator.folder / "state")
    orchestrator.change({"orchestrator.database_url": f"sqlite:///{orchestrator.folder}/again.db"})
    orchestrator.start()
    assert [await story.receipt("w1", index) for index in range(3)] == [old, before, new]
