"""One member of a chaos run, as a process: `python -m benchmarks.chaos_member --config FILE`.

What keeps the promises is the real thing: a worker's journal, committer and claimer, a validator's journal, outbox and
sealer, the trainer's publisher. Only what needs a model is left out: a worker's files are noise, a validator accepts a
file that it can fetch, and a trainer publishes noise. Everything that is signed or sent goes into the member's history
(`chaos_history`). Its folder is the one of its log file; its name says what it is: w1, v1, trainer.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from benchmarks.chaos_history import GONE, History
from muster.chain.client import Chain
from muster.chain.keys import load_signer
from muster.clients.node_session import NodeSession
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import runs
from muster.contracts.codec import Transaction
from muster.models.weights import EMBEDDING
from muster.protocol.draws import chain_preimages
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import UploadReceipt, Verdict
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from muster.runtime.journal import FolderLock
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop
from muster.runtime.process import STOP_SECONDS, run_process, run_together
from muster.settings.schema import Settings
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.fetch import FetchRequest, fetch_version
from muster.shardcast.format.store import verify_folder
from muster.verification.bundles import Inspection
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork
from testbed.weights.checkpoints import make_checkpoint
from trainer.accepted_work import accepted_files
from trainer.checkpoint import CheckpointMetadata
from trainer.following import RunFollower
from trainer.look_journal import LookJournal
from trainer.publisher import Publisher
from validator.inspector import Inspector
from validator.sealing import HourSealer
from validator.service import Validator
from worker.claimer import Claimer
from worker.committer import Committer
from worker.context import FATAL, WorkerContext
from worker.decisions import Entry, next_to_make, waiting_reason
from worker.journal import WorkJournal

LINKS: Final = 1 << 10
"""Of a validator's hash chain: one for each hour."""
PAUSE_SECONDS: Final = 0.5
FILE_BYTES: Final = (2_000, 20_000)
STEP_BLOCKS: Final = 12
"""Between two steps: more than a reorg replaces, as in a run on a public chain."""
MODEL_BYTES: Final = 200_000
BOUNDS: Final = FetchBounds(give_up_seconds=20, stall_seconds=5)
"""Of a fetch: faults last some seconds."""
ROWS: Final = 2
"""That a validator says it has replayed."""
OPERATIONS: Final = {
    "Runs.commitWork": ("commit", ("run", "step", "anchor", "index", "root")),
    "Runs.claim": ("claim", ("node", "through")),
    "Runs.publishCheckpoint": ("publish", ("run", "step", "root", "batch_root")),
    "Runs.seal": ("seal", ("run", "hour", "vouch_root", "link")),
}
"""By a transaction's label: the operation in the history, and the names of its arguments."""

log = telemetry.logger("chaos")


def links_of(secret: str) -> list[bytes]:
    """Return the links of a validator's hash chain, front to back, from its key."""
    return chain_preimages(hashlib.sha256(secret.encode()).digest(), LINKS)


# --- What is recorded


class RecordedChain(Chain):
    """A chain whose transactions are recorded."""

    history: History

    async def send(self, transaction: Transaction) -> Any:
        operation, names = OPERATIONS.get(transaction.label, (transaction.label, ()))
        given = dict(zip(names, transaction.arguments, strict=False))
        what = {name: hex_hash(value) if isinstance(value, bytes) else value for name, value in given.items()}
        with self.history.request(operation, **({"node": self.signer.address} | what)) as more:
            mined = await super().send(transaction)
            more |= {"block": mined.block, "transaction": "0x" + mined.hash.hex()}
        return mined


class RecordedClient(OrchestratorClient):
    """An orchestrator's client whose signed writes are recorded."""

    history: History

    async def put_file(
        self, data: bytes, run: int, index: int, root: bytes | str, name: str | None = None
    ) -> UploadReceipt:
        with self.history.request("upload", index=index, root=hex_hash(root), file=name or content_hash(data)):
            return await super().put_file(data, run, index, root, name)

    async def post_verdict(self, verdict: Verdict) -> None:
        names = ("validator", "node", "index", "root", "accepted")
        with self.history.request("verdict", **{name: getattr(verdict, name) for name in names}):
            await super().post_verdict(verdict)


