"""Events and verdicts for a validator's journal, and a clock that stands still."""

from __future__ import annotations

from typing import Any

from muster.chain.cursor import EventBatch
from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened
from muster.contracts.runs import WorkCommitted
from muster.errors import NotFoundError, RefusedError
from muster.protocol.kinds import kind_of
from muster.protocol.messages import Verdict
from muster.verification.rules import CommittedWork
from testbed.samples.messages import about, verdict_of
from validator.journal import ValidatorJournal

ME, NODE, OTHER = ("0x" + letter * 40 for letter in "aB1")
ROOT = b"\x01" * 32


def place(block: int) -> Place:
    return Place(block, bytes(32), bytes(32), 0)


def work(index: int, *, block: int = 10, step: int = 0, hour: int = 5, node: str = NODE, root: bytes = ROOT) -> Event:
    return WorkCommitted(place(block), run=1, node=node, step=step, index=index, hour=hour, root=root)


def opened(case_id: int, *, challenger: str = OTHER, block: int = 20, **changes: Any) -> CaseOpened:
    fields: dict[str, Any] = {
        "node": NODE,
        "index": 0,
        "step": 0,
        "root": ROOT,
        "kind": kind_of("sampling_mismatch"),
        "position": 3,
        "evidence_hash": b"\x09" * 32,
        "jury": 3,
        "commit_ends": 100,
        "reveal_ends": 200,
    }
    return CaseOpened(place(block), case_id, challenger=challenger, run=1, **(fields | changes))


def receive(journal: ValidatorJournal, *events: Event, rewound_to: int | None = None) -> None:
    journal.record(EventBatch(tuple(events), 0, 99, rewound_to), now=1000.0)


def pending(journal: ValidatorJournal, before: int = 1_000) -> list[CommittedWork]:
    return [commitment for commitment, _ in journal.pending(before, 2000.0, 100)]


def verdict(c: CommittedWork, **changes: Any) -> Verdict:
    return verdict_of(**{**about(c), "validator": ME, **changes})


def reject(journal: ValidatorJournal, c: CommittedWork, accuse_at: float | None) -> Verdict:
    made = verdict(c, accepted=False, reason="sampling_mismatch", position=3, evidence="0x" + "09" * 32)
    journal.judge(c, made, b"bundle", accuse_at=accuse_at)
    return made


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 10_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


def refusal(status: int) -> RefusedError:
    kind = NotFoundError if status == 404 else RefusedError
    return kind("no", status=status, title="No")
