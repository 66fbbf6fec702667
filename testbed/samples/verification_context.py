"""A verification context made by hand, commitments whose rows lean a little, and grades of those that are sealed."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from muster.authoring.tasks.sealing import seal_set
from muster.chain.keys import Signer
from muster.environments.rewards import length_reward
from muster.errors import RefusedError, UnreachableError
from muster.grading.grades import grades_hash, grades_text
from muster.grading.masters import Masters
from muster.protocol.draws import Draw, draw_pool
from muster.protocol.eip712 import sign_message
from muster.protocol.hashes import content_hash, hex_hash
from muster.protocol.masters import grades_commitment
from muster.protocol.messages import ShownGrades, Upload, Verdict
from muster.rollouts.parquet import FileLimits, read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout, one_span
from muster.tasksets.taskset import TaskSet
from muster.verification.bundles import EvidenceBundle, Inspection, PoolMember, ReplayedRow, make_bundle, make_member
from muster.verification.checks import Finding, grade_rows
from muster.verification.pools import ACCUSE, UNIT_TOKENS
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork, Rules
from muster.verification.statistics import RowSums
from testbed.samples.commitments import (
    ACCUSER,
    LIMIT,
    WHERE,
    committed,
    drawn,
    honest_rows,
    rules,
    tokens_of,
    upload_of,
)
from testbed.samples.messages import about, grade_of, verdict_of

NO_ERRORS = RowSums(tokens=4, gaps=0.0, states=0.0, squares=0.0, signed=0.0)


def without_shards() -> TaskSet:
    """Return the task set of the rules as a validator has it that has fetched nothing but the document."""
    return TaskSet(Path("there is no such folder"), rules().task_set.document)


def nothing_found(_step: int, rows: list[Rollout]) -> list[Finding | None]:
    return [None] * len(rows)


@dataclass
class Context:
    """A storage with these files, and a model that finds what a test wants it to find."""

    files: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[int, Upload] = field(default_factory=dict)
    findings: Callable[[int, list[Rollout]], list[Finding | None]] = nothing_found
    down: bool = False
    read_limits: FileLimits | None = None
    """Instead of those of the terms, which are small here."""
    replayed: int = 0
    sums: RowSums = NO_ERRORS
    """Of every row that is replayed."""
    works: dict[int, CommittedWork] = field(default_factory=dict)
    """Commitments on chain."""
    shards: bool = True
    """Whether the task set's shards are here; its document always is."""
    domain = WHERE
    profile = CPU_FP32

    @property
    def rules(self) -> Rules:
        return rules() if self.shards else replace(rules(), task_set=without_shards())

    async def draw(self, commitment: CommittedWork) -> Draw:
        return drawn()

    async def ensure_tasks(self, slots: Iterable[int], step: int) -> None:
        assert self.shards, "somebody fetches a shard"

    async def read(self, data: bytes, limits: FileLimits) -> list[Rollout]:
        return read_rollouts(data, self.read_limits or limits)

    async def file(self, name: str) -> bytes:
        return self._have(self.files, name)

    async def upload(self, commitment: CommittedWork) -> Upload:
        return self._have(self.uploads, commitment.index)

    async def replay(self, step: int, rollouts: list[Rollout]) -> list[ReplayedRow]:
        if self.down:
            raise UnreachableError("no weights")
        self.replayed += len(rollouts)
        return [ReplayedRow(finding, self.sums) for finding in self.findings(step, rollouts)]

    async def master(self, step: int) -> bytes | None:
        return None

    async def committed(self, node: str, index: int, block: int) -> CommittedWork | None:
        work = self.works.get(index)
        return work if work is not None and (work.node, work.block) == (node, block) else None

    async def block_hash(self, number: int) -> bytes:
        return number.to_bytes(32, "big")

    def commit(self, rows: list[Rollout], index: int) -> CommittedWork:
        """Put a commitment on chain and its file into the storage."""
        work = replace(committed(rows), index=index, step=rows[0].step, block=100 + 3 * index)
        data = write_rollouts(rows)
        self.works[index], self.uploads[index] = work, upload_of(data, work)
        self.files[content_hash(data)] = data
        return work

    @property
    def chain(self) -> Context:
        return self

    def _have(self, things: dict, key: object) -> object:
        if self.down:
            raise UnreachableError("down")
        if key not in things:
            raise RefusedError("not here", status=404, title="not found")
        return things[key]


LEANING = RowSums(UNIT_TOKENS, UNIT_TOKENS * 1.1 * CPU_FP32.pool.gap_mean, 0.0, 0.0, 0.0)
"""Of a row that is above the pool limit and far below what rejects a row."""
STRAIGHT = replace(LEANING, gaps=0.0)


