"""What was acknowledged and is not so: a history of requests held against the truth that was read after healing. Pure.

After Jepsen's checkers: what was refused or is unknown may have happened or not, and proves nothing. What was
acknowledged must be so at the end. A reorg may take an acknowledged commitment away: then its worker makes the same one
again, or reports that it is gone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.chaos_history import GONE, Event

Commitment = tuple[str, int, str]
"""Node, index, root."""
LOST, DOUBLE, SKIPPED, BOOK, STUCK, VIEW, CRASH, UNHEALED = (
    "lost write",
    "double commitment",
    "skipped claim",
    "wrong book",
    "stuck trainer",
    "wrong view",
    "crash",
    "not healed",
)
CRASHED: Final = "crashed"
"""The operation by which the run records that a process ended by itself with an error that it should survive."""


@dataclass(frozen=True)
class Book:
    """An account that must balance, in token wei."""

    name: str
    holds: int
    owes: int


@dataclass(frozen=True)
class Truth:
    """What chain, orchestrator, explorer and storage say after healing."""

    files: frozenset[str]
    """Hashes of files that the storage gave, and whose bytes have this hash."""
    verdicts: frozenset[tuple[str, str, int, str]]
    """Validator, node, index, root."""
    commitments: Sequence[Commitment]
    """Events of the chain that counts, in order."""
    served: frozenset[Commitment]
    """Commitments as the orchestrator serves them."""
    shown: frozenset[Commitment]
    """Commitments as the explorer shows them."""
    settled: Mapping[str, int]
    """By node, the number of its commitments that are settled."""
    due: Mapping[str, int]
    """By node, the number of commitments that were due to be claimed before the end and are not settled."""
    roots: Mapping[int, str]
    """Manifest roots by published step."""
    steps: tuple[int, int]
    """Published steps when the faults ended, and after healing."""
    seals: frozenset[tuple[str, int]]
    """Validator and hour of every seal."""
    hours: frozenset[int]
    """Hours with commitments: another one needs no seal."""
    books: Sequence[Book] = ()
    unhealed: Sequence[str] = ()
    """What was not so within the time that healing may take."""


@dataclass(frozen=True)
class Violation:
    """A promise that was not kept."""

    kind: str
    what: str


def check(history: Sequence[Event], truth: Truth) -> list[Violation]:
    """Return every violation."""
    acknowledged = [event for event in history if event.state == "ok"]
    checks = (_lost, _double, _skipped, _books, _stuck, _views, _crashes, _healing)
    return [violation for check_ in checks for violation in check_(acknowledged, truth)]


def unkept(history: Iterable[Event], made: AbstractSet[Commitment]) -> list[Event]:
    """Return acknowledgements of commitments that are neither on chain nor reported as gone."""
    acknowledged = [event for event in history if event.state == "ok" and event.operation in ("commit", GONE)]
    there = made | {_commitment(event) for event in _of(acknowledged, GONE)}
    return [event for event in acknowledged if _commitment(event) not in there]


def _lost(acknowledged: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    """Find acknowledged writes that are not there."""
    made = set(truth.commitments)
    unkept_ = {event.what["root"] for event in unkept(acknowledged, made)}
    for event in acknowledged:
        what = event.what
        if event.operation == "upload":
            is_there = what["file"] in truth.files
        elif event.operation == "commit":
            is_there = what["root"] not in unkept_
        elif event.operation == "verdict":
            is_there = (what["validator"], *_commitment(event)) in truth.verdicts or _commitment(event) not in made
        elif event.operation == "publish":
            is_there = truth.roots.get(what["step"]) == what["root"]
        elif event.operation == "seal":
            is_there = (what["node"], what["hour"]) in truth.seals or what["hour"] not in truth.hours
        elif event.operation == "fetch":
            is_there = not what["problems"]
        elif event.operation == "claim":
            is_there = truth.settled.get(what["node"], 0) > what["through"]
        else:
            continue
        if not is_there:
            yield Violation(LOST, f"{event.operation} by {event.by}: {_words(what)}")


def _double(acknowledged: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    """Find indices with two roots, or one that the chain has twice."""
    gone = {_commitment(event) for event in _of(acknowledged, GONE)}
    times = Counter((node, index) for node, index, _ in truth.commitments)
    roots: dict[tuple[str, int], set[str]] = defaultdict(set)
    for node, index, root in {*truth.commitments, *map(_commitment, _of(acknowledged, "commit"))} - gone:
        roots[node, index].add(root)
    for node, index in sorted({*roots, *times}):
        if len(roots[node, index]) > 1 or times[node, index] > 1:
            yield Violation(DOUBLE, f"{node} index {index}: {', '.join(sorted(roots[node, index]))}")


def _skipped(_: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    for node, count in sorted(truth.due.items()):
        if count:
            yield Violation(SKIPPED, f"{node} did not claim {count} commitments that were due")


def _books(_: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    for book in truth.books:
        if book.holds != book.owes:
            yield Violation(BOOK, f"{book.name} holds {book.holds}, and by its books {book.owes}")


def _stuck(_: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    before, after = truth.steps
    if after <= before:
        yield Violation(STUCK, f"{before} steps were published when the faults ended, and {after} after healing")


def _views(_: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    """Find differences between what the orchestrator serves, or the explorer shows, and the chain."""
    made = set(truth.commitments)
    for service, known in (("orchestrator", truth.served), ("explorer", truth.shown)):
        for node, index, root in sorted(made - known):
            yield Violation(VIEW, f"the {service} does not have index {index} of {node}: {root}")
        for node, index, root in sorted(known - made):
            yield Violation(VIEW, f"the {service} has index {index} of {node}, which is not on chain: {root}")


def _crashes(acknowledged: Sequence[Event], _: Truth) -> Iterator[Violation]:
    for event in _of(acknowledged, CRASHED):
        yield Violation(CRASH, f"{event.what['process']} ended with {event.what['status']}: {event.what['said']}")


def _healing(_: Sequence[Event], truth: Truth) -> Iterator[Violation]:
    for what in truth.unhealed:
        yield Violation(UNHEALED, what)


def _of(events: Sequence[Event], operation: str) -> list[Event]:
    return [event for event in events if event.operation == operation]


def _commitment(event: Event) -> Commitment:
    return event.what["node"], event.what["index"], event.what["root"]


def _words(what: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in what.items())
