"""Publish what a step of a run scores on a benchmark: signed by the run's trainer or its owner, for the run's page.

Only a whole benchmark with its published settings is published, since nothing else can be compared. What can be refused
is refused before the engine is asked, which can take hours.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.authoring.benchmarks.data import BenchmarkData
from muster.authoring.benchmarks.definitions import Benchmark
from muster.console.evaluate.eval_options import MEASURE
from muster.console.evaluate.weights import checkpoint_of
from muster.console.session import Session
from muster.contracts import runs
from muster.errors import CheckError, UsageError
from muster.protocol.announcements import BenchmarkScore
from muster.protocol.eip712 import UNSIGNED, sign_message

if TYPE_CHECKING:
    from muster.chain.keys import Signer


@dataclass(frozen=True)
class BenchmarkPublisher:
    """Publishes the score of one step."""

    session: Session
    signer: Signer
    run: int
    step: int

    def check_whole(self, benchmark: Benchmark, data: BenchmarkData, trained: Collection[int]) -> None:
        """Raise CheckError for files that are not the whole benchmark, or items that are left out of it."""
        rows = data.report.rows - data.report.left_out.get(benchmark.outside, 0)
        if rows != benchmark.size:
            names = ", ".join(str(one["name"]) for one in data.files)
            raise CheckError(
                f"{names} has {rows} rows of {benchmark.name}, and the whole benchmark has {benchmark.size}",
                hint="give the published files with --data, or leave out --publish",
            )
        if trained:
            raise CheckError(
                f"{len(trained)} of {len(data.items)} items of {benchmark.name} are trained on: without them it is not "
                "whole",
                hint="leave out --publish",
            )

    async def publish(self, benchmark: Benchmark, document: dict[str, Any]) -> dict[str, Any]:
        """Sign a result's score and post it; return what the printed result says of that."""
        rule = benchmark.rules[0].name
        figure = next(one for one in document["figures"] if (one["rule"], one["measure"]) == (rule, MEASURE))
        session, signer = self.session, self.signer
        async with session.chain() as chain, session.orchestrator(chain, signer) as client:
            unsigned = BenchmarkScore(
                run=self.run,
                step=self.step,
                benchmark=benchmark.name,
                score=figure["value"],
                low=figure["low"],
                high=figure["high"],
                tasks=document["items"],
                samples=document["sampling"]["samples"],
                measured=int(time.time()),
                signature=UNSIGNED,
            )
            await client.post_score(sign_message(signer, client.domain, unsigned))
        return {"published": {"step": self.step, "score": figure["value"], "by": signer.address, "at": client.url}}


async def prepare_publisher(session: Session, benchmark: str, run: int, step: int | None) -> BenchmarkPublisher | None:
    """Return who publishes, once the key, the step and the person agree; None after a dry run, whose result is printed.

    Raises CheckError for a step that is not on chain, UsageError for a key of neither trainer nor owner.
    """
    # 1. Who may publish, and of which step.
    signer = await session.signer(session.options.operator, session.options.password_file)
    async with session.chain() as chain:
        trainer, owner = (await chain.keys_now(run)).trainer, (await chain.call(runs.run_info(run))).owner
        number = (await checkpoint_of(chain, run, step)).step
    if signer.address not in (trainer, owner):
        raise UsageError(
            f"{signer.address} is neither the trainer of run {run}, {trainer}, nor its owner, {owner}",
            hint="name the trainer's or the owner's wallet: --operator WALLET",
        )

    # 2. Ask now: the evaluation may end unattended.
    about = {"benchmark": benchmark, "run": run, "step": number}
    role = "the run's trainer" if signer.address == trainer else "the run's owner"
    shown = {**about, "signed by": f"{signer.address}, {role}", "seen by": "everybody who opens the run's page"}
    if not session.preview("Evaluate, and publish the score", shown):
        session.result({"dry_run": True, **about, "by": signer.address}, "nothing was evaluated or sent")
        return None
    return BenchmarkPublisher(session, signer, run, number)
