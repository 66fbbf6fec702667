"""Acting on chain from the command line: show what is at stake, rehearse it, ask, send, print the transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.session import Session

if TYPE_CHECKING:
    from muster.chain.client import Chain
    from muster.chain.codec import Act
    from muster.chain.types import TxReceipt

OperatorOption = Annotated[
    str | None,
    typer.Option("--operator", help="Wallet of the cold operator key: a path or a name. Else the key of the settings."),
]
OperatorPassword = Annotated[
    Path | None, typer.Option("--operator-password-file", help="File (mode 0600) with the operator wallet's password.")
]


async def spend(
    session: Session,
    chain: Chain,
    title: str,
    stake: Mapping[str, object],
    act: Act | Callable[[Chain], Awaitable[TxReceipt]],
    document: Mapping[str, Any] | None = None,
    outcome: Callable[[TxReceipt], Mapping[str, Any]] = lambda _: {},
) -> TxReceipt | None:
    """Rehearse `act`, and unless this is a dry run ask, do it and print the result.

    `act` is one transaction, or a function that sends what it takes.
    The rehearsal raises RevertError before anybody is asked anything. `document` is what the result says besides the
    transaction; `outcome` adds what only the receipt knows.
    """

    async def do(chain: Chain) -> TxReceipt:
        return await (act(chain) if callable(act) else chain.act(act))

    rehearsal = await do(chain.preview())
    shown = dict(stake) | {"gas": f"about {rehearsal.gas_used:,}", "key": chain.signer.address}
    if not session.preview(title, shown):
        session.result({"dry_run": True, **(document or {}), "gas": rehearsal.gas_used}, "nothing was sent")
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
