"""What `muster run keys` does: change who acts for a run beside its owner."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer
from eth_utils.address import is_address, to_checksum_address

from muster.chain.client import event_of
from muster.console.session import RunArgument, Session
from muster.contracts import run_terms, runs
from muster.contracts.run_terms import KeysChanged
from muster.errors import CheckError, UsageError
from muster.protocol.keys import check_keys
from muster.runtime.units import Duration, Moment


async def keys(
    session: Session,
    run: RunArgument = None,
    trainer: Annotated[str | None, typer.Option(help="Address that will publish checkpoints.")] = None,
    storage_key: Annotated[
        str | None, typer.Option("--storage-key", help="Address that will sign storage receipts.")
    ] = None,
    admitter: Annotated[
        str | None, typer.Option(help="Address that will list the validators; the zero address: anyone may validate.")
    ] = None,
) -> None:
    """Announce other keys of a run; they are in force after its notice. Keys that are not named stay.

    An announcement replaces the one before, unless that is in force. Start the services with their new keys then.
    """
    chosen = {"trainer": trainer, "storage_key": storage_key, "admitter": admitter}
    changes = {name: _address(name, value) for name, value in chosen.items() if value is not None}
    if not changes:
        raise UsageError("no key is named", hint="--trainer, --storage-key or --admitter, with an address")
    number = run or session.settings.run
    async with session.operator() as chain:
        known = (await chain.keys(number)).tenures
        if not known:
            raise CheckError(f"there is no run {number}", hint="muster run list")
        before = known[-1].keys
        after = replace(before, **changes)
        check_keys(after)
        notice = Duration(await chain.call(runs.notice_period(number)))
        stake = {name: f"{getattr(before, name)} -> {value}" for name, value in changes.items()}
        await session.spend(
            chain,
            f"Change the keys of run {number} after a notice of {notice}, which everybody sees",
            stake,
            run_terms.change_keys(number, after),
            {"run": number, **asdict(after)},
            outcome=lambda receipt: {"from": Moment(event_of(receipt, KeysChanged).from_)},
        )


def _address(name: str, value: str) -> str:
    if not is_address(value):
        raise UsageError(f"{name}: {value!r} is no address", hint="0x and 40 hex digits")
    return to_checksum_address(value)
