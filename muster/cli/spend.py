"""Send a transaction from the command line: dry run, show what is at stake, ask, send, print the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.session import Session
from muster.runtime.units import Ether

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.chain.types import TxReceipt
    from muster.contracts.codec import Transaction

TRANSFER_GAS: Final = 21_000

OperatorOption = Annotated[
    str | None,
    typer.Option("--operator", help="Wallet of the cold operator key: a path or a name. Else the key of the settings."),
]
OperatorPassword = Annotated[
    Path | None, typer.Option("--password-file", help="File (mode 0600) with the operator wallet's password.")
]


async def spend(
    session: Session,
    chain: Chain,
    title: str,
    stake: Mapping[str, object],
    transaction: Transaction | Callable[[Chain], Awaitable[TxReceipt]],
    document: Mapping[str, Any] | None = None,
    outcome: Callable[[TxReceipt], Mapping[str, Any]] = lambda _: {},
    *,
    sends: int = 0,
) -> TxReceipt | None:
    """Dry-run `transaction`; then, unless only that is wanted, ask, send it and print the result.

    `transaction` is one of `muster.contracts`, or a function that sends several. The dry run raises RevertError, and
    UnfundedError when the key cannot pay for the gas and for `sends`: wei that it will send besides. `document` is what
    the result says besides the transaction; `outcome` adds what only the receipt knows.
    """

    async def do(chain: Chain) -> TxReceipt:
        return await (transaction(chain) if callable(transaction) else chain.send(transaction))

    dry_run = await do(chain.dry_run())
    gas = dry_run.gas_used + (TRANSFER_GAS if sends else 0)
    cost = await chain.require_funds(title, gas, sends)
    shown = dict(stake) | {"fee": f"at most {Ether(cost)} for gas", "key": chain.signer.address}
    if not session.preview(title, shown):
        session.result({"dry_run": True, **(document or {}), "gas": dry_run.gas_used}, "nothing was sent")
        return None
    receipt = await do(chain)
    session.result(
        {
            **(document or {}),
            **outcome(receipt),
            "transaction": receipt.hash,
            "block": receipt.block,
            "gas": receipt.gas_used,
        }
    )
    return receipt
