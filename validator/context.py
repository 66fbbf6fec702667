"""What verification takes: the chain for draws, the storage for files, a bounded parser, and the model for replays.

One context serves the inspector, the challenger, the juror and the commands that verify.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from muster.chain.reads import ChainReader
from muster.clients.model import Model
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import Relays
from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_profile, make_rules
from muster.constants import SAMPLE_BLOCKS
from muster.contracts.runs import WorkCommitted
from muster.errors import CheckError, UnreachableError
from muster.protocol.draws import Draw
from muster.protocol.eip712 import Domain
from muster.protocol.keys import RunKeys
from muster.protocol.messages import Upload
from muster.rollouts.reader import RolloutReader
from muster.settings.schema import Settings
from muster.verification.evidence import check_signatures
from muster.verification.rules import CommittedWork, Rules


@dataclass(frozen=True)
class RunVerificationContext:
    """What verifying the work of one run takes. Methods raise UnreachableError when they cannot help."""

    chain: ChainReader
    client: OrchestratorClient
    reader: RolloutReader
    model: Model
    rules: Rules
    tasks: RunTasks

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
        """Fetch an upload signed by storage and node. Raises NotFoundError when there is none, and CheckError."""
        c = commitment
        upload = await self.client.upload(c.run, c.node, c.index, c.root)
        check_signatures(upload, c, await self.keys(), self.domain)
        return upload

    async def keys(self) -> RunKeys:
        return await self.chain.keys(self.rules.run)

    async def file(self, name: str) -> bytes:
        """Fetch a rollout file by hash; NotFoundError when the storage says that it has none."""
        return await self.client.get_file(name)

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
    step: int | None = None,
) -> RunVerificationContext:
    """Return the context of a run, with its files in `folder`.

    `step`: whose weights are fetched first, else the newest's.

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
    checkpoints = CheckpointFetcher(chain, terms, relays, folder / "weights")
    tasks = await RunTasks.fetch(client, terms, folder)
    checkpoint = await checkpoints.get(step)
    rules = await asyncio.to_thread(make_rules, chain, settings.run, terms, tasks, checkpoint)
    threads, matmul = settings.validator.threads, settings.bfloat16_matmul
    model = Model(checkpoints, profile, terms.temperature, threads=threads, matmul=matmul)
    return RunVerificationContext(chain, client, reader, model, rules, tasks)
