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
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.protocol.messages import ShownMaster, StepDocument, StepFile
from muster.rollouts.parquet import FileLimits, read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from muster.tasksets.grades import UNSURE_FUEL, grades_hash, grades_text, parse_grades
from muster.tasksets.masters import Masters
from testbed.samples.commitments import committed
from testbed.samples.messages import NOTHING
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


def document_of(grades: str | None) -> StepDocument:
    """Return what the trainer says of the step, naming these grades of its file; None: none."""
    named = None if grades is None else grades_hash(grades)
    file = StepFile.of(WORK, root=hex_hash(WORK.root), file_hash=NAME, grades=named, verdicts=[])
    seen = {"block": 0, "block_hash": NOTHING, "read": 0, "read_hash": NOTHING, "report": NOTHING}
    return StepDocument(run=WORK.run, step=STEP, files=[file], **seen)


def root_of(document: StepDocument) -> bytes:
    return hash_bytes(content_hash(document.to_bytes()))


def shown_by(masters: Masters) -> ShownMaster:
    return ShownMaster(run=WORK.run, epoch=1, master=hex_hash(masters.of(1)))


def refused(status: int = 404) -> RefusedError:
    kind = NotFoundError if status == 404 else RefusedError
    return kind("no", status=status, title="")


@dataclass
class GradedRun:
    """A chain and an orchestrator with one step of one file, as an honest trainer says it unless a field is changed."""

    anchored: str | None = field(default_factory=right_text)
    """Grades whose hash the document names whose hash is the batch root on chain; None: it names none."""
    reported: str | None = field(default_factory=right_text)
    """Grades whose hash the document in the log names."""
    published: str | None = field(default_factory=right_text)
    """Text that is served as grades; None: none is."""
    master: ShownMaster | None = field(default_factory=lambda: shown_by(MASTERS))
    file: bytes = FILE
    steps: int = STEP

    # The chain

    async def keys_now(self, run: int) -> Any:
        return keys_of(TRAINER).tenures[0].keys

    async def all_events(self, kind: type[Event]) -> list[Event]:
        place = Place(1, bytes(32), bytes(32), 0)
        made = WorkCommitted(place, WORK.run, WORK.node, WORK.step, WORK.index, 0, WORK.root)
        roots = {STEP: root_of(document_of(self.anchored))}
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

    async def step_document(self, run: int, batch_root: bytes) -> StepDocument:
        if batch_root == bytes(32):
            return document_of(None).model_copy(update={"files": []})
        document = document_of(self.reported)
        if root_of(document) != batch_root:  # as the client does
            raise MismatchError("the document hashes to something else")
        return document

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
        "another master": GradedRun(master=shown_by(OTHER_MASTER)),
    }
