"""What checking takes: the chain for draws, the storage for files, a bounded parser, and the model for replays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from muster.chain.contracts import registry
from muster.chain.reads import ChainReader
from muster.draws import Draw
from muster.errors import UnreachableError
from muster.evidence import check_signatures
from muster.http import OrchestratorClient
from muster.inspection import Commitment, Finding, Rules
from muster.messages import Upload
from muster.profiles import profile_by_hash
from muster.relays import Relays
from muster.rollouts.file import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.run_data import Checkpoints, fetch_task_set, make_rules
from muster.settings import Settings
from validator.model import Model


@dataclass(frozen=True)
class RunBench:
    """The bench of one run: a `muster.evidence.Bench`, used for this validator's own inspections too."""

    chain: ChainReader
    client: OrchestratorClient
    reader: RolloutReader
    model: Model
    rules: Rules

    async def draw(self, commitment: Commitment) -> Draw:
        """What the rows of a commitment must be. Asked anew each time: after a reorg a step has another entropy."""
        node, checkpoint = await asyncio.gather(
            self.chain.ask(registry.node(commitment.node)), self.chain.checkpoint(self.rules.run, commitment.step)
        )
        return self.rules.draw(commitment, checkpoint.entropy, node.work_class)

    async def upload(self, commitment: Commitment) -> Upload:
        """The upload of a commitment, signed by storage and node; RefusedError 404 when there is none, CheckError."""
        c = commitment
        upload = await self.client.upload(c.run, c.node, c.index, c.root)
        check_signatures(upload, c, self.rules.terms.storage_key, self.client.domain)
        return upload

    async def file(self, name: str) -> bytes:
        return await self.client.get_file(name)

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return await self.reader.read(data, limits)

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[Finding | None]:
        return await self.model.findings(step, rollouts)


async def make_bench(
    settings: Settings, chain: ChainReader, client: OrchestratorClient, reader: RolloutReader, folder: Path
) -> RunBench:
    """Everything that checking takes, kept in `folder`; needs the orchestrator, a relay and a first checkpoint.

    Raises UnreachableError while one of them is missing, CheckError when one of them is not what the terms name.
    """
    terms = await chain.terms(settings.run)
    profile = profile_by_hash(terms.profile)
    latest = await chain.latest_checkpoint(settings.run)
    if latest is None:
        raise UnreachableError(f"run {settings.run} has no checkpoint yet", hint="is its trainer running?")
    relays = Relays(settings.shardcast, client, settings.run)
    checkpoints = Checkpoints(chain, settings.run, terms, relays, settings.shardcast, folder / "weights")
    task_set = await fetch_task_set(client, terms, folder)
    checkpoint = await checkpoints.get(latest.step)
    rules = await asyncio.to_thread(make_rules, chain, settings.run, terms, task_set, checkpoint)
    model = Model(checkpoints, profile, terms.temperature, threads=settings.validator.threads)
    return RunBench(chain, client, reader, model, rules)
