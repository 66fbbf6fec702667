"""muster weights: fetch a step's weights checked against the chain, serve them, verify a folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TransferSpeedColumn

from muster.chain.client import Chain
from muster.chain.types import PolicyStep
from muster.clients.relays import Relays
from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_profile
from muster.console.command import command
from muster.console.sampling import bar
from muster.console.session import EXIT_CHECK, Session
from muster.contracts import runs
from muster.environments.tools.registry import NO_TOOLS
from muster.errors import CheckError
from muster.protocol.terms import Terms
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.delta_fetch import fetch_step
from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.format.store import read_manifest, verify_folder
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import Profile

app = typer.Typer()

StepOption = Annotated[int | None, typer.Option("--step", help="Policy step; else the newest.", min=0)]


@command(app, "fetch", reads=True)
async def fetch(
    session: Session,
    step: StepOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that holds versions.")] = Path(".muster/weights"),
) -> None:
    """Fetch the weights of a step from the run's relays. Resumes an interrupted fetch."""
    # 1. The root from the chain, the relays from the orchestrator.
    run = session.settings.run
    async with session.chain() as chain:
        checkpoint = await checkpoint_of(chain, run, step)
        async with session.orchestrator(chain) as client:
            relays = Relays(session.settings.shardcast, client, run)
            urls = await relays.urls()

        async def anchored(step: int) -> bytes:
            return (await chain.checkpoint(run, step)).manifest_root

        # 2. The weights, checked against the root.
        with bar(session, f"step {checkpoint.step}", DownloadColumn(binary_units=True), TransferSpeedColumn()) as show:
            request = FetchRequest(
                checkpoint.manifest_root,
                run,
                checkpoint.step,
                urls,
                out,
                public=relays.public,
                bounds=FetchBounds(download_rate=session.settings.shardcast.download_rate),
                progress=lambda state: show(state.done, state.total),
            )
            fetched = await fetch_step(request, anchored)
    # 3. What came, and how.
    session.result(
        {
            "step": checkpoint.step,
            "path": str(fetched.path),
            "root": checkpoint.manifest_root,
            "fetched_bytes": fetched.fetched_bytes,
            "delta_bytes": fetched.delta_bytes,
            "found_bytes": fetched.found_bytes,
            "seconds": round(fetched.seconds, 2),
            "bad_sources": [source.url for source in fetched.bad_sources],
        }
    )


@command(app, "serve")
def serve(session: Session) -> None:
    """Serve weights until interrupted: an origin or a relay, as shardcast.role says."""
    session.become("muster.shardcast")


@command(app, "verify", reads=True)
async def verify(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="Folder of one version, as `weights fetch` prints it.")],
    step: StepOption = None,
) -> None:
    """Hash a folder of weights and compare it with the root on chain. Exit code 3 when it is something else."""
    async with session.chain() as chain:
        checkpoint = await checkpoint_of(chain, session.settings.run, step)
    hashed = 0
    try:
        total = (await asyncio.to_thread(read_manifest, folder, checkpoint.manifest_root)).total_bytes
        with bar(session, f"step {checkpoint.step}", DownloadColumn(binary_units=True), TransferSpeedColumn()) as show:

            def count(size: int) -> None:
                nonlocal hashed
                hashed += size
                show(hashed, total)

            problems = (await asyncio.to_thread(verify_folder, folder, checkpoint.manifest_root, count)).problems
    except CheckError as error:
        problems = (str(error),)
    good = not problems
    session.result({"step": checkpoint.step, "root": checkpoint.manifest_root, "good": good, "problems": problems})
    if not good:
        raise typer.Exit(EXIT_CHECK)


async def checkpoint_of(chain: Chain, run: int, step: int | None) -> PolicyStep:
    """Return a step's checkpoint, the newest without one. Raises CheckError when the run has not published it."""
    if step is None:
        latest = await chain.latest_checkpoint(run)
        if latest is None:
            raise CheckError(f"run {run} has published no checkpoint yet", hint=f"muster run show {run}")
        return latest
    if step >= (await chain.call(runs.run_state(run))).steps:
        raise CheckError(f"run {run} has not published step {step}", hint=f"muster run show {run}")
    return await chain.checkpoint(run, step)


@dataclass(frozen=True)
class RunStep:
    """A step of a run, and what the run's terms name."""

    number: int
    path: Path
    """Its checkpoint."""
    terms: Terms
    profile: Profile
    task_set: TaskSet | None
    """None where it was not asked for and the run has no tools."""


async def fetch_run_step(session: Session, run: int, step: int | None, folder: Path, *, whole: bool) -> RunStep:
    """Return a step, the newest without one, fetched into `folder` and checked against the chain.

    whole: with all of its tasks. Raises as `checkpoint_of`, `RunTasks.fetch` and `CheckpointFetcher.get`.
    """
    tasks: RunTasks | None = None
    async with session.chain() as chain, session.orchestrator(chain) as client:
        terms = await chain.terms(run)
        if whole or terms.tools_root != NO_TOOLS:
            tasks = await RunTasks.fetch(client, terms, folder)
        if tasks is not None and whole:
            await tasks.ensure_all()
        profile = await fetch_profile(client, terms, folder)
        checkpoint, relays = await checkpoint_of(chain, run, step), Relays(session.settings.shardcast, client, run)
        session.note(f"fetching the weights of step {checkpoint.step} …")
        path = await CheckpointFetcher(chain, terms, relays, folder / "weights").get(checkpoint.step)
    return RunStep(checkpoint.step, path, terms, profile, tasks and tasks.task_set)
