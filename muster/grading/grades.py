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
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from eth_utils.crypto import keccak
from pydantic_core import from_json

from muster.constants import MICRO
from muster.environments.manifest import MAX_PARTS
from muster.errors import MalformedError
from muster.protocol.messages import MAX_GRADES_CHARS
from muster.runtime.documents import canonical_json

MAX_FUEL: Final = (1 << 63) - 1
UNSURE_FUEL: Final = -1
SALT_TAG: Final = b"muster.grade-salt.v1"


@dataclass(frozen=True)
class RowGrade:
    """What one sealed row is worth."""

    position: int
    reward: int
    """In millionths."""
    parts: tuple[int, ...] = ()
    fuel: int = 0

    @property
    def unsure(self) -> bool:
        """Return whether another processor could compute another score: such a grade is no ground for a case."""
        return self.fuel == UNSURE_FUEL


def grades_text(grades: Sequence[RowGrade]) -> str:
    """Return the one form of grades. Raises MalformedError for what `parse_grades` would refuse."""
    text = canonical_json([[one.position, one.reward, list(one.parts), one.fuel] for one in grades]).decode()
    parse_grades(text)
    return text


def parse_grades(text: str) -> tuple[RowGrade, ...]:
    """Read grades strictly. Raises MalformedError on anything that `grades_text` does not write."""
    # 1. Parse no more than the limit.
    if len(text) > MAX_GRADES_CHARS:
        raise MalformedError(f"grades of {len(text)} characters; at most {MAX_GRADES_CHARS}")
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedError(f"grades that are not JSON: {error}") from error

    # 2. Each entry by itself, positions in order, and one form.
    if not isinstance(value, list):
        raise MalformedError("grades are a list")
    grades = tuple(_grade(one) for one in value)
    if any(later.position <= earlier.position for earlier, later in pairwise(grades)):
        raise MalformedError("grades are not in order of position")
    if canonical_json(value).decode() != text:
        raise MalformedError("grades that are not in canonical form")
    return grades


def grades_hash(text: str) -> bytes:
    """Return the hash of grades that is committed to."""
    return keccak(text=text)


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


def _grade(value: object) -> RowGrade:
    match value:
        case [int(position), int(reward), list(parts), int(fuel)] if all(type(n) is int for n in (*value[:2], fuel)):
            known = 0 <= position < 1 << 32 and 0 <= reward <= MICRO and UNSURE_FUEL <= fuel <= MAX_FUEL
            fits = len(parts) <= MAX_PARTS and all(type(part) is int and 0 <= part <= MICRO for part in parts)
            graded = bool(parts) and fuel != UNSURE_FUEL
            if known and fits and (graded or (not parts and reward == 0 and fuel in (0, UNSURE_FUEL))):
                return RowGrade(position, reward, tuple(parts), fuel)
    raise MalformedError(f"a grade that is not [position, reward, parts, fuel]: {str(value)[:80]}")
