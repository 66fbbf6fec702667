"""muster wallet: keystore v3 files, mode 0600, never overwritten; and what an operator keeps in the Registry."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from eth_utils.address import is_address, to_checksum_address

from muster.chain.client import Chain
from muster.chain.keys import (
    Signer,
    ask_secret,
    create_keystore,
    import_keystore,
    read_address,
    read_keystore,
    read_password,
    read_secret,
    refuse_existing,
    write_private,
)
from muster.console.command import command
from muster.console.money.backup import pack, unpack
from muster.console.session import Session, parse_tokens, wallet_folder, wallet_keys, wallet_path
from muster.contracts import registry, token
from muster.errors import ConfigError, UnreachableError, UsageError
from muster.runtime.units import Ether, Tokens

app = typer.Typer()

OPERATOR: Final = "operator"
"""Name of the operator's wallet that muster up finds or makes where none is named."""

UNKNOWN: Final = "unknown"
"""The address of a wallet whose file does not name it."""

PASSWORD_ATTEMPTS: Final = 3
"""How often a new password is asked for where its repetition differs."""

Wallet = Annotated[str, typer.Argument(help="A path, or a name: NAME means ~/.muster/keys/NAME.json.")]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="File (mode 0600) with the password; else it is asked for.")
]


@command(app, "new")
def new(session: Session, wallet: Wallet, password_file: PasswordFile = None) -> None:
    """Make a new key and keep it encrypted."""
    refuse_existing(path := wallet_path(wallet))
    signer = create_keystore(path, new_password(password_file))
    session.result(
        {"address": signer.address, "keystore": str(path)},
        f"{signer.address}\nkept in {path}; it cannot be recovered without the file and its password: back up both",
    )


@command(app, "import")
def import_(session: Session, wallet: Wallet, password_file: PasswordFile = None) -> None:
    """Encrypt an existing key: 64 hex digits, asked for without echo or read from standard input."""
    refuse_existing(path := wallet_path(wallet))
    text = ask_secret("Private key: ") if sys.stdin.isatty() else sys.stdin.read(1024)
    signer = Signer.from_key(text.strip())
    import_keystore(path, signer, new_password(password_file))
    session.result({"address": signer.address, "keystore": str(path)}, f"{signer.address}\nkept in {path}")


@command(app, "show", of_node=True)
async def show(
    session: Session,
    wallet: Annotated[str | None, typer.Argument(help="A path or a name; without one, all in ~/.muster/keys.")] = None,
) -> None:
    """Show addresses and what they hold. Needs no password."""
    paths = [wallet_path(wallet)] if wallet else sorted(wallet_folder().glob("*.json"))
    if wallet:
        read_keystore(paths[0])  # raises for what is none
    rows = [{"wallet": path.stem, "address": _shown_address(path), "keystore": str(path)} for path in paths]
    if rows:
        try:
            rows = await _with_balances(session, rows)
        except (UnreachableError, ConfigError) as error:
            session.note(f"no balances: {error}")
    session.result(rows[0] if wallet else rows)


@command(app, "backup")
def backup(
    session: Session,
    file: Annotated[Path, typer.Argument(help="The archive to write; it must not exist.")],
    password_file: PasswordFile = None,
) -> None:
    """Write one encrypted archive of what cannot be made again: wallets, nodes' keys, secrets and journals."""
    refuse_existing(file)
    archive, names = pack(wallet_folder().parent, new_password(password_file))
    write_private(file, archive)
    more = "keep it and its password apart; muster wallet restore puts it back"
    document = {"backup": str(file), "bytes": len(archive), "files": names}
    session.result(document, f"{len(names)} files in {file}\n{more}")


@command(app, "restore")
def restore(
    session: Session,
    file: Annotated[Path, typer.Argument(help="What muster wallet backup wrote.")],
    password_file: PasswordFile = None,
) -> None:
    """Put back what a backup holds. Files that are there already are left; where one differs nothing is written."""
    try:
        archive = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    names = unpack(archive, read_password(password_file, f"Password of {file}: "), wallet_folder().parent)
    more = "start a node here only once it is stopped elsewhere: two processes with one key contradict each other"
    session.result({"files": names}, f"{len(names)} files are in {wallet_folder().parent}\n{more}")


@command(app, "deposit", operator=True, of_node=True)
async def deposit(session: Session, amount: Annotated[str, typer.Argument(help="Tokens to move.")]) -> None:
    """Move tokens into the operator's free balance, from which stakes, case fees and jury deposits are taken."""
    wei = parse_tokens(amount)
    async with session.operator() as chain:
        await require_tokens(chain, wei)
        operator = chain.signer.address
        await session.spend(
            chain,
            f"Move {Tokens(wei)} into the free balance",
            {"free after": f"{Tokens(await chain.call(registry.free_balance(operator)) + wei)}"},
            lambda chain: chain.deposit_with_permit(wei),
            {"operator": operator, "amount": Tokens(wei)},
        )


async def require_tokens(chain: Chain, wei: int) -> None:
    """Raise UsageError where the key that sends holds fewer tokens."""
    held = await chain.call(token.balance_of(chain.signer.address))
    if held < wei:
        raise UsageError(f"{chain.signer.address} holds {Tokens(held)}", hint="muster faucet")


@command(app, "withdraw", operator=True, of_node=True)
async def withdraw(
    session: Session, amount: Annotated[str | None, typer.Argument(help="Tokens to move; else all.")] = None
) -> None:
    """Move tokens out of the operator's free balance: bounties, shares of fees, deposits that came back."""
    async with session.operator() as chain:
        operator = chain.signer.address
        free = await chain.call(registry.free_balance(operator))
        wei = free if amount is None else parse_tokens(amount)
        if not 0 < wei <= free:
            raise UsageError(f"{operator} has {Tokens(free)} free in the registry")
        await session.spend(
            chain,
            f"Move {Tokens(wei)} out of the free balance",
            {"free after": f"{Tokens(free - wei)}, for case fees and jury deposits"},
            registry.withdraw_free(wei),
            {"operator": operator, "amount": Tokens(wei)},
        )


async def _with_balances(session: Session, rows: list[dict]) -> list[dict]:
    async with session.chain() as chain:
        for row in (row for row in rows if row["address"] != UNKNOWN):
            row["gas"] = Ether(await chain.eth_balance(row["address"]))
            row["tokens"] = Tokens(await chain.call(token.balance_of(row["address"])))
            row["free_stake"] = Tokens(await chain.call(registry.free_balance(row["address"])))
    return rows


def _shown_address(path: Path) -> str:
    with suppress(ConfigError):
        return read_address(path)
    return UNKNOWN


async def address_of(session: Session, node: str | None) -> str:
    """Return a node's address; its password is needed only where its keystore does not name it."""
    if node is not None and is_address(node):
        return to_checksum_address(node)
    keys = session.settings.keys if node is None else wallet_keys(node)
    if keys.keystore is not None:
        with suppress(ConfigError):
            return await asyncio.to_thread(read_address, keys.keystore)
    return (await session.signer(node)).address


def new_password(password_file: Path | None) -> str:
    """Return the password of a new key, from a file or asked for twice. Raises UsageError, ConfigError."""
    if password_file is not None:
        return read_secret(password_file)
    if not sys.stdin.isatty():
        raise UsageError("a new key needs a password, and there is no terminal to ask on", hint="add --password-file")
    for _ in range(PASSWORD_ATTEMPTS):
        password = read_password(None, "New password: ")
        if read_password(None, "Once more: ") == password:
            return password
        print("the passwords differ; choose it again", file=sys.stderr)
    raise UsageError("the passwords differ", hint="type the command again")
