"""What `muster run` does with a run's money and its end: fund, withdraw, close, reveal masters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.chain.client import Chain, event_of
from muster.chain.types import TxReceipt
from muster.console.money.wallet import require_tokens
from muster.console.session import RunArgument, Session, parse_tokens
from muster.contracts import masters as masters_contract
from muster.contracts import runs, token
from muster.contracts.run_terms import Series
from muster.contracts.runs import EscrowWithdrawn, Phase
from muster.errors import ChainError, MismatchError, UsageError
from muster.protocol.hashes import hex_hash
from muster.protocol.masters import epochs_begun, epochs_over
from muster.protocol.terms_file import TRAP_ACCEPTS
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
        run_hash = await chain.run_hash(number)

        async def act(chain: Chain) -> TxReceipt:
            # A dry run does not see the allowance of a dry run, so it ends after that.
            if await chain.call(token.allowance(chain.signer.address, chain.addresses.runs)) < wei:
                approval = await chain.send(token.approve(chain.addresses.runs, wei))
                if not approval.hash:
                    return approval
            return await chain.send(runs.fund(number, run_hash, wei))

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


async def reveal_master(
    session: Session,
    masters: Annotated[Path, typer.Argument(help="Secret file of muster tasks seal, or of muster run masters.")],
    run: RunArgument = None,
    epoch: Annotated[
        int | None, typer.Option(min=1, help="Reveal up to this epoch; else the epochs that are over.")
    ] = None,
) -> None:
    """Reveal masters whose epoch is over: all grades of its private tests can then be checked, or its traps are open.

    Until the masters of all epochs that have begun are revealed, you can neither withdraw nor close. The last epoch
    goes on for ever: name it by --epoch when you end the run. What is revealed too early is private no more.
    """
    from muster.chain.masters_file import read_masters

    secret, number = read_masters(masters), run or session.settings.run
    async with session.operator() as chain:
        # 1. Which are due.
        terms, state = await chain.terms(number), await chain.call(runs.run_state(number))
        series = next((one for one in (terms.grade_series, terms.trap_series) if one.tip == secret.tip), None)
        if series is None:
            raise MismatchError(f"{masters} holds the masters of another run than {number}", hint="muster run list")
        shown = (await chain.call(masters_contract.masters(number, series.kind))).epochs
        last = epochs_over(series, state.steps) if epoch is None else epoch
        if last <= shown:
            session.result(
                {"run": number, "revealed": [], "epochs": shown},
                f"nothing is due: {shown} of {series.epochs} masters are revealed; the last with --epoch",
            )
            return
        begun = epochs_begun(series, state.steps)
        if last > begun:
            raise UsageError(
                f"epoch {last} has not begun; the run is in epoch {begun}", hint="reveal it when it is over"
            )

        # 2. In order.
        async def act(chain: Chain) -> TxReceipt:
            # A dry run does not see the master that a dry run revealed, so it ends after one.
            receipt = await chain.send(masters_contract.reveal_master(number, series.kind, secret.of(shown + 1)))
            for later in range(shown + 2, last + 1):
                if not receipt.hash:
                    break
                receipt = await chain.send(masters_contract.reveal_master(number, series.kind, secret.of(later)))
            return receipt

        revealed = list(range(shown + 1, last + 1))
        title = f"Reveal the master of epoch {', '.join(map(str, revealed))} of run {number}"
        what = "tests" if series.kind == Series.GRADES else "traps"
        stake = {"private no more": f"the {what} of these epochs"}
        await session.spend(chain, title, stake, act, {"run": number, "revealed": revealed, "epochs": last})


def masters(
    session: Session,
    out: Annotated[Path, typer.Argument(help="New file for the secret. Keep it, and keep it secret.")],
    epochs: Annotated[int, typer.Option(min=1, help="Epochs, each with a master.")] = 1,
    epoch_steps: Annotated[
        int, typer.Option("--epoch-steps", min=0, help="Steps of an epoch but the last; needed with --epochs.")
    ] = 0,
) -> None:
    """Make the masters of a run's traps, by which you alone know which commitments are picked.

    Prints what goes into the run's terms file; trap_every and trap_prize are yours to choose. One accept is enough
    where looking is paid. The orchestrator reads the file by orchestrator.trap_masters.
    """
    from muster.chain.masters_file import write_masters
    from muster.grading.masters import Masters

    if (epochs > 1) != (epoch_steps > 0):
        raise UsageError("--epochs and --epoch-steps go together", hint="one epoch, the default, is the whole run")
    made = Masters.make(epochs)
    write_masters(out, made)
    terms = {"trap_tip": hex_hash(made.tip), "trap_epochs": epochs, "trap_epoch_steps": epoch_steps or 1}
    terms["accepts_required"] = TRAP_ACCEPTS
    session.result({"masters": str(out), **terms})


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
