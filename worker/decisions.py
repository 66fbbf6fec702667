"""What a worker does next, decided from what the chain says and what its journal says. Pure.

The rule that matters: an index gets one root. Work that is on disk for an index is committed if its step still counts,
and thrown away only when the chain can no longer accept it, whatever transaction may still be on its way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from muster.chain.contracts.registry import Node, Role, Status
from muster.chain.contracts.runs import RunState, Work
from muster.constants import HOUR_SECONDS
from muster.errors import ConfigError, MusterError

STALE: Final = frozenset({"StepTooOld", "StepBeforeLast", "StepBeforeJoined", "StepUnpublished", "WrongAnchor"})
"""Reverts of commitWork that say that this work can no longer be committed."""

PASSING: Final = frozenset(
    {"HourFull", "EscrowShort", "TooFewValidators", "WrongIndex", "NotWorking", "RunIsClosed", "CommitmentsPaused"}
)
"""Reverts of commitWork that say: look at the chain again (and perhaps wait)."""

AHEAD: Final = 2
"""Files that are made and not yet on chain: one on its way, and one ready when the next block takes that one."""

State = Literal["saved", "uploaded", "committed"]


class RetiredError(MusterError):
    """This key will never work again. Starting it again changes nothing."""

    exit_code = 3


@dataclass(frozen=True)
class Facts:
    """What the chain says, all of it asked at about the same moment."""

    node: Node
    work: Work
    state: RunState
    run: int
    pay: int
    """Token wei that one commitment reserves."""
    min_validators: int
    now: int
    """Timestamp of the latest block."""

    @property
    def oldest_step(self) -> int:
        """The oldest step that this worker may commit work of."""
        reach = self.state.steps - 1 - self.state.async_level
        return max(reach, self.work.last_step, self.work.joined_step, 0)


@dataclass(frozen=True)
class Entry:
    """Work for one index, as the journal has it."""

    index: int
    step: int
    anchor: bytes
    root: bytes
    file_hash: str
    state: State


def must_wait(facts: Facts) -> str:
    """Why no work can be committed now, in words; "" when it can.

    Raises RetiredError when it never can again, ConfigError when this key is for something else.
    """
    node, work, state = facts.node, facts.work, facts.state
    if node.status == Status.NONE:
        return "this key is not registered yet: muster worker join"
    if node.role != Role.WORKER or node.run != facts.run:
        raise ConfigError(
            f"this key is registered as a {node.role.name.lower()} of run {node.run}, the settings say run {facts.run}",
            hint="set run, or use the key that was registered for it",
        )
    if node.status != Status.ACTIVE or work.left:
        word = "jailed: it was convicted" if node.status == Status.JAILED else node.status.name.lower()
        raise RetiredError(f"this node is {word}; it takes no more work", hint="muster worker why, muster worker claim")
    if state.closed:
        raise RetiredError(f"run {facts.run} is closed", hint="muster worker claim, then muster worker retire")
    if state.steps <= work.joined_step:
        return f"this node may work from step {work.joined_step} on, and the next checkpoint is step {state.steps}"
    if state.validators < facts.min_validators:
        return f"the run has {state.validators} validators and takes no work before {facts.min_validators}"
    if work.last_hour == facts.now // HOUR_SECONDS and work.count_in_hour >= state.commitments_per_hour:
        return f"all {state.commitments_per_hour} commitments of this hour are made"
    if state.balance - state.reserved < facts.pay:
        return "the run's escrow cannot pay for another commitment"
    return ""


def still_counts(entry: Entry, facts: Facts, anchor: bytes | None) -> bool:
    """Whether the chain would take this work for its index. `anchor` is that of its step, None when unpublished."""
    return entry.index == facts.work.next and entry.step >= facts.oldest_step and entry.anchor == anchor


def next_to_make(first: int, made: Collection[int], ahead: int = AHEAD) -> int | None:
    """The index to make work for: the first of the `ahead` indices from `first` on that is not made; None when all are.

    `first` is the node's next index on chain. A discarded file leaves a gap, which is filled first.
    """
    return next((index for index in range(first, first + ahead) if index not in made), None)
