"""What a node needs of a run besides the chain: its tasks, its tokenizer, and its checkpoints, all of them checked.

Everything is named by a hash that is on chain, so it does not matter who serves it: the task set by `Terms.task_root`,
each checkpoint by the manifest root of its step, and whatever is not weights in it by `Terms.tokenizer_hash`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.chain.reads import ChainReader
from muster.errors import MismatchError, MusterError
from muster.files import write_durably
from muster.http import OrchestratorClient
from muster.inspection import ModelFacts, Rules
from muster.model_files import load_tokenizer, tokenizer_hash
from muster.relays import Relays
from muster.settings import ShardcastSettings
from muster.shardcast.catch_up import fetch_step
from muster.shardcast.client import limits_of
from muster.shardcast.folder import prune, touch
from muster.shardcast.sources import SourceReport
from muster.tasks import TaskSet, load_task_set
from muster.terms import Terms


async def fetch_task_set(client: OrchestratorClient, terms: Terms, folder: Path) -> TaskSet:
    """The run's task set, kept in `folder`. Raises as `OrchestratorClient.get_file` and `load_task_set`."""
    path = task_set_path(terms, folder)
    if not path.exists():
        data = await client.get_file(terms.task_root)
        await asyncio.to_thread(write_durably, path, data)
    task_set = await asyncio.to_thread(load_task_set, path, terms.task_root)
    if task_set.size != terms.task_count:
        raise MismatchError(f"the task set has {task_set.size} tasks, the run's terms say {terms.task_count}")
    return task_set


def task_set_path(terms: Terms, folder: Path) -> Path:
    """Where `fetch_task_set` keeps it."""
    return folder / f"tasks-{terms.task_root.hex()}.jsonl"


def make_rules(chain: ChainReader, run: int, terms: Terms, task_set: TaskSet, checkpoint: Path) -> Rules:
    """The rules of a run, with the tokenizer and the model's facts from any of its checkpoints. Blocks."""
    return Rules(
        chain_id=chain.chain_id,
        runs=chain.addresses.runs,
        run=run,
        terms=terms,
        task_set=task_set,
        tokenizer=load_tokenizer(checkpoint),
        model=ModelFacts.read(checkpoint),
    )


class Checkpoints:
    """The checkpoints of a run on this machine's disk: fetched when asked for, the ones used last are kept.

    What has changed since one that is here is fetched rather than everything, where somebody offers that.

    Calls for different steps may run side by side. A path stays valid while fewer than `keep_versions` others are
    asked for, and as long as it is `held`.
    """

    def __init__(
        self,
        chain: ChainReader,
        run: int,
        terms: Terms,
        relays: Relays,
        settings: ShardcastSettings,
        folder: Path,
    ) -> None:
        self._chain = chain
        self._run = run
        self._terms = terms
        self._relays = relays
        self._settings = settings
        self._folder = folder
        self._verified: dict[int, tuple[bytes, Path]] = {}
        self._wanted: Counter[bytes] = Counter()
        """Roots of versions that are being fetched or held, and how often."""

    async def get(self, step: int) -> Path:
        """The folder of a step's checkpoint, verified against the chain.

        Raises as `muster.shardcast.fetch` and `Relays.urls`, and MismatchError when it is not of the model that the
        terms promise.
        """
        root = await self._anchored(step)
        known = self._verified.get(step)
        if known and known[0] == root and known[1].is_dir():
            await asyncio.to_thread(touch, known[1])
            return known[1]
        with self.held(root):
            path = await self._fetch(root, step)
            await asyncio.to_thread(touch, path)
            await asyncio.to_thread(prune, self._folder, self._settings.keep_versions, set(self._wanted))
        await asyncio.to_thread(check_fixed, path, step, self._terms)
        self._verified[step] = root, path
        return path

    async def _fetch(self, root: bytes, step: int) -> Path:
        """Fetch from the relays of the moment, and tell who lied: also where nobody else delivered."""
        liars: list[SourceReport] = []
        try:
            fetched = await fetch_step(
                root,
                self._run,
                step,
                await self._relays.urls(),
                self._folder,
                anchored=self._anchored,
                limits=limits_of(self._settings),
                lied=liars.append,
            )
        except MusterError:
            self._relays.doubt()
            await self._relays.report(root, liars)
            raise
        await self._relays.report(root, liars)
        return fetched.path

    @contextmanager
    def held(self, root: bytes) -> Iterator[None]:
        """Keep the version with this manifest root on the disk meanwhile, however many others are asked for."""
        self._wanted[root] += 1
        try:
            yield
        finally:
            self._wanted[root] -= 1
            self._wanted += Counter()  # forget what nobody holds any more

    async def _anchored(self, step: int) -> bytes:
        return (await self._chain.checkpoint(self._run, step)).manifest_root


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
