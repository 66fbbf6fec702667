"""Grades: what the trainer says that each sealed row of a commitment is worth, as bytes that all write alike.

Canonical JSON: a list with an entry per sealed row, in order of position.

    [position, reward, [part, …], fuel]      graded: rewards and parts in millionths
    [position, 0, [], 0]                     void: the sealed reference does not open, or cannot be scored by
    [position, 0, [], -1]                    unsure: another processor could have come to another score

The batch that a step is trained on names their hash (`muster.protocol.batches`), so the trainer cannot change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

from pydantic import FailFast, Field, TypeAdapter

from muster.constants import MICRO
from muster.environments.manifest import MAX_PARTS
from muster.errors import MalformedError
from muster.protocol.hashes import content_hash
from muster.protocol.messages import MAX_GRADES_CHARS, UInt32
from muster.runtime.documents import canonical_json, parse_json

MAX_FUEL: Final = (1 << 63) - 1
UNSURE_FUEL: Final = -1


Millionths = Annotated[int, Field(ge=0, le=MICRO)]


class RowGrade(NamedTuple):
    """What one sealed row is worth."""

    position: UInt32
    reward: Millionths
    parts: Annotated[tuple[Millionths, ...], Field(max_length=MAX_PARTS)] = ()
    fuel: Annotated[int, Field(ge=UNSURE_FUEL, le=MAX_FUEL)] = 0

    @property
    def unsure(self) -> bool:
        """Return whether another processor could compute another score: it is worth nothing, and no lie."""
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


def grades_hash(text: str) -> str:
    """Return the content hash by which a batch names grades."""
    return content_hash(text.encode())


def differences(ours: Sequence[RowGrade], stated: Sequence[RowGrade]) -> list[int]:
    """Return the positions at which what is stated is not what the rows come to here.

    A row that this machine is unsure of shows nothing. One that only one of both graded does.
    """
    left, right = ({one.position: one for one in grades} for grades in (ours, stated))
    unsure = {one.position for one in ours if one.unsure}
    return [one for one in sorted({*left, *right}) if left.get(one) != right.get(one) and one not in unsure]
