"""An orchestrator and an explorer over a synthetic run: real processes over a real chain that ends with the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from muster.clients.storage import ContentStore
from muster.constants import MICRO, TOKEN
from muster.models.files import tokenizer_hash
from muster.protocol.hashes import content_hash
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from testbed.big_run.fill import MARK, fill, fill_beside
from testbed.big_run.rows import Members, Rows
from testbed.big_run.shape import ACCEPTED, Shape, Work
from testbed.chain.anvil import Anvil
from testbed.processes import ended
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.samples.terms import terms_of
from testbed.samples.texts import save_tokenizer, written_row

BLOCK_SECONDS: Final = 2
TERMS: Final[dict[str, Any]] = {
    "accepts_required": 1,
    "max_completion_tokens": 8_192,
    "groups_per_commitment": 8,
    "worker_stake": 4_000 * TOKEN,  # covers what a busy worker commits to in the window
}

Text = tuple[str, str]
"""A prompt and a completion."""
WRITTEN: Final = 4
"""Of the first accepted files, and of the last, as many are there to be read; of all others only their hash is."""


@dataclass
class BigRun:
    """A synthetic run, its orchestrator and an explorer, which are not started yet."""

    shape: Shape
    run_fixture: RunFixture
    orchestrator: Orchestrator
    explorer: Explorer
    rows: Rows
    written: list[str]
    """Hashes of the files that can be read, oldest first."""
    anvil: Anvil

    @property
    def host(self) -> str:
        """Return the explorer's host and port."""
        return self.explorer.host

    def start(self) -> None:
        """Start both, and wait until pages are up to date."""
        self.orchestrator.start()
        self.explorer.start()

    def key_name(self, worker: int) -> str:
        """Return the name by which `run_fixture` has a worker's key."""
        return _worker(worker)


def _worker(number: int) -> str:
    return f"worker {number}"


@contextmanager
def big_run(
    folder: Path,
    shape: Shape,
    say: Callable[[str], None] = lambda _: None,
    *,
    texts: Sequence[Text] = (),
    **settings: object,
) -> Iterator[BigRun]:
    """Yield a run on a separate chain, which mines a block every two seconds. Making a full one takes minutes.

    say: is called with how far it is; texts: of the rollouts that can be read, again and again; sums by default.
    settings: of the orchestrator.
    """
    with Anvil() as anvil:
        changes = {**TERMS, "tokenizer_hash": tokenizer_hash(save_tokenizer(folder / "run").parent)}
        run_fixture = asyncio.run(RunFixture.build_on(anvil, folder, seed="big", workers=(), **changes))
        run_fixture.mine_every(BLOCK_SECONDS, anvil)
        orchestrator = Orchestrator(run_fixture, folder / "orchestrator", run_folder=folder / "run", **settings)
        explorer = Explorer(run_fixture, folder / "explorer", orchestrator.url)
        # The run ends at the newest block, from which on both follow the chain.
        head = anvil.request("eth_getBlockByNumber", "latest", False)
        number, now = int(head["number"], 16), int(head["timestamp"], 16)
        terms = terms_of(**changes)
        work = Work(shape, now, number)
        written = asyncio.run(_write_files(work, terms, run_fixture.run, folder / "orchestrator" / "storage", texts))
        rows = Rows(shape, work, _members(run_fixture, shape), terms)
        database = folder / "orchestrator" / "orchestrator.db"
        fill(database, run_fixture.about, (number, head["hash"]), rows, say)
        fill_beside(explorer.database, explorer.about, database, rows, say)
        marks, name = ContentStore(f"file:{folder / 'orchestrator' / 'storage'}", "marks"), run_fixture.about.encode()
        asyncio.run(marks.set_mark(content_hash(name), MARK))  # nothing is to be read from storage
        with ended(orchestrator, explorer):
            yield BigRun(shape, run_fixture, orchestrator, explorer, rows, written, anvil)


async def _write_files(work: Work, terms: Terms, run: int, storage: Path, texts: Sequence[Text]) -> list[str]:
    """Write some files into storage, and let commitments be of them; return their hashes, oldest first."""
    accepted = np.flatnonzero(work.status == ACCEPTED)
    store, names = ContentStore(f"file:{storage}"), list[str]()
    for place in dict.fromkeys([*accepted[:WRITTEN].tolist(), *accepted[-WRITTEN:].tolist()]):
        some = [texts[row % len(texts)] if texts else _sum(place + row, 3 * row + 2) for row in range(terms.positions)]
        columns = {"run": run, "step": int(work.step[place]), "group_size": terms.group_size, "task_reward": MICRO // 2}
        rows = [written_row(row, *text, seed=(place << 16) + row, **columns) for row, text in enumerate(some)]
        data = write_rollouts(rows)
        name = await store.put(data)
        work.file_hash[place], work.root[place] = name, f"0x{rollout_tree(rows).root.hex()}"
        work.size[place], work.tokens[place] = len(data), sum(len(text) for _, text in some)
        names.append(name)
    return names


def _sum(a: int, b: int) -> Text:
    return f"What is {a} + {b}?", f"{a} and {b} make {a + b}.</think>{a + b}"


def _members(run_fixture: RunFixture, shape: Shape) -> Members:
    workers = [str(run_fixture.key(_worker(number)).address) for number in range(shape.workers)]
    validators = [str(run_fixture.key(f"validator {number}").address) for number in range(shape.validators)]
    operators = [str(run_fixture.key(f"operator {number}").address) for number in range(1 + shape.nodes // 2)]
    owned = {node: operators[number // 2] for number, node in enumerate([*workers, *validators])}
    return Members(run_fixture.run, str(run_fixture.key("trainer").address), workers, validators, owned)
