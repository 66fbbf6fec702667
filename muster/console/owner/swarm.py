"""muster swarm: a whole swarm on this machine."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.console.command import command
from muster.console.session import EXIT_CHECK, Session, parse_numbers
from muster.swarm.plan import Ports, SwarmRequest
from muster.swarm.processes import is_alive, session_members
from muster.swarm.report import terminal_summary
from muster.swarm.scenarios import SCENARIOS, Scenario, own_scenario
from muster.swarm.state import end_swarm, read_state
from muster.swarm.summary import problems
from muster.swarm.supervisor import free_ports, interruptible
from muster.swarm.watch import watcher
from muster.tasksets.taskset import TaskSet

app = typer.Typer()


class ScenarioChoice(StrEnum):
    DIGITS = "digits"
    LANGUAGE = "language"


FolderOption = Annotated[Path, typer.Option("--folder", help="Where the swarm keeps everything.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Fixes model and tasks; draws follow the chain.")]
StepsOption = Annotated[int, typer.Option("--steps", help="Policy updates.", min=1)]
PortOption = Annotated[
    int,
    typer.Option("--port", help="First of four ports to listen on (127.0.0.1); 0 takes free ones.", min=0, max=65532),
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Honest workers.", min=1, max=64)]
ValidatorsOption = Annotated[int, typer.Option("--validators", help="Validators; a run needs four.", min=4, max=64)]
DEFAULT_FOLDER = Path(".muster/swarm")
DEFAULT_PORT = 8545


def _ports(first: int) -> Ports:
    return Ports(*(range(first, first + 4) if first else free_ports(4)))


@dataclass(frozen=True)
class TrainedOptions:
    """What a swarm trains."""

    scenario: Annotated[
        ScenarioChoice, typer.Option("--scenario", help="What it trains: sorting digits, or sums asked in English.")
    ] = ScenarioChoice.DIGITS
    tasks: Annotated[
        Path | None,
        typer.Option("--tasks", help="Train on your own task set (muster tasks make)."),
    ] = None
    model: Annotated[
        Path | None, typer.Option("--model", help="Begin with this checkpoint folder instead of the scenario's model.")
    ] = None
    budgets: Annotated[str | None, typer.Option(help="Thinking budgets in tokens, of your own tasks or model.")] = None
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option("--max-prompt-tokens", min=1, help="Longest prompt of your own tasks; else 256 tokens."),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", min=1, help="Where an answer to them is cut off; else at twice the largest budget."
        ),
    ] = None

    def read(self) -> Scenario:
        """Return the scenario. Raises UsageError and ConfigError before anything is started."""
        lengths = None if self.budgets is None else parse_numbers(self.budgets)
        own = None if self.tasks is None else self.tasks.absolute()
        if own is not None:
            TaskSet.open(own)
        base = SCENARIOS[self.scenario.value]
        return own_scenario(base, own, self.model, lengths, self.max_prompt_tokens, self.max_tokens)


@command(app, "demo")
def demo(
    session: Session,
    seed: SeedOption = 0,
    steps: Annotated[int | None, typer.Option("--steps", help="Policy updates.", min=1)] = None,
    options: TrainedOptions = TrainedOptions(),
    port: PortOption = 0,
    folder: FolderOption = DEFAULT_FOLDER,
    report: Annotated[Path, typer.Option("--report", help="Page to write at the end.")] = Path("report.html"),
    picture: Annotated[Path | None, typer.Option("--picture", help="Write the plots as one SVG file, too.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the swarm's folder: logs, keys, weights, rollouts.")
    ] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the run's page open at the end, until Ctrl-C.")] = False,
    workers: WorkersOption = 2,
    validators: ValidatorsOption = 4,
    cheaters: Annotated[int, typer.Option("--cheaters", help="Workers that cheat.", min=0, max=8)] = 1,
) -> None:
    """Train a model, catch a cheater, pay the honest; ends with a summary and report.html.

    Starts Anvil, deploys, and runs orchestrator, relays, trainer, validators and workers as processes of their own.
    Exit code 3 when something did not go as it must.
    """
    trained = options.read()
    steps = trained.steps if steps is None else steps
    request = SwarmRequest(
        folder.absolute(), _ports(port), steps, seed, workers, cheaters, validators, scenario=trained
    )
    view = watcher(session.stderr, plain=session.options.json or not sys.stdout.isatty())
    from muster.swarm.demo import run_demo  # imports the chain's libraries, which `status` and `down` do without

    def show(summary: dict[str, Any]) -> None:
        session.result(summary, terminal_summary(summary))
        session.note(f"report: {report}")
        for sentence in problems(summary, steps):
            session.note(f"check failed: {sentence}")

    def show_and_stay(summary: dict[str, Any]) -> None:
        show(summary)
        session.note(f"the run's page stays open: {request.orchestrator_url}/ (Ctrl-C ends it)")

    after = show_and_stay if stay else None
    demo = run_demo(request, view, report=report, picture=picture, keep=keep, stay=after)
    summary = asyncio.run(interruptible(demo))
    if not stay:
        show(summary)
    if problems(summary, steps):
        raise typer.Exit(EXIT_CHECK)


@command(app, "up")
def up(
    session: Session,
    seed: SeedOption = 0,
    steps: StepsOption = 1_000_000,
    options: TrainedOptions = TrainedOptions(),
    port: PortOption = DEFAULT_PORT,
    folder: FolderOption = DEFAULT_FOLDER,
    workers: WorkersOption = 2,
    validators: ValidatorsOption = 4,
    cheaters: Annotated[int, typer.Option("--cheaters", help="Workers that cheat.", min=0, max=8)] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep weights and rollouts at the end, beside the logs.")
    ] = False,
) -> None:
    """Keep a swarm running until Ctrl-C, for developing against.

    Runs for days: it takes a step every few seconds, and no more than its workers may commit in an hour.
    At the end logs and settings stay in its folder.
    """
    trained = options.read()
    request = SwarmRequest(
        folder.absolute(), _ports(port), steps, seed, workers, cheaters, validators, scenario=trained, lasting=True
    )
    view = watcher(session.stderr, plain=not sys.stdout.isatty())
    from muster.swarm.demo import run_up

    asyncio.run(interruptible(run_up(request, view, keep=keep)))


@command(app, "down")
def down(session: Session, folder: FolderOption = DEFAULT_FOLDER) -> None:
    """End a swarm that was left running, and no other process."""
    ended = asyncio.run(end_swarm(folder.absolute()))
    session.result({"ended": ended}, f"ended {', '.join(ended)}" if ended else "no swarm was running")


@command(app, "status")
def status(session: Session, folder: FolderOption = DEFAULT_FOLDER) -> None:
    """Show which processes of a swarm are running. Exit code 3 when none is."""
    state = read_state(folder.absolute())
    if state is None:
        session.result([], "no swarm is running")
        raise typer.Exit(EXIT_CHECK)
    rows = [{"process": "supervisor", "pid": state.supervisor.pid, "running": is_alive(state.supervisor)}]
    rows += [
        {"process": name, "pid": who.pid, "running": bool(session_members(who))}
        for name, who in state.processes.items()
    ]
    session.result(rows)
    if not any(row["running"] for row in rows):
        raise typer.Exit(EXIT_CHECK)
