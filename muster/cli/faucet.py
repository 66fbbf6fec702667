"""muster faucet: test tokens, once a day."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.session import Session, command, tokens
from muster.cli.spend import spend


def add_to(app: typer.Typer) -> None:
    command(app, "faucet", spends=True)(faucet)


async def faucet(
    session: Session,
    wallet: Annotated[
        str | None, typer.Option("--wallet", help="A path or a name; else the key of the settings.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file", "--operator-password-file", help="File (mode 0600) with the wallet's password."
        ),
    ] = None,
) -> None:
    """Draw test tokens to a wallet. They are worth nothing, and can be drawn once a day."""
    from muster.chain.contracts import token

    signer = await session.signer(wallet, password_file)
    async with session.chain(signer) as chain:
        await spend(
            session,
            chain,
            "Draw test tokens",
            {"to": signer.address, "tokens": tokens(await chain.ask(token.faucet_amount()))},
            token.faucet(),
            {"account": signer.address},
        )
