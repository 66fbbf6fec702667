"""Grades: what a validator says that each sealed row of a commitment is worth, as bytes that all write alike.

Canonical JSON: a list with an entry per sealed row, in order of position.

    [position, reward, [part, …], fuel]      graded: rewards and parts in millionths
    [position, 0, [], 0]                     void: the sealed reference does not open, or cannot be scored by
    [position, 0, [], -1]                    unsure: another processor could have come to another score

A validator commits to their hash with its verdict (`muster.protocol.masters.grades_commitment`), and shows them with
its salt once enough others have committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

from pydantic import FailFast, Field, TypeAdapter

from muster.constants import MICRO
from muster.environments.manifest import MAX_PARTS
from muster.errors import MalformedError
from muster.protocol.hashes import keccak
from muster.protocol.messages import MAX_GRADES_CHARS, UInt32
from muster.runtime.documents import canonical_json, parse_json

MAX_FUEL: Final = (1 << 63) - 1
UNSURE_FUEL: Final = -1
SALT_TAG: Final = b"muster.grade-salt.v1"


Millionths = Annotated[int, Field(ge=0, le=MICRO)]


class RowGrade(NamedTuple):
    """What one sealed row is worth."""

    position: UInt32
    reward: Millionths
    parts: Annotated[tuple[Millionths, ...], Field(max_length=MAX_PARTS)] = ()
    fuel: Annotated[int, Field(ge=UNSURE_FUEL, le=MAX_FUEL)] = 0

    @property
    def unsure(self) -> bool:
        """Return whether another processor could compute another score: such a grade is no ground for a case."""
        return self.fuel == UNSURE_FUEL


_GRADES: Final = TypeAdapter(Annotated[tuple[RowGrade, ...], FailFast()])


def grades_text(grades: Sequence[RowGrade]) -> str:
    """Return the one form of grades. Raises MalformedError for what `parse_grades` would refuse."""
    text = canonical_json(grades).decode()
    parse_grades(text)
    return text


def parse_grades(text: str) -> tuple[RowGrade, ...]:
    """Read grades strictly. Raises MalformedError on anything that `grades_text` does not write."""
    grades = parse_json(_GRADES, text, "grades", MAX_GRADES_CHARS)
    for one in grades:
        graded = bool(one.parts) and not one.unsure
        if not graded and (one.parts or one.reward or one.fuel not in (0, UNSURE_FUEL)):
            raise MalformedError(f"a grade that is neither graded, void nor unsure: {list(one)}")
    if any(later.position <= earlier.position for earlier, later in pairwise(grades)):
        raise MalformedError("grades are not in order of position")
    if canonical_json(grades).decode() != text:
        raise MalformedError("grades that are not in canonical form")
    return grades


def grades_hash(text: str) -> bytes:
    """Return the hash of grades that is committed to."""
    return keccak(text.encode())


def salt_of(secret: bytes, run: int, node: str, index: int, root: bytes) -> bytes:
    """Return a validator's salt for one commitment. It follows from a secret, so that a restart loses nothing."""
    about = run.to_bytes(4, "big") + bytes.fromhex(node[2:]) + index.to_bytes(4, "big") + root
    return keccak(SALT_TAG + keccak(secret) + about)


def first_difference(ours: Sequence[RowGrade], theirs: Sequence[RowGrade]) -> int | None:
    """Return the first position at which two grades differ for sure, None where there is none.

    A row that either of them is unsure of shows nothing; one that only one of them graded does, since the draw says for
    sure which rows there are to grade.
    """
    left, right = ({one.position: one for one in grades} for grades in (ours, theirs))
    for position in sorted({*left, *right}):
        mine, other = left.get(position), right.get(position)
        if mine is None or other is None or (mine != other and not (mine.unsure or other.unsure)):
            return position
    return None
