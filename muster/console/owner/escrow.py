"""What `muster run` does with a run's money and its end: fund, withdraw, close."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from muster.chain.client import Chain, event_of
from muster.console.money.wallet import require_tokens
from muster.console.session import RunArgument, Session, parse_tokens
from muster.contracts import runs
from muster.contracts.runs import EscrowWithdrawn, Phase
from muster.errors import ChainError
from muster.protocol.hashes import hex_hash
from muster.runtime.units import Duration, Moment, Tokens
from muster.swarm.opening import approved


async def fund(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to add to the escrow.")],
    run: RunArgument = None,
) -> None:
    """Add tokens to a run's escrow. Work is paid from it; what is reserved for work cannot be taken back."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        await require_tokens(chain, wei)
        run_hash = await chain.run_hash(number)
        act = approved(chain.addresses.runs, wei, runs.fund(number, run_hash, wei))
        title = f"Add {Tokens(wei)} to the escrow of run {number}"
        preview = {"amount": Tokens(wei), "run hash": hex_hash(run_hash)}
        await session.spend(chain, title, preview, act, {"run": number, "amount": Tokens(wei)})


async def withdraw(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to take out of the escrow.")],
    run: RunArgument = None,
) -> None:
    """Take tokens out of a run's escrow: announce it first, type it again once the notice has passed."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        document = {"run": number, "withdrawn": False}
        if await _noticed(session, chain, number, document, again=f"muster run withdraw {amount} {number}"):
            back = min(wei, await chain.call(runs.withdrawable(number)))
            await session.spend(
                chain,
                f"Withdraw from the escrow of run {number}",
                {"back": f"{Tokens(back)}"},
                runs.withdraw_escrow(number, wei),
                {"run": number, "withdrawn": True},
                outcome=lambda receipt: {"amount": Tokens(event_of(receipt, EscrowWithdrawn).amount)},
            )


async def close(session: Session, run: RunArgument = None) -> None:
    """Close a run to new work: announce it first, type it again once the notice has passed."""
    number = run or session.settings.run
    async with session.operator() as chain:
        if (await chain.call(runs.run_state(number))).phase is Phase.CLOSED:
            raise ChainError(f"run {number} is closed", hint=f"muster run show {number}")
        document = {"run": number, "closed": False}
        if await _noticed(session, chain, number, document, again=f"muster run close {number}"):
            back = Tokens(await chain.call(runs.withdrawable(number)))
            title, document = f"Close run {number}", {"run": number, "closed": True}
            await session.spend(chain, title, {"back": back}, runs.close(number), document)


async def _noticed(session: Session, chain: Chain, run: int, document: Mapping[str, Any], *, again: str) -> bool:
    """Return whether the notice of what was announced is over; else print how long it runs still, or announce it.

    An announcement is for withdrawing and closing alike. It lapses some time after its notice, and the contract takes
    no other before it has rested. again: the command that acts.
    """
    seconds, lapses = await chain.call_all([runs.notice_period(run), runs.notice_lapses()])
    announced = (await chain.call(runs.run_info(run))).withdrawal_at
    now, ready_at = (await chain.head()).timestamp, await chain.call(runs.noticed_at(run)) if announced else None
    if ready_at is None or now >= ready_at + lapses:
        title = f"Announce that money will be taken out of run {run}, or that it will close"
        notice = f"{Duration(seconds)}, in which work goes on; then, within {Duration(lapses)}: {again}"
        document = {**document, "notice_seconds": Duration(seconds)}
        await session.spend(chain, title, {"notice": notice}, runs.announce_withdrawal(run), document)
    elif now < ready_at:
        session.result({**document, "ready_at": Moment(ready_at), "wait_seconds": Duration(ready_at - now)})
    else:
        return True
    return False
