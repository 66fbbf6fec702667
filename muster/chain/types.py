"""What goes beside the generated `muster.chain.contracts`: address book, blocks, receipts, answers of several calls.

Addresses are checksummed strings, hashes bytes, money token wei, moments seconds or hours since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from muster.chain.codec import Event
from muster.chain.contracts.court import Kind
from muster.errors import ConfigError
from muster.files import write_atomically


def kind_of(reason: str) -> Kind:
    """The kind of case that a verdict's reason (`muster.messages.Reason`) leads to."""
    return Kind[reason.upper()]


@dataclass(frozen=True)
class AddressBook:
    """Where a deployment is. Written by `muster.chain.deploy`; whoever joins a run gets it from its owner."""

    chain_id: int
    token: str
    registry: str
    runs: str
    court: str
    from_block: int
    """Block of the deployment: following events begins here."""
    code_hashes: dict[str, str] = field(default_factory=dict)
    """keccak of each contract's code as it was deployed, 0x hex, by name; may be empty."""
    guardian: str = ""
    """Who may pause new commitments; empty where that was not recorded."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ConfigError when there is none or it does not parse."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            hint = "set chain.addresses to the book of this deployment, or make one: muster chain deploy"
            raise ConfigError(f"no address book at {path}", hint=hint) from error
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no address book: {error}", hint="set chain.addresses") from error

    def save(self, path: Path) -> None:
        """Write so that a reader sees the old content or the new, never half."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True)
class Block:
    number: int
    timestamp: int
    hash: bytes


@dataclass(frozen=True)
class TxReceipt:
    """A transaction that was mined and did what it should; for a preview, `hash` is empty and `gas_used` estimated."""

    hash: bytes
    block: int
    gas_used: int
    events: tuple[Event, ...]
    """Those of our contracts, in order."""


@dataclass(frozen=True)
class Checkpoint:
    """A published policy step."""

    step: int
    manifest_root: bytes
    batch_root: bytes
    entropy: bytes
    anchor: bytes


@dataclass(frozen=True)
class Solvency:
    """Tokens that the contracts hold, and what their books say they owe."""

    registry_tokens: int
    registry_books: int
    """Locks, free balances and what is held for cases."""
    runs_tokens: int
    runs_books: int
    """Escrows of all runs, reserved pay included."""

    @property
    def solvent(self) -> bool:
        return self.registry_tokens >= self.registry_books and self.runs_tokens >= self.runs_books