class RecordedJournal(WorkJournal):
    """A worker's journal that reports what will not be committed."""

    history: History
    node: str

    def discard(self, entry: Entry) -> None:
        self.history.note(GONE, node=self.node, index=entry.index, root=hex_hash(entry.root))
        super().discard(entry)


async def serve(settings: Settings) -> None:
    """Be this member until cancelled."""
    assert settings.log.file is not None
    folder = settings.log.file.parent
    history = History(folder / "history.jsonl", settings.name)
    signer = load_signer(settings.keys, settings.chain.chain_id)
    roles = {"w": _work, "v": _validate, "t": _train}
    with FolderLock(folder / "state"):
        connect = RecordedChain.connect(settings.chain, signer, journal_folder=folder / "state" / "transactions")
        async with (
            await connect as chain,
            RecordedClient.on_chain(settings.orchestrator.url, chain, signer) as client,
        ):
            assert isinstance(chain, RecordedChain)
            chain.history = client.history = history
            await PollLoop(log, "transactions", PAUSE_SECONDS).until_done(chain.await_pending)
            log.info("ready", node=signer.address)
            await roles[settings.name[0]](settings, NodeSession(chain, client), folder, history)


# --- A worker


async def _work(settings: Settings, session: NodeSession, folder: Path, history: History) -> None:
    terms = await session.chain.terms(settings.run)
    RecordedJournal.history, RecordedJournal.node = history, session.node
    with closing(RecordedJournal(folder / "state", session.identity)) as journal:
        context = WorkerContext(settings, session.chain, session.client, terms, CPU_FP32, journal)
        claimer, weights = Claimer(context), Weights(settings, session.chain, folder, history)
        await run_together(
            PollLoop(log, "make", float(os.environ["MAKE_SECONDS"])).run(lambda: _make(context)),
            PollLoop(log, "commit", PAUSE_SECONDS, fatal=FATAL).run(Committer(context, claimer).poll, context.saved),
            PollLoop(log, "claim", PAUSE_SECONDS).run(claimer.poll),
            PollLoop(log, "weights", PAUSE_SECONDS).run(weights.poll),
        )


async def _make(context: WorkerContext) -> Next:
    """Make the file of the next index that has none, as the engine would."""
    facts = await context.facts()
    step = facts.state.steps - 1
    if waiting_reason(facts) or step < facts.oldest_step:
        return IDLE
    index = next_to_make(facts.work.next, context.journal.indices(facts.work.next))
    anchor = await context.anchor(step, facts)
    if index is None or anchor is None:
        return IDLE
    root, data = os.urandom(32), os.urandom(random.randint(*FILE_BYTES))
    context.journal.save(index, step, anchor, root, data)
    context.saved.set()
    return IDLE


class Weights:
    """Fetches every newest step, through relays that may lie, and checks what it fetched."""

    def __init__(self, settings: Settings, chain: Chain, folder: Path, history: History) -> None:
        self._settings, self._chain, self._folder, self._history = settings, chain, folder / "weights", history
        self._step = -1
        self._path: Path | None = None

    async def poll(self) -> Next:
        run = self._settings.run
        step = (await self._chain.call(runs.run_state(run))).steps - 1
        if step < 1 or step == self._step:  # step 0 was published without weights
            return IDLE
        root = (await self._chain.checkpoint(run, step)).manifest_root
        with self._history.request("fetch", step=step, root=hex_hash(root)) as more:
            relays = self._settings.shardcast.relays
            fetched = await fetch_version(FetchRequest(root, run, step, relays, self._folder, BOUNDS))
            more["problems"] = list(map(str, (await asyncio.to_thread(verify_folder, fetched.path, root)).problems))
        if self._path is not None:
            await asyncio.to_thread(shutil.rmtree, self._path, ignore_errors=True)
        self._step, self._path = step, fetched.path
        return IDLE


# --- A validator


