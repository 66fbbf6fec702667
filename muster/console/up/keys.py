"""The keys of a node: the operator's wallet, and the node's own key with a password that this machine makes up.

Each is made once. A process that is killed in between leaves a complete file or none, so the same command resumes with
what is there and never makes a second key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from muster.chain.keys import (
    Signer,
    check_password,
    create_keystore,
    load_keystore,
    load_raw_key,
    read_password,
)
from muster.console.money.wallet import OPERATOR, new_password, read_address
from muster.console.session import wallet_keys, wallet_path
from muster.errors import ConfigError
from muster.settings.schema import KeySettings


@dataclass(frozen=True)
class OperatorWallet:
    """The cold key that owns stake and earnings: its file, and what opens it."""

    path: Path
    is_new: bool
    raw: bool = False
    password: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        """Return its address without its password; "" where that cannot be."""
        return "" if self.is_new or self.raw else read_address(self.path)

    def unlock(self, chain_id: int) -> Signer:
        """Return the key; make it where there is none. Takes about a second on purpose. Raises ConfigError."""
        if self.raw:
            return load_raw_key(self.path, chain_id)
        if self.is_new:
            return create_keystore(self.path, self.password)
        return load_keystore(self.path, self.password)


def ask_for_operator(wallet: str | None, password_file: Path | None) -> OperatorWallet:
    """Find the operator's wallet and get its password, from a file or a person; without a name it may be a new one.

    Raises ConfigError and UsageError: of the password file, before anything is made.
    """
    path = wallet_path(wallet or OPERATOR)
    if path.exists():
        if wallet_keys(str(path)).raw_key_file is not None:
            return OperatorWallet(path, is_new=False, raw=True)
        return OperatorWallet(path, is_new=False, password=read_password(password_file, f"Password of {path}: "))
    if wallet is not None:
        raise ConfigError(f"no wallet at {path}", hint=f"muster wallet new {wallet}; without --operator one is made")
    password = new_password(password_file)
    check_password(password)
    return OperatorWallet(path, is_new=True, password=password)


def require_node_key(keys: KeySettings) -> None:
    """Raise ConfigError where the key of a node that was made before is gone: another one would need another stake."""
    path = keys.keystore or keys.raw_key_file
    if path is not None and not path.exists():
        hint = "restore it from a backup, or make another node: --name NAME"
        raise ConfigError(f"the node's key {path} is gone", hint=hint)
