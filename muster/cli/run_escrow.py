"""What `muster run` does with a run's money and its end: fund, withdraw, close, reveal masters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from muster.chain.client import Chain, event_of
from muster.chain.types import TxReceipt
from muster.cli.session import RunArgument, Session, parse_tokens
from muster.cli.wallet import require_tokens
from muster.contracts import court, runs, token
from muster.contracts.codec import Transaction
from muster.contracts.runs import EscrowWithdrawn
from muster.errors import MismatchError, UsageError
from muster.protocol.masters import epochs_begun, epochs_over
from muster.runtime.units import Duration, Moment, Tokens


async def fund(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to add to the escrow.")],
    run: RunArgument = None,
) -> None:
    """Add tokens to a run's escrow. Work is paid from it; what is reserved for work cannot be taken back."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        await require_tokens(chain, wei)

        async def act(chain: Chain) -> TxReceipt:
            # A dry run does not see the allowance of a dry run, so it ends after that.
            if await chain.call(token.allowance(chain.signer.address, chain.addresses.runs)) < wei:
                approval = await chain.send(token.approve(chain.addresses.runs, wei))
                if not approval.hash:
                    return approval
            return await chain.send(runs.fund(number, wei))

        title = f"Add {Tokens(wei)} to the escrow of run {number}"
        await session.spend(chain, title, {"amount": Tokens(wei)}, act, {"run": number, "amount": Tokens(wei)})


async def withdraw(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Tokens to take out of the escrow.")],
    run: RunArgument = None,
) -> None:
    """Take tokens out of a run's escrow: announce it first, type it again once the notice has passed."""
    wei, number = parse_tokens(amount), run or session.settings.run
    async with session.operator() as chain:
        info = await chain.call(runs.run_info(number))
        ready = await _noticed(
            session,
            chain,
            f"Announce that {Tokens(wei)} will be withdrawn from run {number}",
            runs.announce_withdrawal(number, wei),
            {"run": number, "withdrawn": False},
            info.withdrawal_at if info.withdrawal == wei else 0,
            again=f"muster run withdraw {amount} {number}",
            stake={"instead of": f"{Tokens(info.withdrawal)}"} if info.withdrawal else {},
        )
        if ready:
            back = min(wei, await chain.call(runs.withdrawable(number)))
            await session.spend(
                chain,
                f"Withdraw from the escrow of run {number}",
                {"back": f"{Tokens(back)}"},
                runs.withdraw_escrow(number),
                {"run": number, "withdrawn": True},
                outcome=lambda receipt: {"amount": Tokens(event_of(receipt, EscrowWithdrawn).amount)},
            )


async def close(session: Session, run: RunArgument = None) -> None:
    """Close a run to new work: announce it first, type it again once the notice has passed."""
    number = run or session.settings.run
    async with session.operator() as chain:
        close_at = (await chain.call(runs.run_info(number))).close_at
        ready = await _noticed(
            session,
            chain,
            f"Announce that run {number} will close",
            runs.announce_close(number),
            {"run": number, "closed": False},
            close_at,
            again=f"muster run close {number}",
            waits={"close_at": Moment(close_at)},
        )
        if ready:
            back = Tokens(await chain.call(runs.withdrawable(number)))
            title, document = f"Close run {number}", {"run": number, "closed": True}
            await session.spend(chain, title, {"back": back}, runs.close(number), document)


async def reveal_master(
    session: Session,
    masters: Annotated[Path, typer.Argument(help="Secret file that muster tasks seal wrote.")],
    run: RunArgument = None,
    epoch: Annotated[
        int | None, typer.Option(min=1, help="Reveal up to this epoch; else the epochs that are over.")
    ] = None,
) -> None:
    """Reveal the masters of private tests whose epoch is over: from then on anybody can check all grades.

    Until the masters of all epochs that have begun are revealed, you can neither withdraw nor close. The last epoch
    goes on for ever: name it by --epoch when you end the run. What is revealed too early is private no more.
    """
    from muster.chain.masters_file import read_masters

    secret, number = read_masters(masters), run or session.settings.run
    async with session.operator() as chain:
        # 1. Which are due.
        terms, state = await chain.terms(number), await chain.call(runs.run_state(number))
        if secret.tip != terms.grade_tip:
            raise MismatchError(f"{masters} holds the masters of another run than {number}", hint="muster run list")
        shown = (await chain.call(court.masters(number))).epochs
        last = epochs_over(terms, state.steps) if epoch is None else epoch
        if last <= shown:
            session.result(
                {"run": number, "revealed": [], "epochs": shown},
                f"nothing is due: {shown} of {terms.grade_epochs} masters are revealed; the last with --epoch",
            )
            return
        begun = epochs_begun(terms, state.steps)
        if last > begun:
            raise UsageError(
                f"epoch {last} has not begun; the run is in epoch {begun}", hint="reveal it when it is over"
            )

        # 2. In order.
        async def act(chain: Chain) -> TxReceipt:
            # A dry run does not see the master that a dry run revealed, so it ends after one.
            receipt = await chain.send(court.reveal_master(number, secret.of(shown + 1)))
            for later in range(shown + 2, last + 1):
                if not receipt.hash:
                    break
                receipt = await chain.send(court.reveal_master(number, secret.of(later)))
            return receipt

        revealed = list(range(shown + 1, last + 1))
        title = f"Reveal the master of epoch {', '.join(map(str, revealed))} of run {number}"
        stake = {"private no more": "the tests of these epochs"}
        await session.spend(chain, title, stake, act, {"run": number, "revealed": revealed, "epochs": last})


async def _noticed(
    session: Session,
    chain: Chain,
    title: str,
    announce: Transaction,
    document: Mapping[str, Any],
    announced: int,
    *,
    again: str,
    stake: Mapping[str, object] = MappingProxyType({}),
    waits: Mapping[str, object] = MappingProxyType({}),
) -> bool:
    """Return whether the notice of what was announced is over; else print how long it runs still, or announce it.

    announced: the second that the act was announced for, 0 where it was not. As in `Escrow._requireNoticed`, a notice
    starts over after a pause, and lapses some time after its end. again: the command that acts.
    """
    calls = [runs.notice_period(document["run"]), runs.notice_lapses(), runs.paused_until()]
    seconds, lapses, paused = await chain.call_all(calls)
    now, ready_at = (await chain.head()).timestamp, max(announced, paused + seconds)
    if not announced or now >= ready_at + lapses:
        notice = f"{Duration(seconds)}, in which work goes on; then, within {Duration(lapses)}: {again}"
        document = {**document, "notice_seconds": Duration(seconds)}
        await session.spend(chain, title, {**stake, "notice": notice}, announce, document)
    elif now < ready_at:
        session.result({**document, **waits, "wait_seconds": Duration(ready_at - now)})
    else:
        return True
    return False
