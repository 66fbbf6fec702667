"""Deliver work: upload, commit, record; one index after the other, as the chain takes them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from muster.chain.reads import behind
from muster.constants import UNNAMED_SECONDS
from muster.contracts import runs
from muster.contracts.codec import Call
from muster.errors import ConfigError, MismatchError, RefusedError, RevertError, StorageError
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import UploadReceipt
from muster.protocol.receipts import check_receipt
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import AGAIN, Next, PollOutcome, Waiting
from worker.claimer import Claimer
from worker.context import WorkerContext
from worker.decisions import PASSING, STALE, Entry, NodeState, still_counts, waiting_reason

MAX_PAUSE_SECONDS: Final = 60.0
"""Longest pause after an upload that was refused. The first is short: a registration reaches the orchestrator late."""

log = telemetry.logger("worker")
COMMITMENTS = telemetry.counter("worker_commitments", "Commitments mined")


class Committer:
    """Uploads and commits what the journal holds."""

    def __init__(self, context: WorkerContext, claimer: Claimer) -> None:
        """`claimer` is asked when the stake covers no more commitments."""
        self._context = context
        self._claimer = claimer
        self._refusals = 0

    async def poll(self) -> PollOutcome:
        """Deliver the work of the node's next index."""
        facts = await self._context.facts()
        if reason := waiting_reason(facts):
            return AGAIN if facts.worker.is_uncovered and await self._claimer.claim() else Waiting(reason)
        await self._record_mined(facts)
        entry = self._context.journal.entry(facts.work.next)
        if entry is None:
            return Waiting("no finished work to deliver")
        if not still_counts(entry, facts, await self._context.anchor(entry.step, facts)):
            return await self._discard(entry, "its step no longer counts")
        if await self._is_old(entry):
            return await self._discard(entry, "its file was uploaded long ago, and may be gone soon")
        return await self._deliver(entry)

    async def _record_mined(self, facts: NodeState) -> None:
        """Record commitments that were mined while this process did not see it.

        Raises ConfigError when another root was committed, and UnreachableError when the endpoint's block is from
        before that commitment: only an answer that knows the index can accuse another machine.
        """
        journal, node = self._context.journal, self._context.node
        for entry in journal.pending(facts.work.next):
            calls: list[Call[Any]] = [runs.work(node), runs.is_committed(node, entry.index, entry.step, entry.root)]
            work, ours = await self._context.chain.call_all(calls)
            if not ours and work.next <= entry.index:
                raise behind(f"it does not know the commitment of index {entry.index}")
            if not ours:
                raise ConfigError(
                    f"index {entry.index} was committed with another root than the one in this journal",
                    hint="the key is used by another machine too: stop one of them",
                )
            journal.committed(entry.index, None, None)
            log.info(telemetry.COMMITTED, step=entry.step, index=entry.index, found="on chain after a restart")
        journal.prune(facts.work.settled)

    async def _deliver(self, entry: Entry) -> PollOutcome:
        """Upload the file unless that is done, then commit. Discard work whose file is lost."""
        context = self._context
        if entry.state == "saved":
            try:
                data = await asyncio.to_thread(context.journal.data, entry)
            except StorageError as error:
                log.error("the finished file is lost", index=entry.index, error=str(error))
                return await self._discard(entry, "its file is lost")
            if reason := await self._upload(entry, data):
                return Waiting(reason)
        failpoint("worker.uploaded")
        if reason := await self._receipt_ahead(entry):
            return Waiting(reason)
        commitment = runs.commit_work(context.run, entry.step, entry.anchor, entry.index, entry.root)
        try:
            mined = await context.chain.send(commitment)
        except RevertError as error:
            if error.name not in STALE | PASSING:
                raise
            return Waiting(str(error))
        failpoint("worker.committed")
        context.journal.committed(entry.index, mined.hash, mined.block)
        context.delivered.set()
        COMMITMENTS.inc()
        log.info(telemetry.COMMITTED, step=entry.step, index=entry.index, tx=mined.hash, gas=mined.gas_used)
        return AGAIN

    async def _is_old(self, entry: Entry) -> bool:
        """Return whether the orchestrator may soon forget a file that was uploaded long ago and not committed."""
        receipt = self._context.journal.receipt(entry.index)
        if receipt is None:
            return False
        return (await self._context.chain.head()).timestamp - receipt.stored_at > UNNAMED_SECONDS // 2

    async def _receipt_ahead(self, entry: Entry) -> str:
        """Return why the receipt would not answer a case about this commitment yet, or "": it must not be later.

        Raises MismatchError where the keys of its second are not those that were announced when it came.
        """
        context = self._context
        receipt, head = context.journal.receipt(entry.index), await context.chain.head()
        if receipt is None:
            return ""
        if receipt.stored_at <= head.timestamp:
            check_receipt(context.client.domain, receipt, await context.chain.keys(context.run))
            return ""
        return f"the receipt is of second {receipt.stored_at}, the latest block here of second {head.timestamp}"

    async def _upload(self, entry: Entry, data: bytes) -> str:
        """Upload the file and keep its receipt. Return why that cannot be, or ""."""
        context = self._context
        try:
            receipt = await context.client.put_file(data, context.run, entry.index, entry.root, entry.file_hash)
        except RefusedError as error:
            self._refusals += 1
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, 2.0 ** min(self._refusals, 6) / 2))
            return f"the upload was refused: {error}"
        self._refusals = 0
        await self._check(receipt, entry, len(data))
        context.journal.uploaded(entry.index, receipt)
        log.info("uploaded", step=entry.step, index=entry.index, file=entry.file_hash, bytes=len(data))
        return ""

    async def _check(self, receipt: UploadReceipt, entry: Entry, size: int) -> None:
        """Raise MismatchError unless the run's storage signed this receipt for exactly this work."""
        expected = (self._context.run, self._context.node, entry.index, hex_hash(entry.root), entry.file_hash, size)
        actual = (receipt.run, receipt.node, receipt.index, receipt.root, receipt.file_hash, receipt.size)
        if actual != expected:
            raise MismatchError("the storage's receipt is about something else", hint="nothing was committed")
        check_receipt(self._context.client.domain, receipt, await self._context.chain.keys(self._context.run))

    async def _discard(self, entry: Entry, reason: str) -> Next:
        """Delete work, once the chain has shown that it can no longer take it."""
        await self._context.chain.await_pending()
        if (await self._context.chain.call(runs.work(self._context.node))).next != entry.index:
            return AGAIN
        self._context.journal.discard(entry)
        self._context.delivered.set()
        log.info("discarded", step=entry.step, index=entry.index, reason=reason)
        return AGAIN
