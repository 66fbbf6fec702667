"""What a worker does next, decided from the state of chain and journal. Pure.

The rule that matters: an index gets one root. Work that is on disk for an index is committed if its step still counts,
and deleted only when the chain can no longer accept it, whatever transaction may still be pending.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from muster.constants import HOUR_SECONDS
from muster.contracts.registry import Node, Role, Status
from muster.contracts.runs import Phase, RunState, Work
from muster.errors import ConfigError, FinishedError, MusterError
from muster.protocol.messages import Demand
from muster.protocol.terms import MAX_COVER
from muster.protocol.work_rules import RunFacts, WorkerFacts, blocking_reason
from muster.runtime.units import Moment

STALE: Final = frozenset({"StepTooOld", "StepBeforeLast", "StepBeforeJoined", "StepUnpublished", "WrongAnchor"})
"""Reverts of commitWork that mean: this work can no longer be committed."""

PASSING: Final = frozenset(
    {
        "HourFull",
        "CoverShort",
        "EscrowShort",
        "RunIsSuspended",
        "WrongIndex",
        "NotWorking",
        "RunIsClosed",
        "CommitmentsPaused",
    }
)
"""Reverts of commitWork after which the chain is polled again."""

AHEAD: Final = 2
"""Files that are made and not yet on chain: one on its way, and one ready when the next block takes that one."""

State = Literal["saved", "uploaded", "committed"]


class ConvictedError(MusterError):
    """Raised when this key can never work again. Starting it again changes nothing."""

    exit_code = 3


@dataclass(frozen=True)
class NodeState:
    """The state of a node and its run on chain, read at about one time."""

    node: Node
    work: Work
    state: RunState
    run: int
    pay: int
    """Token wei that one commitment reserves."""
    min_validators: int
    now: int
    """Timestamp of the latest block."""
    withdrawable_at: int = 0
    """When a retired node's stake can be withdrawn; 0 for any other."""
    closes_at: int = 0
    """Second at which the chain takes no more work for the step that the newest one made too old."""
    is_withheld: bool = False
    """Whether a case alone keeps from it what its stake would have to cover: the chain takes more work then."""

    @property
    def oldest_step(self) -> int:
        """Return the oldest step that this worker may begin work for."""
        return self._oldest(self.state.async_level)

    @property
    def oldest_open_step(self) -> int:
        """Return the oldest step that the chain takes this worker's finished work for."""
        return self._oldest(self.state.async_level + (self.now < self.closes_at))

    def _oldest(self, behind: int) -> int:
        return max(self.state.steps - 1 - behind, self.work.last_step, self.work.joined_step, 0)

    @property
    def is_new(self) -> bool:
        """Return whether this node has not joined yet, or joined and waits for its first step."""
        return self.node.status == Status.NONE or self.work.joined_step >= self.state.steps

    @property
    def worker(self) -> WorkerFacts:
        """Return what limits this worker, for `muster.protocol.work_rules` to judge."""
        work = self.work
        in_hour = work.count_in_hour if work.last_hour == self.now // HOUR_SECONDS else 0
        cover = MAX_COVER if self.is_withheld else work.cover
        return WorkerFacts(work.joined_step, in_hour, work.next - work.settled, cover)


@dataclass(frozen=True)
class Entry:
    """Work for one index, as the journal has it."""

    index: int
    step: int
    anchor: bytes
    root: bytes
    file_hash: str
    state: State


def waiting_reason(facts: NodeState) -> str:
    """Return why no work can be committed now, by the rules of `muster.protocol.work_rules`; "" when it can.

    Raises FinishedError when this node is retired or its run closed, ConvictedError when it is jailed, ConfigError when
    this key is for something else.
    """
    # 1. Whether this key is a worker of the run.
    node, work, state = facts.node, facts.work, facts.state
    if node.status == Status.NONE:
        return "this key is not registered yet: muster worker join"
    if node.role != Role.WORKER or node.run != facts.run:
        raise ConfigError(
            f"this key is registered as a {node.role.name.lower()} of run {node.run}, the settings say run {facts.run}",
            hint="set run, or use the key that was registered for it",
        )
    # 2. Whether it, or the run, has ended.
    if node.status == Status.JAILED:
        raise ConvictedError(
            "this worker is jailed: it was convicted, and takes no more work",
            hint="muster worker why, muster worker claim",
        )
    if node.status == Status.ACTIVE and work.left:
        raise FinishedError(
            "this worker brought a file only when it was accused: what was not paid by then is void, and its key"
            " commits no more",
            hint="muster worker why, then muster worker retire --operator NAME",
        )
    if node.status != Status.ACTIVE:
        text, hint = retired_status(facts)
        raise FinishedError(text, hint=hint)
    if state.phase == Phase.CLOSED:
        raise FinishedError(
            f"run {facts.run} is closed and takes no more work; what was committed is paid as usual",
            hint="muster worker claim, then muster worker retire --operator NAME",
        )
    # 3. What the contract would say now.
    run = RunFacts(
        now=facts.now,
        step=state.steps - 1 if state.steps else None,
        commitments_per_hour=state.commitments_per_hour,
        validators=state.validators,
        min_validators=facts.min_validators,
        escrow_short=state.balance - state.reserved < facts.pay,
    )
    return blocking_reason(facts.worker, run)


def retired_status(facts: NodeState) -> tuple[str, str]:
    """Return what a retired worker still waits for, as a sentence, and the next thing to do."""
    if facts.node.lock == 0:
        return "this worker has retired and its stake is out: nothing is left for it to do", "muster worker claim"
    cases = facts.work.open_cases
    against = f"{cases or 'no'} open case{'s' if cases > 1 else ''} against it"
    if facts.withdrawable_at > facts.now:
        text = (
            f"this worker has retired, with {against}; its stake can be withdrawn from {Moment(facts.withdrawable_at)}"
        )
        return text, "start it once a day until then, so that it answers cases about missing data"
    return (
        f"this worker has retired, with {against}; its stake can be withdrawn",
        "muster worker withdraw --operator NAME",
    )


def still_counts(entry: Entry, facts: NodeState, anchor: bytes | None) -> bool:
    """Return whether the chain would take this work for its index. `anchor` is its step's, None when unpublished."""
    return entry.index == facts.work.next and entry.step >= facts.oldest_open_step and entry.anchor == anchor


def next_to_make(first: int, made: Collection[int], ahead: int = AHEAD) -> int | None:
    """Return the first of the `ahead` indices from `first` on that is not made; None when all are.

    `first` is the node's next index on chain. A discarded file leaves a gap, which is filled first.
    """
    return next((index for index in range(first, first + ahead) if index not in made), None)


def unwanted_reason(index: int, demand: Demand) -> str:
    """Return why the work of an index is not made by the trainer's demand; "" when it is.

    A worker's first work is made while others' waits. Those who are quicker take a step's whole demand in a second or
    two, and a newcomer would wait for the next step. Demand is advice; the cost is one commitment's pay.
    """
    if demand.wanted or (index == 0 and demand.waiting_groups):
        return ""
    return f"no more work is wanted now: {demand.waiting_groups} groups wait for the trainer"
