"""What a node needs of a run besides the chain: its tasks, its tokenizer and its checkpoints, all of them checked.

Everything is named by a hash that is on chain, so any source will do: the task set by `Terms.task_root`,
each checkpoint by the manifest root of its step, and whatever is not weights in it by `Terms.tokenizer_hash`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Final

from muster.chain.reads import ChainReader
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import Relays
from muster.environments.scoring import Scorers
from muster.errors import CheckError, MismatchError, MusterError
from muster.models.files import load_tokenizer, tokenizer_hash
from muster.models.weights import check_scale
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.runtime.files import write_durably
from muster.sandbox.component import MAX_COMPONENT_BYTES, find_component, keep_component
from muster.shardcast.fetch.bounds import DEFAULT_BOUNDS, FetchBounds
from muster.shardcast.fetch.delta_fetch import fetch_step
from muster.shardcast.fetch.download import Progress
from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.fetch.sources import SourceReport
from muster.shardcast.format.store import prune, touch, used, version_path
from muster.tasksets.document import MAX_DOCUMENT_BYTES
from muster.tasksets.packs import MAX_STORED_BYTES
from muster.tasksets.taskset import COMPONENTS_NAME, DOCUMENT_NAME, TaskSet
from muster.verification.calibration import MAX_DOCUMENT, check_calibration, parse_calibration, read_document
from muster.verification.profiles import Profile, known_profile
from muster.verification.rules import ModelFacts, Rules

NEWEST: Final = 2
"""Newest steps that are not deleted for an older one: the current one, and what the next is made of."""

LOG_SECONDS: Final = 5.0
"""Between two log lines about one fetch."""

_log = telemetry.logger("weights")


class RunTasks:
    """The task set of a run, and what scores it: the document at once, shards and components as they are needed.

    Everything is kept in a folder of the node, so that a restart fetches nothing.
    """

    def __init__(self, client: OrchestratorClient, task_set: TaskSet) -> None:
        self._client = client
        self.task_set = task_set
        self.components = task_set.folder / COMPONENTS_NAME

    @classmethod
    async def fetch(cls, client: OrchestratorClient, terms: Terms, folder: Path) -> RunTasks:
        """Fetch the document, and the components that its environments score by.

        Raises as `OrchestratorClient.get_file`, and CheckError when what came is not what the terms name.
        """
        path = task_set_path(terms, folder)
        if not (path / DOCUMENT_NAME).exists():
            data = await client.get_file(terms.task_root, MAX_DOCUMENT_BYTES)
            task_set = await asyncio.to_thread(TaskSet.receive, path, data, terms.task_root)
        else:
            task_set = await asyncio.to_thread(TaskSet.open, path, terms.task_root)
        if task_set.size != terms.task_count:
            raise MismatchError(f"the task set has {task_set.size} slots, the run's terms say {terms.task_count}")
        if task_set.document.epochs != terms.grade_epochs:
            sealed = f"is sealed for {task_set.document.epochs} epochs"
            raise MismatchError(f"the task set {sealed}, the run's terms say {terms.grade_epochs}")
        task_set.document.check_tools(terms.tools_root)
        tasks = cls(client, task_set)
        await tasks._fetch_components()
        return tasks

    async def ensure_slots(self, slots: Iterable[int], epoch: int) -> None:
        """Fetch the shards that the tasks of these slots in an epoch lie in, where they are not here."""
        await self._fetch_shards(self.task_set.at(epoch).missing(slots))

    async def ensure_held_out(self) -> None:
        """Fetch the shards of the held-out tasks, where they are not here."""
        await self._fetch_shards(self.task_set.missing_held_out())

    async def ensure_all(self) -> None:
        """Fetch every shard of training and held-out tasks that is not here."""
        await self._fetch_shards(self.task_set.missing())
        await self.ensure_held_out()

    async def _fetch_shards(self, names: Sequence[str]) -> None:
        for name in names:
            data = await self._client.get_file(name, MAX_STORED_BYTES)
            await asyncio.to_thread(self.task_set.put_shard, name, data)

    async def _fetch_components(self) -> None:
        document = self.task_set.document
        parts = (*document.parts, *document.held_out)
        for name in dict.fromkeys(name for part in parts for name in part.environment.components):
            try:
                await asyncio.to_thread(find_component, name, self.components)
            except CheckError:
                data = await self._client.get_file(name, MAX_COMPONENT_BYTES)
                await asyncio.to_thread(keep_component, name, data, self.components)


async def fetch_rollouts(
    client: OrchestratorClient, reader: RolloutReader, name: str, root: bytes, terms: Terms
) -> list[Rollout]:
    """Return the rows of a commitment's file. Raises MismatchError where they have another root, and as both do."""
    rows = await reader.read(await client.get_file(name), FileLimits.from_terms(terms))
    if (await asyncio.to_thread(rollout_tree, rows)).root != root:
        raise MismatchError("the file is not what was committed to")
    return rows


