"""Grades between validators: show one's own once enough have accepted, and compare those of others with one's own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from muster.chain.client import Chain
from muster.errors import CheckError, MalformedError
from muster.grading.grades import first_difference, parse_grades
from muster.grading.shown import read_signed
from muster.protocol.messages import ShownGrades
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next
from validator.context import RunVerificationContext
from validator.grade_journal import GradeJournal
from validator.outbox import Outgoing
from validator.ruling import turn_of

AT_ONCE: Final = 16
"""Grades taken from the journal at a time."""

log = telemetry.logger("validator")
SHOWN: Final = telemetry.counter("validator_grades_shown", "Grades of private tests shown")
COMPARED: Final = telemetry.counter("validator_grades_compared", "Others' grades compared", ("equal",))


@dataclass
class Grader:
    """Shows and compares the grades of one validator."""

    chain: Chain
    journal: GradeJournal
    context: RunVerificationContext
    stagger_seconds: float

    @property
    def me(self) -> str:
        return self.chain.signer.address

    async def poll(self) -> Next:
        """Show what is due, read what others have shown, compare."""
        more = [await self.journal.own.send(self._show) is AGAIN, await self._read(), await self._compare()]
        return AGAIN if any(more) else IDLE

    async def _show(self, own: Outgoing[ShownGrades]) -> None:
        await self.context.client.show_grades(own.document)
        SHOWN.inc()
        log.info("grades shown", node=own.commitment.node, index=own.commitment.index)

    async def _read(self) -> bool:
        """Keep the grades that other validators have shown and signed."""
        before = self.journal.cursor
        grades, cursor = await self.context.client.grades(self.context.rules.run, before)
        kept = []
        for shown in grades:
            try:
                self._check(shown)
                kept.append(shown)
            except CheckError as error:
                log.warning(
                    "ignoring grades that are not their validator's",
                    validator=shown.statement.validator,
                    reason=str(error),
                )
        if cursor != before:
            self.journal.read([shown for shown in kept if shown.statement.validator != self.me], cursor)
        return bool(grades)

    def _check(self, shown: ShownGrades) -> None:
        """Raise CheckError unless these grades are signed by their validator, for this run."""
        if shown.statement.run != self.context.rules.run:
            raise MalformedError(f"they are of run {shown.statement.run}")
        read_signed(self.context.domain, shown)

    async def _compare(self) -> bool:
        """Compare what both have graded. What differs for sure goes to court, in turns."""
        others = self.journal.uncompared(AT_ONCE)
        for other in others:
            ours, theirs = parse_grades(other.ours.text), parse_grades(other.shown.text)
            position = first_difference(ours, theirs)
            COMPARED.labels(equal=str(position is None).lower()).inc()
            if position is None:
                self.journal.agreed(other)
                continue
            c = other.commitment
            log.warning("graded otherwise", validator=other.validator, node=c.node, index=c.index, position=position)
            validators = await self.chain.validators(self.context.rules.run)
            rank = turn_of(self.me, validators, f"accuse {other.validator}")
            self.journal.differ(other, position, time.time() + rank * self.stagger_seconds)
        return len(others) == AT_ONCE
