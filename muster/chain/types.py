"""What the contracts say, as frozen dataclasses: field by field and in order as in `contracts/interfaces`.

Addresses are checksummed strings, hashes bytes, money token wei, moments seconds or hours since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

from muster.errors import ConfigError
from muster.files import write_atomically

if TYPE_CHECKING:
    from muster.chain.events import Event


class Role(IntEnum):
    """What a node does."""

    NONE = 0
    WORKER = 1
    VALIDATOR = 2


class Status(IntEnum):
    """Where a node is in its life."""

    NONE = 0
    ACTIVE = 1
    RETIRED = 2
    JAILED = 3
    WITHDRAWN = 4


class Kind(IntEnum):
    """What a case is about; in the order of `muster.messages.Reason`."""

    MALFORMED = 0
    DATA_MISSING = 1
    WRONG_ROOT = 2
    WRONG_DRAW = 3
    WRONG_PROMPT = 4
    OUT_OF_BOUNDS = 5
    WRONG_TERMINATION = 6
    WRONG_REWARD = 7
    SAMPLING_MISMATCH = 8
    ACTIVATION_MISMATCH = 9
    WRONG_LOGPROBS = 10

    @classmethod
    def of(cls, reason: str) -> Kind:
        """The kind of case a verdict's reason leads to."""
        return cls[reason.upper()]


class Outcome(IntEnum):
    """How a case ended."""

    OPEN = 0
    GUILTY = 1
    NOT_GUILTY = 2
    NO_QUORUM = 3
    MOOT = 4
    DISMISSED = 5


class Flaw(IntEnum):
    """What the contract itself found wrong with leaves."""

    NONE = 0
    WRONG_TASK = 1
    WRONG_SEED = 2
    WRONG_BUDGET = 3
    OUT_OF_BOUNDS = 4
    POSITION_TWICE = 5
    POSITION_BEYOND = 6


class BallotState(IntEnum):
    """What a judge has done in a case."""

    NONE = 0
    COMMITTED = 1
    REVEALED = 2
    COLLECTED = 3


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
class RunState:
    """What changes in a run with every commitment."""

    balance: int
    """Escrow, reserved pay included."""
    reserved: int
    steps: int
    """Checkpoints published; the latest is steps - 1."""
    sealed_through: int
    """Hour through which a quorum sealed."""
    validators: int
    async_level: int
    commitments_per_hour: int
    closed: bool


@dataclass(frozen=True)
class RunInfo:
    """What changes in a run more rarely."""

    owner: str
    published_at: int
    kept: int
    """Voided pay still in the escrow, never withdrawable."""
    withdrawal: int
    withdrawal_at: int
    close_at: int


@dataclass(frozen=True)
class Node:
    """A session key and what became of it; `status` NONE for a key that never registered."""

    operator: str
    run: int
    role: Role
    work_class: int
    status: Status
    registered_at: int
    lock: int
    retired_at: int
    draw_tip: bytes


@dataclass(frozen=True)
class Work:
    """A worker's account."""

    pay: int
    """Token wei per commitment."""
    next: int
    """Index of its next commitment."""
    settled: int
    """Commitments below this index are settled."""
    last_step: int
    joined_step: int
    last_hour: int
    count_in_hour: int
    operator: str
    run: int
    work_class: int
    left: bool
    open_cases: int


@dataclass(frozen=True)
class Commitment:
    """`digest` is all zero for an index that is not committed."""

    digest: bytes
    """First 29 bytes of keccak256(abi.encode(run, step, root))."""
    hour: int


@dataclass(frozen=True)
class Case:
    """A juried case."""

    node: str
    run: int
    opened_at: int
    kind: Kind
    outcome: Outcome
    challenger: str
    index: int
    position: int
    jury: int
    fee: int
    deposit: int
    commits: int
    reveals: int
    guilty_votes: int
    share: int
    """What each revealer can collect after the end."""
    commit_ends: int
    reveal_ends: int
    senior_before: int
    evidence_hash: bytes


@dataclass(frozen=True)
class Ballot:
    """A judge's vote in a case."""

    state: BallotState
    hash: bytes
    """First 31 bytes of the vote's hash."""


@dataclass(frozen=True)
class Registration:
    """What an operator asks for and the node's key consents to; see `muster.chain.consent`."""

    node: str
    run: int
    role: Role
    work_class: int
    draw_tip: bytes
    """Tip of a validator's hash chain; 32 zero bytes for workers."""
    deadline: int


@dataclass(frozen=True)
class Permit:
    """An ERC-2612 permit for the Registry."""

    amount: int
    deadline: int
    v: int
    r: bytes
    s: bytes


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