async def fetch_profile(client: OrchestratorClient, terms: Terms, folder: Path) -> Profile:
    """Return what the run's work is judged by: a profile that is known here, or the run's own calibration of one.

    The calibration is kept in `folder`. Raises as `OrchestratorClient.get_file`, `parse_calibration` and
    `check_calibration`.
    """
    if (known := known_profile(terms.profile)) is not None:
        return known
    path = folder / f"calibration-{terms.profile.hex()}.json"
    data = await asyncio.to_thread(read_document, path) if path.exists() else b""
    fetched = hash_bytes(content_hash(data)) != terms.profile  # not there yet, or damaged
    if fetched:
        data = await client.get_file(terms.profile, MAX_DOCUMENT)
    if hash_bytes(content_hash(data)) != terms.profile:
        raise MismatchError("what storage sent is not the calibration that the run's terms name")
    calibration = parse_calibration(data)
    check_calibration(calibration, terms.model_hash, terms.temperature_micro)
    if fetched:
        await asyncio.to_thread(write_durably, path, data)
    return calibration.to_profile()


def task_set_path(terms: Terms, folder: Path) -> Path:
    """Return the folder in which `RunTasks` keeps it."""
    return folder / f"tasks-{terms.task_root.hex()}"


def make_rules(chain: ChainReader, run: int, terms: Terms, tasks: RunTasks, checkpoint: Path) -> Rules:
    """Return the rules of a run, with tokenizer and model facts from any of its checkpoints. Blocks.

    The caller closes their scorers. Raises as `Rules.check_tools`.
    """
    rules = Rules(
        chain_id=chain.chain_id,
        runs=chain.addresses.runs,
        run=run,
        terms=terms,
        task_set=tasks.task_set,
        scorers=Scorers(tasks.components),
        tokenizer=load_tokenizer(checkpoint),
        model=ModelFacts.read(checkpoint),
    )
    rules.check_tools()
    return rules


@dataclass(eq=False)
class CheckpointFetcher:
    """The checkpoints of a run on this machine's disk: fetched on request, the ones used last are kept.

    Where a source offers it, only the difference to a step that is here is fetched.

    Calls for different steps may run side by side. A path stays valid while fewer than `kept` others are requested,
    while it is `used`, and while it is one of the newest steps requested. An old step, and what it is made of, replaces
    other old ones only. So the disk holds at most `kept`, the NEWEST besides, and what is in use.
    """

    chain: ChainReader
    terms: Terms
    relays: Relays
    folder: Path
    _: KW_ONLY
    bounds: FetchBounds = DEFAULT_BOUNDS
    kept: int = 4
    """Versions that stay on disk, besides the two newest steps and what is in use."""

    def __post_init__(self) -> None:
        self._verified: dict[int, tuple[bytes, Path]] = {}
        self._newest: dict[int, bytes] = {}
        """The newest steps that were requested, by step, and their roots."""

    async def get(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, verified against the chain.

        Raises as `muster.shardcast.fetch` and `Relays.urls`, MismatchError when it is not of the model that the terms
        promise, and MalformedError when no work of it could be judged.
        """
        return await self._get(step, await self._anchored(step))

    async def _get(self, step: int, root: bytes) -> Path:
        known = self._verified.get(step)
        if known and known[0] == root and known[1].is_dir():
            await asyncio.to_thread(touch, known[1])
            return known[1]
        with used(version_path(self.folder, root)):
            path = await self._fetch(root, step)
            await asyncio.to_thread(touch, path)
            self._newest = dict(sorted([*self._newest.items(), (step, root)])[-NEWEST:])
            newest = list(self._newest.values())
            await asyncio.to_thread(prune, self.folder, self.kept, newest)
        await asyncio.to_thread(check_fixed, path, step, self.terms)
        await asyncio.to_thread(check_scale, path, self.terms.temperature)
        self._verified[step] = root, path
        return path

    @asynccontextmanager
    async def used(self, step: int) -> AsyncIterator[Path]:
        """Yield what `get` returns, and keep the folder until left, however many other steps are requested."""
        root = await self._anchored(step)
        with used(version_path(self.folder, root)):
            yield await self._get(step, root)

    async def _fetch(self, root: bytes, step: int) -> Path:
        """Fetch from the current relays, and tell them what each source did, also where the fetch fails."""
        sources: list[SourceReport] = []
        urls = await self.relays.urls()
        _log.info("fetching", step=step, sources=urls)
        logged_at = -LOG_SECONDS  # the first time at once: it says how much there is to fetch

        def log_progress(state: Progress) -> None:
            nonlocal logged_at
            if time.monotonic() - logged_at >= LOG_SECONDS:
                logged_at = time.monotonic()
                _log.info("fetching", step=step, arrived=str(state))

        request = FetchRequest(
            root,
            self.relays.run,
            step,
            urls,
            self.folder,
            public=self.relays.public,
            bounds=replace(self.bounds, download_rate=self.relays.settings.download_rate),
            progress=log_progress,
            on_source=sources.append,
        )
        try:
            fetched = await fetch_step(request, self._anchored)
        except MusterError:
            self.relays.expire()
            await self.relays.report(root, sources)
            raise
        await self.relays.report(root, sources)
        return fetched.path

    async def _anchored(self, step: int) -> bytes:
        return (await self.chain.checkpoint(self.relays.run, step)).manifest_root


def check_fixed(checkpoint: Path, step: int, terms: Terms) -> None:
    """Check that tokenizer and configuration are those of the terms. Raises MismatchError.

    A trainer that changed the configuration (a stop token, say) between two steps could make honest nodes disagree
    with each other.
    """
    actual = tokenizer_hash(checkpoint)
    if actual != terms.tokenizer_hash:
        raise MismatchError(
            f"step {step} has a tokenizer or configuration 0x{actual.hex()}, "
            f"the run's terms name 0x{terms.tokenizer_hash.hex()}",
            hint="the trainer publishes another model than it promised: do not work for this run",
        )
