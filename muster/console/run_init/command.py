"""muster run init: all that an owner does for a run, from questions to a run that works, in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.console.run_init.choices import known_context, merged, read_choices
from muster.console.run_init.design import design_of
from muster.console.run_init.flow import RunInit, open_and_start
from muster.console.run_init.folder import RunFolder
from muster.console.run_init.options import typed_choices, with_choices
from muster.console.run_init.questions import ask_all
from muster.console.session import Session
from muster.errors import UsageError
from muster.runtime.journal import FolderLock
from muster.runtime.terminal import asking
from muster.swarm.state import check_free


@with_choices
async def init(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="Folder of the run. Everything goes there.")],
    about_file: Annotated[Path | None, typer.Option("--about-file", help="File with the text of --about.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration of the model that was made elsewhere (muster run calibrate).")
    ] = None,
    addresses: Annotated[Path | None, typer.Option(help="Address book of contracts that exist.")] = None,
    start: Annotated[
        bool | None, typer.Option("--start/--no-start", help="Run all of a local run on this machine, until Ctrl-C.")
    ] = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send a public run's transactions as well; else they are printed.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--anew", help="Begin a local run again: its chain and states are removed.")
    ] = False,
    unmeasured: Annotated[
        bool, typer.Option("--unmeasured", help="Make a public run of a model that muster model check has not seen.")
    ] = False,
    **chosen: Any,
) -> None:
    """Make a run of your own: terms, keys, settings; then start it on this machine, or print its deployment.

    Asks on a terminal for what no option says. Typed again, it goes on where it was, and shows what is done.
    """
    # 1. What is wanted.
    place = RunFolder(folder)
    known = read_choices(place.choices)
    choices = merged(known, typed_choices(chosen, about_file, session.options, known))
    if sys.stdin.isatty() and not session.options.yes:
        choices = ask_all(choices, _ask, session.note)
    design = design_of(choices, known_context(choices))
    if start and not design.is_local:
        raise UsageError("a public run is started by its three processes", hint=f"muster run init {folder} names them")
    if restart and not design.is_local:
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
        if restart:
            place.reset_chain()
        await plan.prepare(calibration, addresses, unmeasured=unmeasured)
        await open_and_start(plan, start=start, send=send)


def _ask(text: str, default: str) -> str:
    """Ask on stderr, since stdout carries the result; return what was typed, or the default."""
    print(f"{text} [{default}]: " if default else f"{text}: ", end="", file=sys.stderr, flush=True)
    with asking():
        line = sys.stdin.readline()
    if not line:  # the end of the input: Ctrl-D
        raise typer.Abort
    return line.strip() or default
