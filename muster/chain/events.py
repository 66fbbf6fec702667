"""The contracts' events as frozen dataclasses, decoded from logs by the built ABIs.

Field names are Solidity's in Python's spelling, in the order of the ABI (tests/unit/test_chain_tables.py holds them
equal). A log counts only when it comes from the contract of ours that emits such an event: anybody can emit a
look-alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address

from muster.chain.abi import CONTRACTS, artifact, snake, topic, types
from muster.chain.types import AddressBook, Flaw, Kind, Outcome, Role
from muster.errors import MalformedError


@dataclass(frozen=True)
class Place:
    """Where an event is in the chain."""

    block: int
    block_hash: bytes
    transaction: bytes
    log_index: int
    """Within the block."""


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    at: Place


# MusterToken


@dataclass(frozen=True)
class FaucetUsed(Event):
    account: str
    amount: int


# Registry


@dataclass(frozen=True)
class Deposited(Event):
    operator: str
    amount: int


@dataclass(frozen=True)
class FreeWithdrawn(Event):
    operator: str
    amount: int


@dataclass(frozen=True)
class Registered(Event):
    node: str
    operator: str
    run: int
    role: Role
    work_class: int
    lock: int
    draw_tip: bytes


@dataclass(frozen=True)
class Retired(Event):
    node: str
    run: int
    withdrawable_at: int


@dataclass(frozen=True)
class Withdrawn(Event):
    node: str
    operator: str
    amount: int


@dataclass(frozen=True)
class Convicted(Event):
    node: str
    run: int
    slashed: int
    bounty: int
    beneficiary: str


@dataclass(frozen=True)
class Held(Event):
    operator: str
    amount: int


@dataclass(frozen=True)
class Released(Event):
    operator: str
    amount: int


# Runs


@dataclass(frozen=True)
class RunCreated(Event):
    run: int
    owner: str
    trainer: str


@dataclass(frozen=True)
class Funded(Event):
    run: int
    from_: str
    amount: int


@dataclass(frozen=True)
class WithdrawalAnnounced(Event):
    run: int
    amount: int
    ready_at: int


@dataclass(frozen=True)
class EscrowWithdrawn(Event):
    run: int
    owner: str
    amount: int


@dataclass(frozen=True)
class CloseAnnounced(Event):
    run: int
    ready_at: int


@dataclass(frozen=True)
class RunClosed(Event):
    run: int
    paid_to_owner: int


@dataclass(frozen=True)
class AdmissionChanged(Event):
    run: int
    operator: str
    admitted: bool


@dataclass(frozen=True)
class CheckpointPublished(Event):
    run: int
    step: int
    manifest_root: bytes
    batch_root: bytes
    entropy: bytes
    anchor: bytes


@dataclass(frozen=True)
class WorkCommitted(Event):
    run: int
    node: str
    step: int
    index: int
    hour: int
    root: bytes


@dataclass(frozen=True)
class Claimed(Event):
    run: int
    node: str
    operator: str
    from_: int
    """First commitment paid."""
    through: int
    paid: int


@dataclass(frozen=True)
class Voided(Event):
    run: int
    node: str
    from_: int
    through: int
    amount: int


@dataclass(frozen=True)
class HourSealed(Event):
    run: int
    hour: int
    validator: str
    vouch_root: bytes
    paid: int


@dataclass(frozen=True)
class SealedThrough(Event):
    run: int
    hour: int


@dataclass(frozen=True)
class Paused(Event):
    until: int


@dataclass(frozen=True)
class Unpaused(Event):
    pass


# SlashCourt


@dataclass(frozen=True)
class CaseOpened(Event):
    case_id: int
    node: str
    challenger: str
    run: int
    index: int
    step: int
    root: bytes
    kind: Kind
    position: int
    evidence_hash: bytes
    jury: int
    commit_ends: int
    reveal_ends: int


@dataclass(frozen=True)
class VoteCommitted(Event):
    case_id: int
    judge: str
    hash: bytes


@dataclass(frozen=True)
class VoteRevealed(Event):
    case_id: int
    judge: str
    guilty: bool


@dataclass(frozen=True)
class CaseResolved(Event):
    case_id: int
    node: str
    outcome: Outcome
    guilty_votes: int
    reveals: int
    jury: int


@dataclass(frozen=True)
class Collected(Event):
    case_id: int
    judge: str
    amount: int


@dataclass(frozen=True)
class Refuted(Event):
    node: str
    index: int
    prover: str
    kind: Kind
    position: int
    flaw: Flaw


@dataclass(frozen=True)
class VouchRefuted(Event):
    validator: str
    hour: int
    prover: str
    node: str
    """Whose commitment the validator had vouched for."""
    index: int
    kind: Kind
    flaw: Flaw


EVENTS: dict[str, tuple[type[Event], ...]] = {
    "token": (FaucetUsed,),
    "registry": (Deposited, FreeWithdrawn, Registered, Retired, Withdrawn, Convicted, Held, Released),
    "runs": (
        RunCreated,
        Funded,
        WithdrawalAnnounced,
        EscrowWithdrawn,
        CloseAnnounced,
        RunClosed,
        AdmissionChanged,
        CheckpointPublished,
        WorkCommitted,
        Claimed,
        Voided,
        HourSealed,
        SealedThrough,
        Paused,
        Unpaused,
    ),
    "court": (CaseOpened, VoteCommitted, VoteRevealed, CaseResolved, Collected, Refuted, VouchRefuted),
}
"""Which contract emits what. OpenZeppelin's own events (Transfer, Approval) are nobody's news here."""


@dataclass(frozen=True)
class Codec:
    """How one event lies in a log."""

    kind: type[Event]
    topic: bytes
    indexed: tuple[tuple[str, str], ...]
    """(name, type) of the fields in topics 1 to 3."""
    plain: tuple[tuple[str, str], ...]
    """(name, type) of the fields in the data."""
    hints: Mapping[str, type]

    def decode(self, log: Mapping[str, Any]) -> Event:
        """Raises MalformedError when the log does not fit."""
        try:
            topics = [bytes.fromhex(text[2:]) for text in log["topics"][1:]]
            names = [name for name, _ in (*self.indexed, *self.plain)]
            values = [decode([kind], word)[0] for (_, kind), word in zip(self.indexed, topics, strict=True)]
            values += decode([kind for _, kind in self.plain], bytes.fromhex(log["data"][2:]))
            fields = {name: self._value(name, value) for name, value in zip(names, values, strict=True)}
            return self.kind(place_of(log), **fields)
        except (DecodingError, ValueError, KeyError, OverflowError) as error:
            raise MalformedError(f"a log does not decode as {self.kind.__name__}: {error}") from error

    def _value(self, name: str, value: Any) -> Any:
        hint = self.hints[name]
        if hint is str:
            return to_checksum_address(value)
        return hint(value)


@cache
def codecs() -> dict[tuple[str, bytes], Codec]:
    """Codecs by contract and topic."""
    known: dict[tuple[str, bytes], Codec] = {}
    for contract in CONTRACTS:
        items = {item["name"]: item for item in artifact(contract).items("event")}
        for kind in EVENTS[contract]:
            item = items[kind.__name__]
            known[contract, topic(item)] = _codec(kind, item)
    return known


def _codec(kind: type[Event], item: dict[str, Any]) -> Codec:
    def pick(indexed: bool) -> tuple[tuple[str, str], ...]:
        chosen = [part for part in item["inputs"] if part["indexed"] is indexed]
        return tuple(zip([snake(part["name"]) for part in chosen], types(chosen), strict=True))

    return Codec(kind, topic(item), pick(True), pick(False), get_type_hints(kind))


def codec_of(kind: type[Event]) -> tuple[str, Codec]:
    """The contract that emits an event, and its codec."""
    return next((contract, codec) for (contract, _), codec in codecs().items() if codec.kind is kind)


def decode_logs(logs: Iterable[Mapping[str, Any]], book: AddressBook) -> tuple[Event, ...]:
    """Events of our contracts among logs, in order; everything else is passed over."""
    names = {getattr(book, name).lower(): name for name in CONTRACTS}
    events: list[Event] = []
    for log in logs:
        contract = names.get(log["address"].lower())
        codec = codecs().get((contract, bytes.fromhex(log["topics"][0][2:]))) if contract and log["topics"] else None
        if codec is not None:
            events.append(codec.decode(log))
    return tuple(sorted(events, key=lambda event: (event.at.block, event.at.log_index)))


def place_of(log: Mapping[str, Any]) -> Place:
    """Where a log is."""
    return Place(
        block=int(log["blockNumber"], 16),
        block_hash=bytes.fromhex(log["blockHash"][2:]),
        transaction=bytes.fromhex(log["transactionHash"][2:]),
        log_index=int(log["logIndex"], 16),
    )
