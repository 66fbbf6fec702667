"""muster validator: join a run, inspect its work, see what was earned, leave."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from muster.chain.draw_secret import create_draw_secret, draw_tip
from muster.console.command import command
from muster.console.node import nodes
from muster.console.node.nodes import GAS_DAYS, CheckOption, GasOption, NodeOption, RunOption
from muster.console.node.watching import status
from muster.console.session import Session, as_table
from muster.contracts.registry import Role
from muster.settings.schema import ValidatorSettings
from muster.verification.sample_policy import OWN, detection, detection_over, false_rows, sample_size

app = typer.Typer()

_POLICY: Final = OWN | {"suspect_factor"}
"""The settings that say how many rows are replayed."""

FALSE_SHARES: Final = (1.0, 0.1, 0.01)
"""Shares of false rows in the work of the cheater of `muster validator policy`; at least one row."""


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


@command(app, "policy", of_node=True)
def policy(
    session: Session,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a commitment: `muster run show` has those of a run.")] = 128,
    commitments: Annotated[int, typer.Option(min=1, help="Commitments that the cheater makes in a day.")] = 24,
    seen: Annotated[
        float, typer.Option(min=0, max=1, help="Share of false rows that replay shows: docs/understand/verification.md")
    ] = 1.0,
    traps: Annotated[bool, typer.Option("--traps", help="Of a run with traps, with the rows of its pools.")] = False,
) -> None:
    """Show how much this validator re-runs, and the chance that it catches a node whose rows are partly false."""
    policy = session.settings.validator
    found = _detection(policy, rows, commitments, seen, pooled=0 if traps else None)
    lines = [
        row
        | {"rows_replayed": f"{row['rows_replayed']} of {rows}"}
        | {key: f"{row[key]:.2%}" for key in ("caught_in_one", "caught_in_a_day")}
        for row in found
    ]
    document = policy.model_dump(include=_POLICY) | {
        "rows": rows,
        "commitments": commitments,
        "seen": seen,
        "detection": found,
    }
    session.note(
        "What is replayed of a run with traps, unless validator.sample_… are set"
        if traps
        else f"{policy.sample_fraction:.1%} of the rows and at least {policy.sample_minimum}; "
        f"{policy.newcomer_factor} times as many of the first {policy.newcomer_commitments} commitments of a node, "
        f"{policy.suspect_factor} times if it was rejected before"
    )
    session.result(document, as_table(lines))


def _detection(
    policy: ValidatorSettings, rows: int, commitments: int, seen: float, pooled: int | None
) -> list[dict[str, Any]]:
    """Return the chances in one commitment and in a day's, for each kind of node and each share of false rows."""
    nodes = {"known": (policy.newcomer_commitments, False), "new": (0, False)}
    nodes["rejected before"] = (policy.newcomer_commitments, True)
    found = []
    for node, (first, suspect) in nodes.items():
        samples = [
            sample_size(policy, rows, index=first + i, suspect=suspect, pooled=pooled) for i in range(commitments)
        ]
        for share in FALSE_SHARES:
            false = false_rows(rows, share)
            chances = {sample: detection(rows, false, sample, seen) for sample in set(samples)}
            found.append(
                {
                    "node": node,
                    "rows_replayed": samples[0],
                    "false_rows": false,
                    "caught_in_one": chances[samples[0]],
                    "caught_in_a_day": detection_over(chances[sample] for sample in samples),
                }
            )
    return found


command(app, "retire", operator=True, of_node=True)(nodes.retire)
command(app, "withdraw", operator=True, of_node=True)(nodes.withdraw)
