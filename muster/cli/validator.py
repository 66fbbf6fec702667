"""muster validator: join a run, inspect its work, see what was earned, leave."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from muster.cli import nodes
from muster.cli.execute import become
from muster.cli.nodes import GasOption, NodeOption, NodePassword, RunOption
from muster.cli.session import Session, command
from muster.cli.spend import OperatorOption, OperatorPassword

app = typer.Typer(help="Validators: inspect strangers' work, open cases, judge others'.", no_args_is_help=True)


@command(app, "join", spends=True)
async def join(
    session: Session,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
    node: NodeOption = None,
    node_password_file: NodePassword = None,
    run: RunOption = None,
    gas: GasOption = "0.02",
) -> None:
    """Lock a stake and register this machine's key as a validator. Makes the draw secret if there is none."""
    from muster.chain.contracts.registry import Role
    from muster.draw_secret import create_draw_secret, draw_tip

    session.set("run", run)
    folder = session.settings.validator.state_dir
    secret = await asyncio.to_thread(create_draw_secret, folder)
    session.note(f"the draw secret is in {folder}: back it up with the key; without it this validator cannot inspect")
    await nodes.join(
        session,
        Role.VALIDATOR,
        operator=operator,
        operator_password=operator_password_file,
        node=node,
        node_password=node_password_file,
        gas=gas,
        draw_tip=await asyncio.to_thread(draw_tip, secret),
    )


@command(app, "run")
def run(session: Session) -> None:
    """Inspect until interrupted; picks up where it was."""
    become(session, "validator")


@command(app, "status")
async def status(session: Session, node: NodeOption = None) -> None:
    """What a validator has at stake, what it sealed, and the cases it opened."""
    from muster.chain.contracts.court import CaseOpened, CaseResolved
    from muster.chain.contracts.runs import HourSealed

    address = await nodes.address_of(session, node)
    async with session.chain() as chain:
        document = await nodes.base_status(session, chain, address)
        kinds = [CaseOpened, CaseResolved, HourSealed]
        events = await chain.events(kinds, chain.addresses.from_block, (await chain.head()).number)
        opened = {one.case_id for one in events if isinstance(one, CaseOpened) and one.challenger == address}
        won = [one for one in events if isinstance(one, CaseResolved) and one.case_id in opened]
        seals = [one for one in events if isinstance(one, HourSealed) and one.validator == address]
        session.result(
            document
            | {
                "cases_opened": len(opened),
                "cases_won": sum(one.outcome.name == "GUILTY" for one in won),
                "hours_sealed": len(seals),
                "last_sealed_hour": max((one.hour for one in seals), default=None),
            }
        )


@command(app, "verify")
def verify(
    session: Session,
    commitment: Annotated[str, typer.Argument(metavar="ID", help="NODE:INDEX of a commitment of the run.")],
) -> None:
    """Inspect one commitment here and now, and say what was found; tells nobody. Exit code 3 when it is bad."""
    become(session, "validator", "verify", commitment, *(["--json"] if session.options.json else []))


@command(app, "retire", spends=True)
async def retire(
    session: Session,
    node: NodeOption = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Leave the run: no more inspecting, no more jury duty."""
    await nodes.retire(session, node, operator, operator_password_file)


@command(app, "withdraw", spends=True)
async def withdraw(
    session: Session,
    node: NodeOption = None,
    operator: OperatorOption = None,
    operator_password_file: OperatorPassword = None,
) -> None:
    """Get the stake of a retired validator back, once unbonding is over."""
    await nodes.withdraw(session, node, operator, operator_password_file)
