"""What verification takes: the chain for draws, the storage for files, a bounded parser, and the model for replays.

One context serves the inspector, the challenger, the juror and the commands that verify.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import Relays
from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_profile, make_rules
from muster.constants import SAMPLE_BLOCKS
from muster.contracts import masters
from muster.contracts.run_terms import Series
from muster.contracts.runs import WorkCommitted
from muster.errors import CheckError, UnreachableError
from muster.grading.envelope import KeyExchange
from muster.protocol.draws import Draw
from muster.protocol.eip712 import Domain
from muster.protocol.keys import RunKeys
from muster.protocol.masters import check_master, earlier_master, epoch_of
from muster.protocol.messages import Upload
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.settings.schema import Settings
from muster.shardcast.fetch.fetch import OnReceived
from muster.verification.evidence import check_signatures
from muster.verification.model import Model
from muster.verification.rules import CommittedWork, Rules


@dataclass
class RunMasters:
    """The masters of one run. What was learnt once stays in memory, and gives those of all earlier epochs."""

    chain: ChainReader
    client: OrchestratorClient
    run: int
    terms: Terms
    key: KeyExchange | None = None
    """This validator's; without one only what was revealed on chain is known."""
    _latest: tuple[int, bytes] = field(default=(0, b""), init=False, repr=False)

    async def get(self, epoch: int) -> bytes:
        """Return the master of an epoch, checked against the terms. Raises UnreachableError when no source has it."""
        if self._latest[0] < epoch:
            self._latest = await self._fetch(epoch)
        known, master = self._latest
        return earlier_master(master, known, epoch)

    async def revealed(self) -> tuple[int, bytes]:
        """Return the last epoch whose master is on chain, 0 for none, and that master."""
        shown = await self.chain.call(masters.masters(self.run, Series.GRADES))
        return shown.epochs, shown.latest

    async def _fetch(self, epoch: int) -> tuple[int, bytes]:
        shown, latest = await self.revealed()
        if shown >= epoch:
            return shown, latest
        if self.key is None:
            raise UnreachableError(
                f"the master of epoch {epoch} is not revealed yet", hint="only validators have it before its epoch ends"
            )
        try:
            master = await self.client.master(self.run, epoch, self.key)
            check_master(self.terms.grade_series, epoch, master)
        except CheckError as error:
            raise UnreachableError(
                f"the orchestrator gives no master of epoch {epoch}: {error}", hint="ask the run's owner"
            ) from error
        return epoch, master


@dataclass(frozen=True)
class RunVerificationContext:
    """What verifying the work of one run takes. Methods raise UnreachableError when they cannot help."""

    chain: ChainReader
    client: OrchestratorClient
    reader: RolloutReader
    model: Model
    rules: Rules
    tasks: RunTasks
    masters: RunMasters

    @property
    def domain(self) -> Domain:
        return self.client.domain

    async def draw(self, commitment: CommittedWork) -> Draw:
        """Draw what the rows of a commitment must be.

        Not cached: after a reorg the node draws by another entropy.
        """
        return self.rules.draw(await self.chain.draw_source(commitment.node), commitment.index)

    async def ensure_tasks(self, slots: Iterable[int], step: int) -> None:
        """Have the tasks here that these slots are at a step. Raises UnreachableError when they cannot be fetched.

        For inspecting. Evidence brings its own tasks.
        """
        try:
            await self.tasks.ensure_slots(slots, self.rules.at(step).task_set.epoch)
        except CheckError as error:
            raise UnreachableError(f"the tasks of the draw cannot be fetched: {error}", hint=error.hint) from error

    async def upload(self, commitment: CommittedWork) -> Upload:
        """Fetch an upload signed by storage and node. Raises RefusedError 404 when there is none, and CheckError."""
        c = commitment
        upload = await self.client.upload(c.run, c.node, c.index, c.root)
        check_signatures(upload, c, await self.keys(), self.domain)
        return upload

    async def keys(self) -> RunKeys:
        return await self.chain.keys(self.rules.run)

    async def file(self, name: str) -> bytes:
        """Fetch a rollout file by hash; RefusedError with status 404 when the storage says that it has none."""
        return await self.client.get_file(name)

    async def master(self, step: int) -> bytes | None:
        """Return the master of the private tests of a step; None in a run without any."""
        epoch = epoch_of(self.rules.terms.grade_series, step)
        return await self.masters.get(epoch) if epoch else None

    async def committed(self, node: str, index: int, block: int) -> CommittedWork | None:
        """Return the commitment of this number that a block holds, if it holds one and its rows are drawn by now."""
        run = self.rules.run
        head = await self.chain.head()
        if block + SAMPLE_BLOCKS > head.number:
            return None
        for event in await self.chain.events_under(head, [WorkCommitted], block, block):
            if isinstance(event, WorkCommitted) and (event.run, event.node, event.index) == (run, node, index):
                return CommittedWork.of(event)
        return None


async def make_context(
    settings: Settings,
    chain: ChainReader,
    client: OrchestratorClient,
    reader: RolloutReader,
    folder: Path,
    key: KeyExchange | None = None,
    on_received: OnReceived | None = None,
    step: int | None = None,
) -> RunVerificationContext:
    """Return the context of a run, with its files in `folder`. `key`: a validator's, who is given the masters.

    `on_received`: counts the weights that arrive. `step`: whose weights are fetched first, else the newest's.

    Raises UnreachableError while the orchestrator, a relay or a first checkpoint is missing, CheckError when one of
    them is not what the terms name.
    """
    terms = await chain.terms(settings.run)
    profile = await fetch_profile(client, terms, folder)
    if step is None:
        latest = await chain.latest_checkpoint(settings.run)
        if latest is None:
            raise UnreachableError(f"run {settings.run} has no checkpoint yet", hint="is its trainer running?")
        step = latest.step
    relays = Relays(settings.shardcast, client, settings.run)
    checkpoints = CheckpointFetcher(chain, terms, relays, folder / "weights", on_received)
    tasks = await RunTasks.fetch(client, terms, folder)
    checkpoint = await checkpoints.get(step)
    rules = await asyncio.to_thread(make_rules, chain, settings.run, terms, tasks, checkpoint)
    threads, matmul = settings.validator.threads, settings.bfloat16_matmul
    model = Model(checkpoints, profile, terms.temperature, threads=threads, matmul=matmul)
    masters = RunMasters(chain, client, settings.run, terms, key)
    return RunVerificationContext(chain, client, reader, model, rules, tasks, masters)
