"""Grades between validators: show one's own once enough have accepted, and compare those of others with one's own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from muster.chain.client import Chain
from muster.errors import TRANSIENT, CheckError, MalformedError, RefusedError
from muster.grading.grades import first_difference, parse_grades
from muster.grading.shown import read_signed
from muster.protocol.messages import ShownGrades
from muster.runtime import telemetry
from muster.runtime.loop import AGAIN, IDLE, Next
from validator.context import RunVerificationContext
from validator.grade_journal import GradeJournal, OwnGrades
from validator.ruling import turn_of

AT_ONCE: Final = 16
"""Grades taken from the journal at a time."""

MAX_REFUSALS: Final = 10
"""Times the orchestrator may refuse grades before they are shown no more."""

NOT_THEIR_FAULT: Final = frozenset({401, 403, 404, 408, 425, 429})
"""Statuses that say nothing about grades: too few validators have accepted yet, or as for a verdict."""

PAUSE_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 60.0

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
        more = await self._show()
        more |= await self._read()
        return AGAIN if await self._compare() or more else IDLE

    async def _show(self) -> bool:
        unsent = self.journal.unsent(time.time(), AT_ONCE)
        for own in unsent:
            try:
                await self.context.client.show_grades(own.shown)
            except RefusedError as error:
                self._refused(own, error)
                continue
            except TRANSIENT:  # the next turn begins with another one
                self.journal.put_off(own.commitment, time.time())
                raise
            self.journal.sent(own.commitment)
            SHOWN.inc()
            log.info("grades shown", node=own.commitment.node, index=own.commitment.index)
        return len(unsent) == AT_ONCE

    def _refused(self, own: OwnGrades, error: RefusedError) -> None:
        """Show them again later: without end, unless they themselves are wrong."""
        now, c = time.time(), own.commitment
        pause = min(MAX_PAUSE_SECONDS, PAUSE_SECONDS + (now - own.seen_at) / 8)
        if not 400 <= error.status < 500 or error.status in NOT_THEIR_FAULT:
            self.journal.put_off(c, now + pause)
            return
        final = own.refusals + 1 >= MAX_REFUSALS
        log.warning("grades were refused", index=c.index, final=final, error=str(error))
        self.journal.refused(c, retry_at=None if final else now + pause)

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
