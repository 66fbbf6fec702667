"""muster swarm: a whole swarm on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import Field

from muster.console.command import command
from muster.console.options import Numbers, Request
from muster.console.session import EXIT_CHECK, Session
from muster.swarm.plan import Ports, SwarmRequest
from muster.swarm.report import terminal_summary
from muster.swarm.scenarios import SCENARIOS, own_scenario
from muster.swarm.state import end_swarm
from muster.swarm.summary import problems
from muster.swarm.supervisor import free_ports, interruptible
from muster.swarm.watch import SwarmView
from muster.tasksets.taskset import TaskSet

app = typer.Typer()


FolderOption = Annotated[Path, typer.Option("--folder", help="Where the swarm keeps everything.")]
DEFAULT_FOLDER = Path(".muster/swarm")


class SwarmOptions(Request):
    """What swarms have in common, with the defaults of the demo."""

    seed: int = 0
    """Fixes model and tasks; draws follow the chain."""
    steps: int | None = Field(default=None, ge=1)
    """Policy updates."""
    scenario: Literal["digits", "language", "lazy", "tools"] = "digits"
    """What it trains: sorting digits, also with a validator that does not look, sums asked in English, or products with
    a calculator."""
    tasks: Path | None = None
    """Train on your own task set (muster tasks make)."""
    model: str | None = None
    """Begin with this model instead of the scenario's: a checkpoint folder, or OWNER/NAME on the hub."""
    budgets: Numbers | None = None
    """Thinking budgets in tokens, of your own tasks or model."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt of your own tasks; else 256 tokens."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Where an answer to them is cut off; else at twice the largest budget."""
    port: int = Field(default=0, ge=0, le=65531)
    """First of five ports to listen on (127.0.0.1); 0 takes free ones."""
    folder: Path = DEFAULT_FOLDER
    """Where the swarm keeps everything."""
    keep: bool = False
    """Keep the swarm's folder: logs, keys, weights, rollouts."""
    workers: int = Field(default=2, ge=1, le=64)
    """Honest workers."""
    validators: int = Field(default=4, ge=4, le=64)
    """Validators; a run needs four."""
    cheaters: int | None = Field(default=None, ge=0, le=8)
    """Workers that cheat: one by default, none beside a lazy validator."""

    def plan(self, *, lasting: bool = False) -> SwarmRequest:
        """Return the swarm. Raises UsageError and ConfigError before anything is started."""
        own = None if self.tasks is None else self.tasks.absolute()
        if own is not None:
            TaskSet.open(own)
        lengths = self.budgets, self.max_prompt_tokens, self.max_tokens
        scenario = own_scenario(SCENARIOS[self.scenario], own, self.model, *lengths)
        return SwarmRequest(
            self.folder.absolute(),
            Ports(*(range(self.port, self.port + 5) if self.port else free_ports(5))),
            scenario.steps if self.steps is None else self.steps,
            self.seed,
            self.workers,
            scenario.cheaters if self.cheaters is None else self.cheaters,
            self.validators,
            scenario=scenario,
            lasting=lasting,
        )


class DemoOptions(SwarmOptions):
    """The options of `muster swarm demo`."""

    report: Path = Path("report.html")
    """Page to write at the end."""
    picture: Path | None = None
    """Write the charts as one SVG file, too."""
    stay: bool = False
    """Keep the run's page open at the end, until Ctrl-C."""


LASTING: Final = SwarmOptions(steps=1_000_000, port=8545, cheaters=0)
"""The defaults of `muster swarm up`."""


@command(app, "demo")
def demo(session: Session, options: DemoOptions) -> None:
    """Train a model, catch a cheater, pay the honest; ends with a summary and report.html.

    Starts Anvil, deploys, and runs orchestrator, explorer, relays, trainer, validators and workers as processes of
    their own. Exit code 3 when something did not go as it must.
    """
    request = options.plan()
    view = SwarmView(session.stderr)
    from muster.swarm.demo import run_demo  # imports the chain's libraries, which `status` and `down` do without

    def show(summary: dict[str, Any]) -> None:
        session.result(summary, terminal_summary(summary))
        session.note(f"report: {options.report}")
        for sentence in problems(summary, request.steps):
            session.note(f"check failed: {sentence}")

    def show_and_stay(summary: dict[str, Any]) -> None:
        show(summary)
        session.note(f"the run's page stays open: {request.local.explorer_url}/ (Ctrl-C ends it)")

    after = show_and_stay if options.stay else None
    demo = run_demo(request, view, report=options.report, picture=options.picture, keep=options.keep, stay=after)
    summary = asyncio.run(interruptible(demo))
    if not options.stay:
        show(summary)
    if problems(summary, request.steps):
        raise typer.Exit(EXIT_CHECK)


@command(app, "up")
def up(session: Session, options: SwarmOptions = LASTING) -> None:
    """Keep a swarm running until Ctrl-C, for developing against.

    Runs for days: it takes a step every few seconds, and no more than its workers may commit in an hour.
    At the end logs and settings stay in its folder.
    """
    request = options.plan(lasting=True)
    view = SwarmView(session.stderr)
    from muster.swarm.demo import run_up

    asyncio.run(interruptible(run_up(request, view, keep=options.keep)))


@command(app, "down")
def down(session: Session, folder: FolderOption = DEFAULT_FOLDER) -> None:
    """End a swarm that was left running, and no other process."""
    ended = asyncio.run(end_swarm(folder.absolute()))
    session.result({"ended": ended}, f"ended {', '.join(ended)}" if ended else "no swarm was running")
