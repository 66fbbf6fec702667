"""Take a validator to court that graded private tests wrongly: by its own signed statement, and a row that shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from muster.chain.types import Block
from muster.contracts import court
from muster.contracts.court import Kind, Target
from muster.protocol.hashes import hash_bytes
from muster.rollouts.parquet import FileLimits
from muster.runtime import telemetry
from muster.verification.grade_evidence import make_grade_bundle, verify_grade_evidence
from validator.challenger import Challenger, PendingCase
from validator.grade_journal import GradeJournal, OtherGrades

log: Final = telemetry.logger("validator")


@dataclass
class GradeAccuser:
    """Opens cases about wrong grades."""

    grades: GradeJournal
    challenger: Challenger
    """Of the same validator: it knows which open cases make another needless."""

    async def poll(self, head: Block) -> None:
        """Bring what is due. `head` is a block up to which the journal has every event."""
        for other in self.grades.accusations(time.time()):
            close = partial(self.grades.close_accusation, other)
            delay = partial(self.grades.delay_accusations, other.validator)
            case = PendingCase({"validator": other.validator}, other.commitment, close, delay)
            await self.challenger.bring(case, head, partial(self._accuse, other, case, head))

    async def _accuse(self, other: OtherGrades, case: PendingCase, head: Block, open_cases: int) -> None:
        """Open a case, unless an open one makes it needless or the evidence does not hold."""
        c, said, context = other.commitment, other.shown.statement, self.challenger.context
        assert other.position is not None

        # 1. Wait while a case is open that makes this one needless.
        charge = (Kind.WRONG_GRADE, c.index)
        if open_cases and await self.challenger.is_needless(other.validator, charge, open_cases, head):
            return self.challenger.wait(case)

        # 2. Show the row, and verify the evidence as a juror will, grading again.
        upload = await context.upload(c)
        limits = FileLimits.from_terms(context.rules.terms)
        rollouts = await context.read(await context.file(upload.receipt.file_hash), limits)
        if other.position < len(rollouts):
            await context.ensure_tasks([rollouts[other.position].task], c.step)
        me = self.challenger.chain.signer.address
        bundle = make_grade_bundle(context.rules, c, rollouts, other.position, other.shown, accuser=me).to_bytes()
        grades = hash_bytes(said.grades)
        inspection = await verify_grade_evidence(bundle, c, other.validator, grades, context)
        if not inspection.guilty:
            log.error("not accusing: grading again finds nothing", validator=other.validator, why=inspection.why)
            return case.close("withdrawn")

        # 3. Open the case.
        name = await context.client.put_evidence(bundle)
        call = court.open_grade_case(
            Target(c.node, c.index, c.step, c.root),
            other.validator,
            grades,
            hash_bytes(said.salt),
            bytes.fromhex(said.signature[2:]),
            hash_bytes(name),
        )
        return await self.challenger.open_case(case, call, node=c.node, index=c.index, kind="wrong_grade")
