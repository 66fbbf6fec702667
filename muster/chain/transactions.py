"""What the sender handles: calls, fees, receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.constants import TOKEN


@dataclass(frozen=True)
class Call:
    """Something to be done on chain."""

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
class Settled:
    """What became of a transaction that an earlier send, or an earlier life of this process, left open."""

    nonce: int
    label: str
    mined: Mined | None
    """None when another transaction took its nonce."""


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


def ether(wei: int) -> str:
    return f"{wei / TOKEN:.6g}"
