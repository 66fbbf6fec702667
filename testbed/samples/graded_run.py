"""A run with one step of private tests, made by hand: as an honest trainer says it, and as others do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from muster.console.owner.grade_check import GradeCheck, GradeReport
from muster.constants import MICRO
from muster.contracts.codec import Event, Place
from muster.contracts.runs import CheckpointPublished, WorkCommitted
from muster.errors import MismatchError, NotFoundError, RefusedError
from muster.grading.grades import UNSURE_FUEL, grades_hash, grades_text, parse_grades
from muster.grading.masters import Masters
from muster.protocol.batches import batch_leaf
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.messages import ShownMaster, StepReport, VerdictPage
from muster.rollouts.parquet import FileLimits, read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from testbed.samples.commitments import committed
from testbed.samples.messages import about, verdict_of
from testbed.samples.private_tests import MASTERS, right_text, sealed_rows, sealed_rules
from testbed.samples.terms import keys_of

TRAINER = "0x" + "77" * 20
WORK = committed(sealed_rows())
FILE = write_rollouts(sealed_rows())
NAME = content_hash(FILE)
STEP = WORK.step + 1
ABOUT = f"commitment {WORK.index} of {WORK.node}"
OTHER_MASTER = Masters(1, b"\x08" * 32)


def graded(position: int = 3, **changes: Any) -> str:
    """Return the right grades, but for those of one row."""
    grades = [one._replace(**changes) if one.position == position else one for one in parse_grades(right_text())]
    return grades_text(grades)


def root_of(grades: str) -> bytes:
    """Return the batch root that names these grades of the file."""
    return batch_leaf(WORK.step, WORK.node, WORK.index, NAME, hex_hash(WORK.root), grades_hash(grades))


def refused(status: int = 404) -> RefusedError:
    kind = NotFoundError if status == 404 else RefusedError
    return kind("no", status=status, title="")


@dataclass
class GradedRun:
    """A chain and an orchestrator with one step of one file, as an honest trainer says it unless a field is changed."""

    anchored: str = field(default_factory=right_text)
    """Grades whose hash is under the batch root on chain."""
    reported: str = field(default_factory=right_text)
    """Grades whose hash the trainer's report names."""
    published: str | None = field(default_factory=right_text)
    """Text that is served as grades; None: none is."""
    master: ShownMaster | None = field(default_factory=lambda: ShownMaster(epoch=1, master=hex_hash(MASTERS.of(1))))
    file: bytes = FILE
    steps: int = STEP

    # The chain

    async def keys_now(self, run: int) -> Any:
        return keys_of(TRAINER).tenures[0].keys

    async def all_events(self, kind: type[Event]) -> list[Event]:
        place = Place(1, bytes(32), bytes(32), 0)
        made = WorkCommitted(place, WORK.run, WORK.node, WORK.step, WORK.index, 0, WORK.root)
        roots = {STEP: root_of(self.anchored)}
        steps = [
            CheckpointPublished(place, WORK.run, step, bytes(32), roots.get(step, bytes(32)), bytes(32), bytes(32))
            for step in range(self.steps + 1)
        ]
        return [event for event in (made, replace(made, run=9), *steps) if isinstance(event, kind)]

    # The orchestrator

    async def shown_master(self, run: int, epoch: int) -> ShownMaster:
        if self.master is None or epoch != self.master.epoch:
            raise refused()
        return self.master

    async def verdicts(self, run: int, after: str | None = None) -> VerdictPage:
        verdict = verdict_of(**about(WORK), file_hash=NAME)
        return VerdictPage(verdicts=[] if after else [verdict], came=[] if after else [1], cursor="end")

    async def step_report(self, run: int, step: int) -> StepReport:
        assert step == STEP
        return StepReport(run=run, step=step, metrics={}, batch=[NAME], grades=[grades_hash(self.reported)])

    async def grades_text(self, run: int, name: str) -> str:
        if self.published is None:
            raise refused()
        if grades_hash(self.published) != name:  # as the client does
            raise MismatchError("the text hashes to something else")
        return self.published

    async def get_file(self, name: str) -> bytes:
        assert name == NAME
        return self.file

    # This machine

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return read_rollouts(data, limits)

    async def ensure_slots(self, slots: Iterable[int], epoch: int) -> None:
        assert (set(slots), epoch) == ({row.task for row in sealed_rows()}, 1)

    async def check(self, epoch: int | None = None, **terms: Any) -> GradeReport:
        rules = sealed_rules()
        rules = replace(rules, terms=replace(rules.terms, **terms))
        here = cast(Any, self)
        return await GradeCheck(here, here, here, rules, here).run(epoch)


def forgeries() -> dict[str, GradedRun]:
    """Return what a trainer may say that is not so, by what it changed."""
    solved, unsure = graded(3, reward=MICRO, parts=(MICRO,)), graded(3, reward=0, parts=(), fuel=UNSURE_FUEL)
    return {
        "a grade in the batch": GradedRun(solved, solved, solved),
        "a grade in the file": GradedRun(published=solved),
        "a grade after publication": GradedRun(anchored=solved),
        "unsure for wrong": GradedRun(unsure, unsure, unsure),
        "another master": GradedRun(master=ShownMaster(epoch=1, master=hex_hash(OTHER_MASTER.of(1)))),
    }
