"""muster validator: join a run, inspect its work, see what was earned, leave."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.console.command import command
from muster.console.node import nodes
from muster.console.node.nodes import GAS_DAYS, CheckOption, GasOption, NodeOption
from muster.console.node.status import status
from muster.console.session import RunOption, Session, as_table
from muster.contracts.registry import Role
from muster.protocol.looks import FIRST_COMMITMENTS
from muster.protocol.terms import LOOK_ROWS
from muster.verification.sample_policy import detection_over, false_rows, seen

app = typer.Typer()

FALSE_SHARES: Final = (0.01, 0.05, 0.1)
"""Shares of false rows in the work of the cheater of `muster validator policy`; at least one row."""
BEFORE_LOOKS: Final = 4
BEFORE_ROWS: Final = 24
BEFORE_SHARED: Final = 8
"""Of a run in which each of four validators looked at every commitment."""


@command(app, "join", operator=True)
async def join(
    session: Session,
    node: NodeOption = None,
    run: RunOption = None,
    gas_days: GasOption = GAS_DAYS,
    check: CheckOption = True,
) -> None:
    """Lock a stake and register this machine's key as a validator. Makes the draw secret if there is none."""
    session.set("run", run)
    folder = session.settings.validator.state_dir
    secret = await asyncio.to_thread(create_draw_secret, folder)
    session.note(f"the draw secret is in {folder}: back it up with the key; without it this validator cannot inspect")
    await nodes.join(
        session, Role.VALIDATOR, node, gas_days, check=check, draw_tip=await asyncio.to_thread(draw_tip, secret)
    )


@command(app, "run", of_node=True)
def run(session: Session) -> None:
    """Inspect until interrupted; resumes where it stopped."""
    session.become("validator")


command(app, "status", reads=True)(status)


@command(app, "verify", reads=True)
def verify(
    session: Session,
    commitment: Annotated[str, typer.Argument(metavar="ID", help="NODE:INDEX of a commitment of the run.")],
) -> None:
    """Inspect one commitment here, and print what was found without reporting it. Exit code 3 when it is bad."""
    session.become("validator", "verify", commitment, *(["--json"] if session.options.json else []))


@command(app, "policy")
def policy(
    session: Session,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a commitment: `muster run show` has those of a run.")] = 128,
    look_rows: Annotated[int, typer.Option("--look-rows", min=1, help="Rows that a look replays.")] = LOOK_ROWS,
    accepts: Annotated[int, typer.Option(min=1, max=255, help="Looks at a commitment.")] = 2,
    commitments: Annotated[int, typer.Option(min=1, help="Commitments that the cheater makes in a day.")] = 24,
    per_row: Annotated[
        float,
        typer.Option("--seen", min=0, max=1, help="Share of false rows that replay shows: docs/understand/trust.md"),
    ] = 1.0,
) -> None:
    """Show the chance that looks see a false row of a node whose rows are partly false.

    `before`: by four looks at 24 rows, 8 of them shared, as every validator looked at all work before looks were paid.
    """
    look_rows = min(rows, look_rows)
    shared = max(1, min(8, rows // 16, look_rows // 3))  # as `muster.protocol.draws.shared_rows`, of short answers
    lines = []
    for share in FALSE_SHARES:
        false = false_rows(rows, share)
        chances = {
            looks: seen(rows, false, shared=shared, own=look_rows - shared, looks=looks, per_row=per_row)
            for looks in (1, accepts)
        }
        four = min(rows, BEFORE_ROWS), min(rows, BEFORE_SHARED)
        before = seen(rows, false, shared=four[1], own=four[0] - four[1], looks=BEFORE_LOOKS, per_row=per_row)
        lines.append(
            {
                "false_rows": false,
                "one_look": chances[1],
                "all_looks": chances[accepts],
                "in_a_day": detection_over([chances[accepts]] * commitments),
                "before": before,
            }
        )
    session.note(
        f"each of {accepts} looks replays {look_rows} of {rows} rows, {shared} of them the same; twice as many of the "
        f"first {FIRST_COMMITMENTS} commitments of a node"
    )
    chosen = {"rows": rows, "look_rows": look_rows, "accepts": accepts, "commitments": commitments, "seen": per_row}
    percent = ("one_look", "all_looks", "in_a_day", "before")
    table = as_table([row | {key: f"{row[key]:.2%}" for key in percent} for row in lines])
    session.result(chosen | {"shared_rows": shared, "chances": lines}, table)


command(app, "retire", operator=True, of_node=True)(nodes.retire)
command(app, "withdraw", operator=True, of_node=True)(nodes.withdraw)