def thinking_rows(index: int) -> list[Rollout]:
    """Rows of a commitment to a step of its own that think until the limit, each in words of its own."""
    rows = []
    for row in honest_rows():
        letters = np.random.default_rng([index, row.position]).choice(tokens_of("0123456789.,"), LIMIT)
        rows.append(
            replace(
                row,
                step=3 + index,
                completion_tokens=letters.astype(np.int32),
                logprobs=np.full(LIMIT, -0.5, dtype=np.float32),
                proof=bytes(8 * LIMIT),
                finish_reason="length",
                task_reward=0,
                parts=np.array([0], np.int64),
                spans=one_span(LIMIT),
                length_reward=length_reward(row.budget, LIMIT),
            )
        )
    return rows


def pool_case(count: int = 12, sums: RowSums = LEANING) -> tuple[EvidenceBundle, CommittedWork, Context]:
    """Return an accusation by a pool of so many commitments about the last, and a chain that holds them."""
    context, members = Context(sums=sums), []
    for index in range(count):
        rows = thinking_rows(index)
        work = context.commit(rows, index)
        shared = draw_pool(
            block_hash=(work.block + 1).to_bytes(32, "big"), node=work.node, index=index, terms=rules().terms
        )
        members.append(make_member(rules(), work, rows, shared))
    finding = Finding("sampling_mismatch", None, ACCUSE, ACCUSE)
    bundle = make_bundle(rules(), work, Inspection(finding, rollouts=rows, pool=members), accuser=ACCUSER)
    return bundle, work, context


def drawn_positions(member: PoolMember) -> list[int]:
    return [row.position for row in read_rollouts(base64.b64decode(member.rows))]


def changed(position: int, **changes: object) -> list[Rollout]:
    rows = honest_rows()
    rows[position] = replace(rows[position], **changes)  # type: ignore[arg-type]
    return rows


def accuse(rows: list[Rollout], finding: Finding, *shown: int) -> tuple[EvidenceBundle, CommittedWork]:
    commitment = committed(rows)
    return make_bundle(rules(), commitment, Inspection(finding, rollouts=rows, rows=shown), accuser=ACCUSER), commitment


def sampling_mismatch(position: int, *, accuse: bool = True) -> Finding:
    return Finding("sampling_mismatch", position, 3.0, 0.5, accuse=accuse)


MASTERS = Masters(1, b"\x07" * 32)
GRADERS = [Signer.from_key(bytes([number]) * 32) for number in (11, 12, 13)]


@cache
def sealed_rules() -> Rules:
    made = rules()
    names = [part.name for part in made.task_set.document.parts]
    return with_set(seal_set(made.task_set, names, Path(tempfile.mkdtemp()) / "sealed", MASTERS))


def with_set(task_set: TaskSet) -> Rules:
    made = rules()
    private = {"grade_tip": MASTERS.tip, "grade_epochs": 1, "grade_epoch_steps": 1}
    terms = replace(made.terms, task_root=task_set.root, **private)
    return replace(made, task_set=task_set, terms=terms)


def sealed_rows() -> list[Rollout]:
    """Return the honest rows, which say nothing of their scores."""
    empty = np.array([], np.int64)
    return [replace(row, task_reward=0, parts=empty, fuel=0) for row in honest_rows()]


@cache
def right_text() -> str:
    return grades_text(grade_rows(sealed_rows(), drawn(), sealed_rules(), MASTERS.of(1)))


def show(text: str, grader: Signer = GRADERS[0], work: CommittedWork | None = None, **changes: object) -> ShownGrades:
    """Return grades as a validator shows them."""
    work = work or committed(sealed_rows())
    fields = {**about(work), "validator": grader.address, "grades": hex_hash(grades_hash(text)), **changes}
    return ShownGrades(statement=sign_message(grader, WHERE, grade_of(**fields)), text=text)


def accept(shown: ShownGrades, grader: Signer, **changes: object) -> Verdict:
    """Return the verdict that had committed to these grades."""
    said = shown.statement
    fields = said.model_dump(include={"run", "step", "node", "index", "root", "validator"})
    fields["grades"] = grades_commitment(said.grades, said.salt, said.validator)
    return sign_message(grader, WHERE, verdict_of(**{**fields, **changes}))


@dataclass
class GradingContext(Context):
    """A context of a run with private tests."""

    withheld: bool = False
    rules = property(lambda self: sealed_rules())

    async def master(self, step: int) -> bytes | None:
        if self.withheld:
            raise UnreachableError("nobody gives the master")
        return MASTERS.of(1)
