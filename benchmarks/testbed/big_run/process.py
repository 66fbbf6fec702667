"""An orchestrator over a synthetic run: a real process over a real chain, whose head is where the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.testbed.anvil import Anvil
from benchmarks.testbed.big_run.fill import fill
from benchmarks.testbed.big_run.rows import Members, Rows
from benchmarks.testbed.big_run.shape import Shape, Work
from benchmarks.testbed.run_fixture import Orchestrator, RunFixture, deploy_on, terms_of

BLOCK_SECONDS: Final = 2
TERMS: Final[dict[str, Any]] = {"accepts_required": 1, "max_completion_tokens": 8_192, "groups_per_commitment": 8}


@dataclass
class BigRun:
    """A synthetic run and its orchestrator, which is not started yet."""

    shape: Shape
    run_fixture: RunFixture
    orchestrator: Orchestrator
    rows: Rows

    def key_name(self, worker: int) -> str:
        """Return the name by which `run_fixture` has a worker's key."""
        return _worker(worker)


def _worker(number: int) -> str:
    return f"worker {number}"


@contextmanager
def big_run(
    folder: Path, shape: Shape, say: Callable[[str], None] = lambda _: None, extra: str = ""
) -> Iterator[BigRun]:
    """Yield a run on a chain of its own, which mines a block every two seconds. Making a full one takes minutes.

    say: is told how far it is; extra: lines for the orchestrator's settings.
    """
    with Anvil.start() as anvil:
        settings = asyncio.run(deploy_on(anvil, folder))
        run_fixture = asyncio.run(RunFixture.build(folder, settings, seed="big", workers=(), **TERMS))
        anvil.request("evm_setIntervalMining", BLOCK_SECONDS)
        run_fixture.settings = settings.model_copy(update={"poll_seconds": 0.5})
        orchestrator = Orchestrator(run_fixture, folder / "orchestrator", extra=extra)
        # The run ends at the newest block, from which on the orchestrator follows the chain.
        head = anvil.request("eth_getBlockByNumber", "latest", False)
        number, now = int(head["number"], 16), int(head["timestamp"], 16)
        rows = _rows(run_fixture, shape, now, number)
        about = f"run {run_fixture.run} of {run_fixture.book.runs} on chain {run_fixture.book.chain_id}"
        fill(folder / "orchestrator" / "orchestrator.db", about, f"{number} {head['hash']}", rows, say)
        try:
            yield BigRun(shape, run_fixture, orchestrator, rows)
        finally:
            if orchestrator.process is not None:
                orchestrator.stop()


def _rows(run_fixture: RunFixture, shape: Shape, now: int, block: int) -> Rows:
    workers = [str(run_fixture.key(_worker(number)).address) for number in range(shape.workers)]
    validators = [str(run_fixture.key(f"validator {number}").address) for number in range(shape.validators)]
    operators = [str(run_fixture.key(f"operator {number}").address) for number in range(1 + shape.nodes // 2)]
    both = [*workers, *validators]
    owned = {node: operators[number // 2] for number, node in enumerate(both)}
    trainer, storage = (run_fixture.key(name).address for name in ("trainer", "storage"))
    members = Members(run_fixture.run, str(trainer), workers, validators, owned)
    return Rows(shape, Work(shape, now, block), members, terms_of(trainer, storage, **TERMS))
