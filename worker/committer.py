"""Delivering work: upload, commit, note; one index after the other, as the chain takes them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from muster import telemetry
from muster.chain.codec import View
from muster.chain.contracts import runs
from muster.chain.reads import behind
from muster.errors import ConfigError, MismatchError, RefusedError, RevertError, StorageError
from muster.failpoints import failpoint
from muster.hashes import hex_hash
from muster.messages import Receipt
from muster.signing import check_receipt
from worker.decisions import PASSING, STALE, Entry, Facts, must_wait, still_counts
from worker.workplace import Workplace

MAX_PAUSE_SECONDS: Final = 60.0
"""Longest pause after an upload that was refused. The first is short: the orchestrator may have yet to learn of us."""

log = telemetry.logger("worker")
COMMITMENTS = telemetry.counter("worker_commitments", "Commitments mined")


class Courier:
    """Empties the journal into storage and chain."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._refusals = 0

    async def turn(self) -> str:
        """Deliver the work of the node's next index; returns why that cannot be, or ""."""
        facts = await self._place.facts()
        if reason := must_wait(facts):
            return reason
        await self._note_mined(facts)
        entry = self._place.journal.entry(facts.work.next)
        if entry is None:
            return "no finished work to deliver"
        if still_counts(entry, facts, await self._place.anchor(entry.step, facts)):
            return await self._deliver(entry)
        return await self._discard(entry)

    async def _note_mined(self, facts: Facts) -> None:
        """Note commitments that were mined without our learning of it.

        Raises ConfigError when somebody else's was, which only an answer can tell that knows of the index: one from
        before it was committed is an UnreachableError.
        """
        journal, node = self._place.journal, self._place.node
        for entry in journal.unsettled(facts.work.next):
            questions: list[View[Any]] = [
                runs.work(node),
                runs.is_committed(node, entry.index, entry.step, entry.root),
            ]
            work, ours = await self._place.chain.ask_all(questions)
            if not ours and work.next <= entry.index:
                raise behind(f"it does not know the commitment of index {entry.index}")
            if not ours:
                raise ConfigError(
                    f"index {entry.index} was committed with another root than the one in this journal",
                    hint="the key is used by another machine too: stop one of them",
                )
            journal.committed(entry.index, None, None)
            log.info("committed", step=entry.step, index=entry.index, found="on chain after a restart")
        journal.prune(facts.work.settled)

    async def _deliver(self, entry: Entry) -> str:
        """Upload if that is not done, then commit."""
        if entry.state == "saved" and (reason := await self._upload(entry)):
            return reason
        failpoint("worker.uploaded")
        try:
            mined = await self._place.chain.act(
                runs.commit_work(self._place.run, entry.step, entry.anchor, entry.index, entry.root)
            )
        except RevertError as error:
            if error.name not in STALE | PASSING:
                raise
            return str(error)
        failpoint("worker.committed")
        self._place.journal.committed(entry.index, mined.hash, mined.block)
        self._place.delivered.set()
        COMMITMENTS.inc()
        log.info("committed", step=entry.step, index=entry.index, tx=mined.hash, gas=mined.gas_used)
        return ""

    async def _upload(self, entry: Entry) -> str:
        journal = self._place.journal
        try:
            data = await asyncio.to_thread(journal.data, entry)
        except StorageError as error:
            log.error("the finished file is lost", index=entry.index, error=str(error))
            return await self._discard(entry)
        try:
            receipt = await self._place.client.put_file(data, self._place.run, entry.index, entry.root)
        except RefusedError as error:
            self._refusals += 1
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, 2.0 ** min(self._refusals, 6) / 2))
            return f"the upload was refused: {error}"
        self._refusals = 0
        self._check(receipt, entry, len(data))
        journal.uploaded(entry.index, receipt)
        log.info("uploaded", step=entry.step, index=entry.index, file=entry.file_hash, bytes=len(data))
        return ""

    def _check(self, receipt: Receipt, entry: Entry, size: int) -> None:
        """The receipt is the run's storage's, and about this very work. Raises MismatchError."""
        expected = (self._place.run, self._place.node, entry.index, hex_hash(entry.root), entry.file_hash, size)
        actual = (receipt.run, receipt.node, receipt.index, receipt.root, receipt.file_hash, receipt.size)
        if actual != expected:
            raise MismatchError("the storage's receipt is about something else", hint="nothing was committed")
        check_receipt(self._place.client.domain, receipt, self._place.terms.storage_key)

    async def _discard(self, entry: Entry) -> str:
        """Throw work away, once the chain has shown that it can no longer take it."""
        await self._place.chain.settle()
        if (await self._place.chain.ask(runs.work(self._place.node))).next != entry.index:
            return ""
        self._place.journal.discard(entry)
        self._place.delivered.set()
        log.info("discarded", step=entry.step, index=entry.index, reason="its step no longer counts")
        return ""
