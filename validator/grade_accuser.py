"""Take a validator to court that graded private tests wrongly: by its own signed statement, and a row that shows it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from muster.chain.client import event_of
from muster.chain.types import Block
from muster.contracts import court, registry, runs
from muster.contracts.court import CaseOpened, Kind, Outcome, Target
from muster.contracts.registry import Status
from muster.errors import CheckError, RevertError, UnreachableError
from muster.protocol.hashes import hash_bytes
from muster.rollouts.parquet import FileLimits
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.verification.grade_evidence import make_grade_bundle, verify_grade_evidence
from validator.challenger import CASES, SUSPECT_SECONDS, TEMPORARY, Challenger
from validator.grade_journal import GradeJournal, OtherGrades
from validator.ruling import MAX_LOST_CASES, RETRY_SECONDS

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
            open_cases = await self._screen(other, head)
            if open_cases is None:
                continue
            c = other.commitment
            try:
                await self._accuse(other, open_cases, head)
            except (UnreachableError, CheckError, RevertError) as error:  # others are accused meanwhile
                if isinstance(error, RevertError) and error.name not in TEMPORARY:
                    log.warning("no case", validator=other.validator, index=c.index, error=str(error))
                    self.grades.close_accusation(other, error.name or "refused")
                    continue
                log.warning("cannot accuse yet", validator=other.validator, error=str(error), hint=error.hint)
                self.grades.delay_accusations(other.validator, time.time() + RETRY_SECONDS)

    async def _screen(self, other: OtherGrades, head: Block) -> int | None:
        """Return the number of open cases against the validator, or None where it cannot be accused, now or ever."""
        c, chain = other.commitment, self.challenger.chain
        node, work, until = await asyncio.gather(
            chain.call(registry.node(other.validator)),
            chain.call(runs.work(other.validator)),
            chain.call(runs.challengeable_until(c.node, c.index)),
        )
        if node.status in (Status.JAILED, Status.WITHDRAWN):
            self.grades.close_accusation(other, "moot")
        elif self.challenger.journal.cases_ended(Outcome.NOT_GUILTY) >= MAX_LOST_CASES:
            log.error("accusing nobody any more: too many cases were lost", node=other.validator, lost=MAX_LOST_CASES)
            self.grades.delay_accusations(other.validator, time.time() + SUSPECT_SECONDS)
        elif until < head.timestamp:
            self.grades.close_accusation(other, "late")
        else:
            return work.open_cases
        return None

    async def _accuse(self, other: OtherGrades, open_cases: int, head: Block) -> None:
        """Open a case, unless an open one makes it needless or the evidence does not hold."""
        c, said, context = other.commitment, other.shown.statement, self.challenger.context
        assert other.position is not None

        # 1. Wait while a case is open that makes this one needless.
        charge = (Kind.WRONG_GRADE, c.index)
        if open_cases and await self.challenger.is_needless(other.validator, charge, open_cases, head):
            later = time.time() + max(1.0, self.challenger.stagger_seconds)
            return self.grades.delay_accusations(other.validator, later)

        # 2. Show the row, and verify the evidence as a juror will, grading anew.
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
            return self.grades.close_accusation(other, "withdrawn")

        # 3. Open the case.
        name = await context.client.put_evidence(bundle)
        receipt = await self.challenger.chain.send(
            court.open_grade_case(
                Target(c.node, c.index, c.step, c.root),
                other.validator,
                grades,
                hash_bytes(said.salt),
                bytes.fromhex(said.signature[2:]),
                hash_bytes(name),
            )
        )
        failpoint("validator.accused")
        self.grades.close_accusation(other, "opened")
        CASES.inc()
        case_id = event_of(receipt, CaseOpened).case_id
        log.info("accused", validator=other.validator, node=c.node, index=c.index, kind="wrong_grade", case=case_id)
        return None
