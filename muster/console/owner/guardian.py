"""muster guardian: stop new commitments on the day on which a fault is found."""

from __future__ import annotations

import typer

from muster.console.command import command
from muster.console.session import Session
from muster.contracts import runs
from muster.errors import CheckError
from muster.runtime.units import Duration, Moment

app = typer.Typer()


@command(app, "pause", operator=True)
async def pause(session: Session) -> None:
    """Stop new commitments of all runs, for 72 hours at most. Claims, seals, cases and exits continue.

    Only the guardian that the contracts were deployed with may, and not again before 30 days have passed since.
    """
    from muster.chain.client import event_of
    from muster.contracts.runs import Paused

    async with session.operator() as chain:
        longest, rest = map(Duration, await chain.call_all([runs.max_pause(), runs.pause_rest()]))
        await session.spend(
            chain,
            "Pause new commitments of all runs",
            {"for": f"at most {longest}", "again": f"not within {rest} of its end"},
            runs.pause(),
            outcome=lambda receipt: {"paused_until": Moment(event_of(receipt, Paused).until)},
        )


@command(app, "unpause", operator=True)
async def unpause(session: Session) -> None:
    """End a pause early. The time until the next one may begin counts as if it had run to its end."""
    async with session.operator() as chain:
        await session.spend(chain, "Let commitments go on", {}, runs.unpause(), {"paused": False})


@command(app, "show", reads=True)
async def show(session: Session) -> None:
    """Show who may pause, and until when commitments are paused, if they are."""
    async with session.chain() as chain:
        guardian, until, head = (
            await chain.call(runs.guardian()),
            await chain.call(runs.paused_until()),
            await chain.head(),
        )
        if not int(guardian, 16):
            raise CheckError("these contracts have no guardian: they cannot be paused")
        session.result(
            {"guardian": guardian, "paused": until > head.timestamp, "paused_until": Moment(until) if until else None}
        )
