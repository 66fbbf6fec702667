"""muster run wages: the owner's money for looks: fund it, see it, take back what is not owed."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.chain.client import Chain, event_of
from muster.console.command import command
from muster.console.money.wallet import require_tokens
from muster.console.session import RunArgument, Session, parse_tokens
from muster.contracts import wages
from muster.contracts.wages import TakenBack
from muster.runtime.units import Duration, Moment, Tokens
from muster.swarm.opening import approved

app = typer.Typer(help="Wages of looks: the owner's own money, apart from the escrow.", rich_markup_mode=None)


@command(app, "fund", operator=True)
async def fund(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to add to the wages.")],
    run: RunArgument = None,
) -> None:
    """Add tokens to a run's wages, out of which its trainer pays validators for looks."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        await require_tokens(chain, wei)
        act = approved(chain.addresses.wages, wei, wages.fund(number, wei))
        title = f"Add {Tokens(wei)} to the wages of run {number}"
        await session.spend(chain, title, {"amount": Tokens(wei)}, act, {"run": number, "amount": Tokens(wei)})


@command(app, "show", reads=True)
async def show(session: Session, run: RunArgument = None) -> None:
    """Show what a run has for wages, what of it is owed to validators, and what the owner has announced to take."""
    number = run or session.settings.run
    async with session.chain() as chain:
        session.result({"run": number, **await wages_document(chain, number)})


@command(app, "take-back", operator=True)
async def take_back(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to take back.")],
    run: RunArgument = None,
) -> None:
    """Take back wages that are not posted: announce it first, type it again once the notice has passed."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        pot, notice = await chain.call(wages.pot(number)), await chain.call(wages.take_back_notice())
        now, document = (await chain.head()).timestamp, {"run": number, "taken_back": False}
        if pot.announced != wei or now >= pot.take_from + notice:
            title = f"Announce that {Tokens(wei)} of the wages of run {number} will be taken back"
            stake = {
                "notice": f"{Duration(notice)}; then, within as long: muster run wages take-back {amount} {number}"
            }
            await session.spend(chain, title, stake, wages.announce_take_back(number, wei), document)
        elif now < pot.take_from:
            waits = {"ready_at": Moment(pot.take_from), "wait_seconds": Duration(pot.take_from - now)}
            session.result({**document, **waits})
        else:
            await session.spend(
                chain,
                f"Take back wages of run {number}",
                {"back": Tokens(min(wei, pot.funded - pot.posted))},
                wages.take_back(number),
                {"run": number, "taken_back": True},
                outcome=lambda receipt: {"amount": Tokens(event_of(receipt, TakenBack).amount)},
            )


async def wages_document(chain: Chain, run: int) -> dict[str, object]:
    """Return a run's wages: what is there, what of it validators have earned, and what was announced."""
    pot = await chain.call(wages.pot(run))
    return {
        "wages": Tokens(pot.funded - pot.claimed),
        "wages_owed": Tokens(pot.posted - pot.claimed),
        "wages_paid": Tokens(pot.claimed),
        "wages_announced": Tokens(pot.announced),
        "wages_take_back_at": Moment(pot.take_from) if pot.take_from else None,
    }