class FileInspector(Inspector):
    """Accepts what it can fetch, and waits for what it cannot."""

    client: OrchestratorClient

    @classmethod
    def of(cls, validator: Validator) -> FileInspector:
        without: Any = validator.client  # of the context only the domain is used, and of the pool nothing
        made = cls(without, validator.chain.signer, without)
        made.client = validator.client
        return made

    async def inspect(self, commitment: CommittedWork, link: bytes, **_: object) -> Inspection:
        c = commitment
        upload = await self.client.upload(c.run, c.node, c.index, c.root)
        await self.client.get_file(upload.receipt.file_hash)
        return Inspection(upload=upload, replayed=ROWS)


class ChaosValidator(Validator):
    """A validator without a model, court and jury."""

    async def run(self) -> None:
        poll = self.settings.chain.poll_seconds
        with closing(self.journal):
            await PollLoop(log, "registration", poll).until_done(self.check_registration)
            inspector = FileInspector.of(self)
            sealer = HourSealer(self.chain, self.journal, self.settings.run, self.link_of)
            await run_together(
                PollLoop(log, "follow", poll).run(self.follow),
                PollLoop(log, "inspect", poll).run(lambda: self._inspect(inspector), self._news),
                PollLoop(log, "report", poll).run(lambda: self._at_head(self.report), self._judged),
                PollLoop(log, "seal", PAUSE_SECONDS).run(lambda: self._seal(sealer)),
            )


async def _validate(settings: Settings, session: NodeSession, folder: Path, _: History) -> None:
    assert settings.keys.raw_key_file is not None
    links = links_of(settings.keys.raw_key_file.read_text().strip().removeprefix("0x"))
    async with RolloutReader() as reader:
        await ChaosValidator(settings, session, reader, links).run()


# --- The trainer


async def _train(settings: Settings, session: NodeSession, folder: Path, history: History) -> None:
    terms = await session.chain.terms(settings.run)
    publisher = Publisher(settings, session.chain, session.client, terms)
    with LookJournal(folder / "looks", session.identity, settings.run) as journal:
        follower = RunFollower(session.chain, session.client, settings.run, terms, journal)
        trainer = Trainer(settings, session, publisher, follower, folder, history)
        await PollLoop(log, "train", PAUSE_SECONDS).run(trainer.poll)


class Trainer:
    """Publishes a step every STEP_BLOCKS blocks. What step comes next, the chain says."""

    def __init__(
        self,
        settings: Settings,
        session: NodeSession,
        publisher: Publisher,
        follower: RunFollower,
        folder: Path,
        history: History,
    ) -> None:
        self._settings, self._chain, self._follower = settings, session.chain, follower
        self._publisher, self._folder, self._history = publisher, folder / "steps", history
        self._last_block = 0
        self._used = set[str]()
        """Files that lately went into a batch."""

    async def poll(self) -> Next:
        await self._publisher.anchor_again()
        head = (await self._chain.head()).number
        if head < self._last_block + STEP_BLOCKS:
            return IDLE
        run = self._settings.run
        step = (await self._chain.call(runs.run_state(run))).steps
        model = self._folder / f"{step:06d}"
        await asyncio.to_thread(write_step, model, step)
        await self._follower.follow()
        works = accepted_files(self._follower.journal, max(step - 1, 0), (), self._follower.terms)
        metadata = CheckpointMetadata(step, tuple(work for work in works if work.file_hash not in self._used))
        await self._publisher.publish(metadata, model, None)
        self._last_block, self._used = head, {work.file_hash for work in works}
        shutil.rmtree(self._folder / f"{step - 2:06d}", ignore_errors=True)
        with self._history.request("report", step=step):
            await self._publisher.report(metadata, {"reward": 0.5}, {}, finished=False)
        return AGAIN


def write_step(folder: Path, step: int) -> None:
    """Write what nodes take for a checkpoint: a small head, and MODEL_BYTES of noise that nobody reads."""
    make_checkpoint(folder)
    noise = np.random.default_rng(step).integers(256, size=MODEL_BYTES, dtype=np.uint8)
    save_file({"noise": noise, EMBEDDING: np.ones((4, 2), np.float32)}, folder / "model.safetensors")


if __name__ == "__main__":
    sys.exit(run_process("benchmarks.chaos_member", "A member of a chaos run.", serve, stop_seconds=STOP_SECONDS))
