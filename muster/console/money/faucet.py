"""muster faucet: test tokens, once a day."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from eth_utils.address import is_address, to_checksum_address

from muster.chain.anvil import LocalChain
from muster.chain.connection import connected
from muster.console.command import command
from muster.console.money.wallet import address_of
from muster.console.session import Session
from muster.constants import CHAIN_ANVIL, TOKEN
from muster.contracts import token
from muster.errors import UsageError
from muster.runtime.units import Ether, Tokens

app = typer.Typer()

LOCAL_ETHER: Final = 10 * TOKEN
"""Wei that `muster faucet --ether` gives: on Anvil, two days of gas of several nodes at full speed."""


@command(app, "faucet", spends=True, of_node=True)
async def faucet(
    session: Session,
    wallet: Annotated[str | None, typer.Option(help="A path or a name; else the key of the settings.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="File (mode 0600) with the wallet's password.")] = None,
    ether: Annotated[bool, typer.Option("--ether", help="Local ether for gas instead of tokens.")] = False,
    to: Annotated[str | None, typer.Option("--to", help="With --ether: the address that gets it.")] = None,
) -> None:
    """Draw test tokens to a wallet. They are worth nothing, and can be drawn once a day.

    --ether gives ether for gas instead, on a local chain, to the wallet's address or to --to.
    """
    if ether:
        await _give_ether(session, await address_of(session, wallet) if to is None else to)
        return
    if to is not None:
        raise UsageError("tokens are drawn to a wallet", hint="muster faucet --wallet NAME")
    signer = await session.signer(wallet, password_file)
    async with session.chain(signer) as chain:
        await session.spend(
            chain,
            "Draw test tokens",
            {"to": signer.address, "amount": Tokens(await chain.call(token.faucet_amount()))},
            token.faucet(),
            {"account": signer.address},
        )


async def _give_ether(session: Session, address: str) -> None:
    """Add LOCAL_ETHER to what an address holds on Anvil. Raises UsageError on any other chain."""
    if not is_address(address):
        raise UsageError(f"{address!r} is no address", hint="muster wallet show prints those of your wallets")
    chain_id = session.settings.chain.chain_id
    if chain_id != CHAIN_ANVIL:
        hint = f"a public faucet of chain {chain_id} gives test ether: send it to {address}"
        raise UsageError("ether can be given on a local chain only", hint=hint)
    async with connected(session.settings.chain) as web3:
        balance = await web3.eth.get_balance(to_checksum_address(address)) + LOCAL_ETHER
        document = {"account": address, "amount": Ether(LOCAL_ETHER), "balance": Ether(balance)}
        if session.options.dry_run:
            session.result({"dry_run": True, **document}, "nothing was sent")
            return
        await (await LocalChain.open(web3)).fund([address], balance)
        session.result(document)
