"""Say why no work can be committed now, by one worker or by all. Pure: facts in, sentences out.

The same rules as the contracts': a worker begins at the second step after it joined, makes so many commitments an
hour, and has no more of them unsettled than its stake covers; a run needs validators, an escrow and a checkpoint. The
worker takes the facts from the chain, the orchestrator from its database; `muster worker status` shows the
orchestrator's sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from muster.constants import HOUR_SECONDS
from muster.protocol.terms import MAX_COVER


@dataclass(frozen=True)
class WorkerFacts:
    """What limits one active worker."""

    first_step: int
    """First step that the chain lets it work on."""
    in_hour: int
    """Commitments it has made in the chain's current hour."""
    unsettled: int = 0
    """Commitments that are neither paid nor voided."""
    cover: int = MAX_COVER
    """Commitments that may be unsettled at a time (`Terms.cover_of`)."""

    @property
    def is_uncovered(self) -> bool:
        """Return whether this worker must be paid before it can commit to more."""
        return self.unsettled >= self.cover

    def is_new(self, run: RunFacts) -> bool:
        """Return whether this worker's first step is not on chain yet."""
        return run.step is None or self.first_step > run.step


@dataclass(frozen=True)
class RunFacts:
    """What limits all workers of a run. Times are Unix seconds of the chain's clock."""

    now: int
    step: int | None
    """The newest step on chain; None before the first."""
    commitments_per_hour: int
    validators: int
    """Active ones."""
    min_validators: int
    """Below which the contract takes no commitment."""
    closed: bool = False
    finished: bool = False
    escrow_short: bool = False
    paused_until: int = 0
    step_seconds: float | None = None
    """Recent time from one step to the next; None when there were too few."""
    workers: Mapping[str, WorkerFacts] = field(default_factory=dict)
    """Active ones by address."""

    @property
    def newcomers(self) -> list[WorkerFacts]:
        """Return the workers whose first step is not on chain yet."""
        return [worker for worker in self.workers.values() if worker.is_new(self)]

    @property
    def able(self) -> list[WorkerFacts]:
        """Return the workers that have a commitment left in this hour, and may make it."""
        return [worker for worker in self.workers.values() if not _worker_reason(worker, self)]


def run_blocking_reason(run: RunFacts) -> str:
    """Return why no worker can commit to the run now; "" when some worker can."""
    if reason := _common_reason(run):
        return reason
    if not run.workers:
        return "no worker is registered: muster worker join"
    if run.able:
        return ""
    counts = Counter(_worker_reason(worker, run) for worker in run.workers.values())
    return "; ".join(f"{count} of {len(run.workers)} workers: {reason}" for reason, count in counts.items())


def blocking_reason(worker: WorkerFacts, run: RunFacts) -> str:
    """Return why this worker cannot commit now; "" when it can."""
    return _common_reason(run) or _worker_reason(worker, run)


def _common_reason(run: RunFacts) -> str:
    if run.closed:
        return "the run is closed"
    if run.finished:
        return "training is finished"
    if run.step is None:
        return "the trainer has not published the first checkpoint yet"
    if run.validators < run.min_validators:
        return f"the run has {run.validators} validators and takes no work before {run.min_validators}"
    if run.paused_until > run.now:
        return f"the guardian paused commitments until {_clock(run.paused_until)}"
    if run.escrow_short:
        return "the run's escrow cannot pay for another commitment: its owner must fund it"
    return ""


def _worker_reason(worker: WorkerFacts, run: RunFacts) -> str:
    if worker.is_new(run):
        pace = f", and steps come every {run.step_seconds:.0f} s" if run.step_seconds is not None else ""
        return f"begins at step {worker.first_step}, the second after joining; the newest is step {run.step}{pace}"
    if worker.in_hour >= run.commitments_per_hour:
        until = (run.now // HOUR_SECONDS + 1) * HOUR_SECONDS
        return f"all {run.commitments_per_hour} commitments of this hour are made; the next hour begins {_clock(until)}"
    if worker.is_uncovered:
        return f"{worker.unsettled} commitments wait for their pay, and its stake covers no more: muster worker claim"
    return ""


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
