"""muster run init: all that an owner does for a run, from questions to a run that works, in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from muster.console.run_init.choices import RunChoices, TypedChoices, known_context, make_choices, merged, read_choices
from muster.console.run_init.design import design_of
from muster.console.run_init.flow import RunInit, open_and_start
from muster.console.run_init.folder import RunFolder
from muster.console.run_init.questions import ask_all
from muster.console.session import Options, Session
from muster.errors import UsageError
from muster.runtime.journal import FolderLock
from muster.runtime.terminal import asking
from muster.swarm.state import check_free
from muster.swarm.supervisor import free_ports


class InitRequest(TypedChoices):
    """The options of `muster run init`."""

    folder: Annotated[Path, typer.Argument()]
    """Folder of the run. Everything goes there."""
    calibration: Path | None = None
    """Calibration of the model that was made elsewhere (muster run calibrate)."""
    addresses: Path | None = None
    """Address book of contracts that exist."""
    start: Annotated[bool | None, typer.Option("--start/--no-start")] = None
    """Run all of a local run on this machine, until Ctrl-C."""
    send: bool = False
    """Send a public run's transactions as well; else they are printed."""
    restart: Annotated[bool, typer.Option("--anew")] = False
    """Begin a local run again: its chain and states are removed."""
    unmeasured: bool = False
    """Make a public run of a model that muster model check has not seen."""
    port: int | None = Field(default=None, ge=0, le=65_532)
    """First of four ports of a local run; 0 takes free ones."""

    def choices(self, wallet: Options, known: RunChoices) -> RunChoices:
        """Return what was typed as choices.

        known: what the folder has, of which free ports are kept.
        """
        values = self.model_dump(include=set(TypedChoices.model_fields), exclude_none=True)
        if (first := self.port) is not None:
            kept = known.ports if first == 0 else None
            values["ports"] = kept or tuple(range(first, first + 4) if first else free_ports(4))
        if wallet.operator is not None:
            path = Path(wallet.operator).expanduser()
            values["operator"] = str(path.absolute()) if path.is_file() else wallet.operator
        if wallet.password_file is not None:
            values["password_file"] = str(wallet.password_file.absolute())
        return make_choices(values)


async def init(session: Session, request: InitRequest) -> None:
    """Make a run of your own: terms, keys, settings; then start it on this machine, or print its deployment.

    Asks on a terminal for what no option says. Run it again to resume; it shows what is done.
    """
    # 1. What is wanted.
    place = RunFolder(request.folder)
    known = read_choices(place.choices)
    choices = merged(known, request.choices(session.options, known))
    if sys.stdin.isatty() and not session.options.yes:
        choices = ask_all(choices, _ask, session.note)
    design = design_of(choices, known_context(choices))
    if request.start and not design.is_local:
        hint = f"muster run init {request.folder} names them"
        raise UsageError("a public run is started by its four processes", hint=hint)
    if request.restart and not design.is_local:
        raise UsageError("only a local run can begin again", hint="another run begins in another folder")

    # 2. What it means, before anything is written.
    plan = RunInit(session, place, known, choices, design)
    if not plan.preview():
        session.result(plan.dry_run_document(), "nothing was written")
        return

    # 3. Files, chain, processes.
    check_free(place.path)
    place.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FolderLock(place.state):
        if request.restart:
            place.reset_chain()
        await plan.prepare(request.calibration, request.addresses, unmeasured=request.unmeasured)
        await open_and_start(plan, start=request.start, send=request.send)


def _ask(text: str, default: str) -> str:
    """Ask on stderr, since stdout carries the result; return what was typed, or the default."""
    print(f"{text} [{default}]: " if default else f"{text}: ", end="", file=sys.stderr, flush=True)
    with asking():
        line = sys.stdin.readline()
    if not line:  # the end of the input: Ctrl-D
        raise typer.Abort
    return line.strip() or default
