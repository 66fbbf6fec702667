"""What goes beside the generated `muster.contracts`: address book, blocks, requests, fees, receipts.

Addresses are checksummed strings, hashes bytes, money token wei, moments seconds or hours since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from eth_utils.address import to_checksum_address

from muster.contracts.abi import CONTRACTS
from muster.contracts.codec import Event
from muster.errors import ConfigError
from muster.runtime.files import write_atomically


@dataclass(frozen=True)
class AddressBook:
    """Where a deployment is. Written by `muster.chain.deploy`; nodes that join a run get it from the run's owner."""

    chain_id: int
    token: str
    registry: str
    run_terms: str
    runs: str
    court: str
    refutations: str
    wages: str
    from_block: int
    """Block of the deployment: following events begins here."""
    code_hashes: dict[str, str] = field(default_factory=dict)
    """keccak of each contract's code as it was deployed, 0x hex, by name; may be empty."""
    guardian: str = ""
    """Who may pause new commitments; empty where that was not recorded."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an address book. Raises ConfigError when there is none or it does not parse."""
        try:
            book = cls(**json.loads(path.read_text(encoding="utf-8")))
            return replace(book, **{name: to_checksum_address(getattr(book, name)) for name in CONTRACTS})
        except FileNotFoundError as error:
            hint = "muster config init --join URL writes that of a run; muster chain deploy makes a new one"
            raise ConfigError(f"no address book at {path}", hint=hint) from error
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no address book: {error}", hint="set chain.addresses") from error

    def save(self, path: Path) -> None:
        """Write so that a reader sees the old content or the new, never half."""
        write_atomically(path, json.dumps(asdict(self), indent=2) + "\n")

    def keep(self, path: Path) -> None:
        """Write where there is no book yet, or the same. Raises ConfigError rather than lose another one."""
        if path.exists():
            known = type(self).load(path)
            if (known.chain_id, known.runs) == (self.chain_id, self.runs):
                return
            raise ConfigError(
                f"{path} is the address book of another deployment",
                hint="set chain.addresses to another path, one for each deployment",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self.save(path)


@dataclass(frozen=True)
class Block:
    number: int
    timestamp: int
    hash: bytes
    parent: bytes = field(default=b"", repr=False)
    """Hash of the block before."""
    bloom: int = field(default=-1, repr=False)
    """Bits of the addresses and topics that its logs may have; all where the endpoint does not say."""
    transactions: int = field(default=-1, repr=False)
    """How many it has; -1 where the endpoint does not list them."""


@dataclass(frozen=True)
class TxReceipt:
    """A transaction that was mined and did what it should; for a dry run, `hash` is empty and `gas_used` estimated."""

    hash: bytes
    block: int
    gas_used: int
    events: tuple[Event, ...]
    """Those of our contracts, in order."""


@dataclass(frozen=True)
class PolicyStep:
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
    wages_tokens: int = 0
    wages_books: int = 0
    """What all runs have for wages, less what was claimed."""

    @property
    def solvent(self) -> bool:
        held = (self.registry_tokens, self.runs_tokens, self.wages_tokens)
        owed = (self.registry_books, self.runs_books, self.wages_books)
        return all(one >= other for one, other in zip(held, owed, strict=True))


@dataclass(frozen=True)
class TxRequest:
    """A transaction to be sent: signed, priced and numbered by the sender."""

    to: str | None
    """None creates a contract."""
    data: bytes
    label: str
    """In words, for journal and errors, e.g. Runs.commitWork."""
    value: int = 0


@dataclass(frozen=True)
class Mined:
    """A transaction in a block, successful or not."""

    hash: bytes
    block: int
    ok: bool
    gas_used: int
    gas: int
    """Its limit."""
    contract: str | None
    """Address of the contract it created."""
    logs: list[dict[str, Any]]


@dataclass(frozen=True)
class Fees:
    max_fee: int
    tip: int

    def times(self, factor: float) -> Fees:
        return Fees(int(self.max_fee * factor) + 1, int(self.tip * factor) + 1)


def mined_from(receipt: Mapping[str, Any], gas: int) -> Mined:
    return Mined(
        hash=bytes.fromhex(receipt["transactionHash"][2:]),
        block=int(receipt["blockNumber"], 16),
        ok=int(receipt["status"], 16) == 1,
        gas_used=int(receipt["gasUsed"], 16),
        gas=gas,
        contract=receipt.get("contractAddress"),
        logs=list(receipt["logs"]),
    )
