"""The worker: draw, generate, score, save, upload, commit, note; again and again, and after a crash where it stopped.

Each turn looks at the chain and the journal, does one thing and starts over, so a fresh piece of work and one found
after a restart go the same way. What cannot be done yet is waited for, and the log says why.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.keys import load_signer
from muster.errors import (
    ChainError,
    CheckError,
    ConfigError,
    MismatchError,
    RefusedError,
    RevertError,
    StorageError,
    UnfundedError,
    UnreachableError,
)
from muster.failpoints import failpoint
from muster.hashes import hex_hash
from muster.http import OrchestratorClient
from muster.inspection import Commitment, Rules
from muster.journal import FolderLock
from muster.messages import Receipt
from muster.process import run_together
from muster.profiles import profile_by_hash
from muster.rollouts.file import write_rollouts
from muster.rollouts.leaves import rollout_tree
from muster.run_data import Checkpoints, fetch_task_set, make_rules, sources_of
from muster.settings import Settings
from muster.signing import check_receipt
from muster.terms import Terms
from worker.decisions import PASSING, STALE, Entry, Facts, must_wait, still_counts
from worker.engine import Engine, EngineLimits
from worker.journal import WorkJournal
from worker.policy import Fetched, NewestCheckpoint, Policy
from worker.work import Assignment, requests_of, rollouts_of

SAY_AGAIN_SECONDS: Final = 60.0
"""A wait that goes on is mentioned again after this long."""

MAX_PAUSE_SECONDS: Final = 60.0
"""Longest pause after an upload that was refused. The first is short: the orchestrator may have yet to learn of us."""

TRANSIENT: Final = (UnreachableError, ChainError, CheckError)
"""What others may mend: silence, or an answer that is not what it must be. Waited for, and said in the log."""

FATAL: Final = (RevertError, UnfundedError)
"""What only the operator can mend."""

log = telemetry.logger("worker")
COMMITMENTS = telemetry.counter("worker_commitments", "Commitments mined")
TOKENS = telemetry.counter("worker_tokens", "Completion tokens generated")


async def serve(settings: Settings, engine: type[Engine] = Engine) -> None:
    """Work with these settings until cancelled. `engine` is the class that generates."""
    with FolderLock(settings.worker.state_dir):
        signer = await asyncio.to_thread(load_signer, settings.keys, settings.chain.chain_id)
        folder = settings.worker.state_dir / "transactions"
        async with (
            await Chain.connect(settings.chain, signer, journal_folder=folder) as chain,
            OrchestratorClient(
                settings.orchestrator.url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry
            ) as client,
        ):
            log.info("ready", node=signer.address, run=settings.run)
            worker = Worker(settings, chain, client, await chain.terms(settings.run), engine)
            try:
                await worker.run()
            finally:
                await worker.close()


class Worker:
    """One node at work. `run` does not return; `close` frees the engine."""

    def __init__(
        self, settings: Settings, chain: Chain, client: OrchestratorClient, terms: Terms, engine: type[Engine]
    ) -> None:
        self.settings = settings
        self.chain = chain
        self.client = client
        self.terms = terms
        self.node = chain.signer.address
        profile = profile_by_hash(terms.profile)
        self.policy = Policy(lambda path: engine(path, profile, EngineLimits.of_terms(terms)))
        identity = f"{self.node} on chain {chain.chain_id} at {chain.addresses.runs}"
        self.journal = WorkJournal(settings.worker.state_dir, identity)
        self._rules: Rules | None = None
        self._min_validators = 0
        self._refusals = 0
        self._said: tuple[str, float] = ("", 0.0)

    async def close(self) -> None:
        await self.policy.close()
        self.journal.close()

    async def run(self) -> None:
        newest = await self._prepare()
        await run_together(newest.follow(), self._work(newest))

    async def _prepare(self) -> NewestCheckpoint:
        """What is needed once: the sources of weights, and what an earlier life left on its way to the chain."""
        while True:
            try:
                await self.chain.settle()
                self._min_validators = await self.chain.ask("runs", "MIN_VALIDATORS")
                sources = await sources_of(self.settings.shardcast, self.client, self.settings.run)
            except TRANSIENT as error:
                await self._wait(str(error))
                continue
            folder = self.settings.worker.state_dir / "weights"
            checkpoints = Checkpoints(self.chain, self.settings.run, sources, self.settings.shardcast, folder)
            return NewestCheckpoint(self.chain, self.settings.run, checkpoints, self.settings.chain.poll_seconds)

    async def _work(self, newest: NewestCheckpoint) -> None:
        while True:
            try:
                reason = await self._turn(newest)
            except TRANSIENT as error:
                if isinstance(error, FATAL):
                    raise
                reason = str(error)
            if reason:
                await self._wait(reason)

    async def _turn(self, newest: NewestCheckpoint) -> str:
        """Do the next thing; returns why there is nothing to do, or ""."""
        facts = await self._facts()
        if reason := must_wait(facts):
            return reason
        await self._note_mined(facts)
        entry = self.journal.entry(facts.work.next)
        if entry is not None:
            if still_counts(entry, facts, await self._anchor(entry.step, facts)):
                return await self._deliver(entry)
            return await self._discard(entry)
        fetched = newest.newest
        if fetched is None or fetched.checkpoint.step < facts.oldest_step:
            return f"the weights of step {facts.state.steps - 1} are not here yet"
        rules = await self._get_rules(fetched.path)
        demand = await self.client.demand(self.settings.run)
        if not demand.wanted:
            return f"no more work is wanted now: {demand.waiting_groups} groups wait for the trainer"
        starting = self.policy.loaded is None
        await self.policy.load(fetched)
        if not starting:  # starting an engine takes so long that there may be newer weights already
            await self._produce(fetched, facts, rules)
        return ""

    # Looking

    async def _facts(self) -> Facts:
        node, work, state, head = await asyncio.gather(
            self.chain.node(self.node),
            self.chain.work(self.node),
            self.chain.run_state(self.settings.run),
            self.chain.head(),
        )
        pay = self.terms.pay_of(node.work_class) if node.work_class < len(self.terms.classes) else 0
        return Facts(node, work, state, self.settings.run, pay, self._min_validators, head.timestamp)

    async def _anchor(self, step: int, facts: Facts) -> bytes | None:
        return (await self.chain.checkpoint(self.settings.run, step)).anchor if step < facts.state.steps else None

    async def _note_mined(self, facts: Facts) -> None:
        """Note commitments that were mined without our learning of it."""
        for entry in self.journal.unsettled(facts.work.next):
            if not await self.chain.is_committed(self.node, entry.index, entry.step, entry.root):
                raise ConfigError(
                    f"index {entry.index} was committed with another root than the one in this journal",
                    hint="the key is used by another machine too: stop one of them",
                )
            self.journal.committed(entry.index, None, None)
            log.info("committed", step=entry.step, index=entry.index, found="on chain after a restart")
        self.journal.prune(facts.work.settled)

    async def _get_rules(self, checkpoint: Path) -> Rules:
        if self._rules is None:
            task_set = await fetch_task_set(self.client, self.terms, self.settings.worker.state_dir)
            self._rules = await asyncio.to_thread(
                make_rules, self.chain, self.settings.run, self.terms, task_set, checkpoint
            )
        return self._rules

    # Doing

    async def _produce(self, fetched: Fetched, facts: Facts, rules: Rules) -> None:
        """Generate, score and save the work of the next index."""
        checkpoint, index = fetched.checkpoint, facts.work.next
        commitment = Commitment(rules.run, checkpoint.step, self.node, index, bytes(32), hour=0, block=0)
        draw = rules.draw(commitment, checkpoint.entropy, facts.node.work_class)
        assignment = Assignment(checkpoint.step, index, draw)
        requests = await asyncio.to_thread(requests_of, assignment, rules)
        started = time.monotonic()
        generations = await self.policy.generate(requests)
        seconds = time.monotonic() - started
        rollouts = await asyncio.to_thread(rollouts_of, assignment, rules, requests, generations)
        data = await asyncio.to_thread(write_rollouts, rollouts)
        root = (await asyncio.to_thread(rollout_tree, rollouts)).root
        self.journal.save(index, checkpoint.step, checkpoint.anchor, root, data)
        tokens = sum(len(generation.tokens) for generation in generations)
        TOKENS.inc(tokens)
        log.info("generated", step=checkpoint.step, index=index, tokens=tokens, seconds=round(seconds, 3))
        failpoint("worker.generated")

    async def _deliver(self, entry: Entry) -> str:
        """Upload if that is not done, then commit; returns why it could not be, or ""."""
        if entry.state == "saved" and (reason := await self._upload(entry)):
            return reason
        failpoint("worker.uploaded")
        try:
            mined = await self.chain.commit_work(self.settings.run, entry.step, entry.anchor, entry.index, entry.root)
        except RevertError as error:
            if error.name not in STALE | PASSING:
                raise
            return str(error)
        failpoint("worker.committed")
        self.journal.committed(entry.index, mined.hash, mined.block)
        COMMITMENTS.inc()
        log.info("committed", step=entry.step, index=entry.index, tx=mined.hash, gas=mined.gas_used)
        return ""

    async def _upload(self, entry: Entry) -> str:
        try:
            data = await asyncio.to_thread(self.journal.data, entry)
        except StorageError as error:
            log.error("the finished file is lost", index=entry.index, error=str(error))
            return await self._discard(entry)
        try:
            receipt = await self.client.put_file(data, self.settings.run, entry.index, entry.root)
        except RefusedError as error:
            self._refusals += 1
            await asyncio.sleep(min(MAX_PAUSE_SECONDS, 2.0 ** min(self._refusals, 6) / 2))
            return f"the upload was refused: {error}"
        self._refusals = 0
        self._check(receipt, entry, len(data))
        self.journal.uploaded(entry.index, receipt)
        log.info("uploaded", step=entry.step, index=entry.index, file=entry.file_hash, bytes=len(data))
        return ""

    def _check(self, receipt: Receipt, entry: Entry, size: int) -> None:
        """The receipt is the run's storage's, and about this very work. Raises MismatchError."""
        expected = (self.settings.run, self.node, entry.index, hex_hash(entry.root), entry.file_hash, size)
        actual = (receipt.run, receipt.node, receipt.index, receipt.root, receipt.file_hash, receipt.size)
        if actual != expected:
            raise MismatchError("the storage's receipt is about something else", hint="nothing was committed")
        check_receipt(self.client.domain, receipt, self.terms.storage_key)

    async def _discard(self, entry: Entry) -> str:
        """Throw work away, once the chain has shown that it can no longer take it."""
        await self.chain.settle()
        if (await self.chain.work(self.node)).next != entry.index:
            return ""
        self.journal.discard(entry)
        log.info("discarded", step=entry.step, index=entry.index, reason="its step no longer counts")
        return ""

    async def _wait(self, reason: str) -> None:
        """Pause, saying why when that is news or was last said a while ago."""
        said, when = self._said
        if reason != said or time.monotonic() - when > SAY_AGAIN_SECONDS:
            log.info("waiting", reason=reason)
            self._said = reason, time.monotonic()
        await asyncio.sleep(self.settings.worker.poll_seconds)
