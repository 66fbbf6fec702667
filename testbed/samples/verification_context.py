"""A verification context made by hand, and commitments whose rows lean a little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from muster.chain.types import Block
from muster.constants import SAMPLE_BLOCKS
from muster.contracts.runs import WorkCommitted
from muster.environments.rewards import length_reward
from muster.environments.task import MAX_TASK_BYTES, Task
from muster.errors import NotFoundError, UnreachableError
from muster.protocol.draws import Draw, draw_pool
from muster.protocol.hashes import content_hash
from muster.protocol.keys import RunKeys
from muster.protocol.kinds import kind_of
from muster.protocol.messages import Upload
from muster.rollouts.parquet import FileLimits, read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span
from muster.tasksets.taskset import TaskSet
from muster.verification.bundles import EvidenceBundle, Inspection, ReplayedRow, make_bundle
from muster.verification.checks import Finding
from muster.verification.evidence import check_signatures
from muster.verification.look import LookSeeds
from muster.verification.pools import ACCUSE, HONEST_DRAWS, LEAST_TOKENS, PooledRow, row_key
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_tasks import ShownTask, show_tasks
from muster.verification.statistics import RowSums
from testbed.samples.commitments import (
    ACCUSER,
    KEYS,
    LIMIT,
    WHERE,
    committed,
    drawn,
    honest_rows,
    rules,
    tokens_of,
    upload_of,
)
from testbed.samples.validator import place, receive
from validator.evidence import verify_evidence
from validator.journal import ValidatorJournal
from validator.pool import PoolJudge

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
    """Of every row that is replayed, but for the steps below."""
    sums_of_step: dict[int, RowSums] = field(default_factory=dict)
    honest: RowSums = NO_ERRORS
    """Honest spread of every row."""
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
        upload = self._have(self.uploads, commitment.index)
        check_signatures(upload, commitment, await self.keys(), self.domain)
        return upload

    async def keys(self) -> RunKeys:
        return KEYS

    async def replay(self, step: int, rollouts: list[Rollout], seeds: LookSeeds | None = None) -> list[ReplayedRow]:
        if self.down:
            raise UnreachableError("no weights")
        self.replayed += len(rollouts)
        sums = self.sums_of_step.get(step, self.sums)
        found = self.findings(step, rollouts)
        looks = [seeds and np.full((2, 4), seeds.signs(row.position) % 1000) for row in rollouts]
        return [
            ReplayedRow(one, sums, beyond=one is not None and one.accuse, look=look)
            for one, look in zip(found, looks, strict=True)
        ]

    async def honest_sums(self, step: int, rollouts: list[Rollout]) -> list[RowSums]:
        self.replayed += HONEST_DRAWS * len(rollouts)
        return [self.honest] * len(rollouts)

    async def committed(self, node: str, index: int, block: int) -> CommittedWork | None:
        work = self.works.get(index)
        return work if work is not None and (work.node, work.block) == (node, block) else None

    async def block_hash(self, number: int) -> bytes:
        return number.to_bytes(32, "big")

    async def head(self) -> Block:
        return Block(max(work.block for work in self.works.values()) + SAMPLE_BLOCKS, 0, bytes(32))

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

    reader = model = chain

    def _have(self, things: dict, key: object) -> Any:
        if self.down:
            raise UnreachableError("down")
        if key not in things:
            raise NotFoundError("not here", status=404, title="not found")
        return things[key]


LEANING = RowSums(LIMIT, LEAST_TOKENS * 1.1 * CPU_FP32.pool.gap_mean, 0.0, 0.0, 0.0)
"""Of a row that makes its unit lean by itself, and is far below what rejects a row."""
STRAIGHT = replace(LEANING, gaps=0.0)


def thinking_rows(index: int, step: int | None = None) -> list[Rollout]:
    """Return rows that think until the limit, each in other words; of one step a commitment where none is named."""
    rows = []
    for row in honest_rows():
        letters = np.random.default_rng([index, row.position]).choice(tokens_of("0123456789.,"), LIMIT)
        rows.append(
            replace(
                row,
                step=3 + index if step is None else step,
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


async def pool_case(
    journal: ValidatorJournal, *, steps: int = 11, each: int = 1, sums: RowSums = LEANING
) -> tuple[EvidenceBundle, CommittedWork, Context]:
    """Return an accusation by the pool of so many steps, of `each` commitments, and a chain that holds them.

    It is about the commitment that ends them. The accuser says that all of them lean, and a juror measures `sums`.
    """
    context = Context(sums=LEANING)
    judge = PoolJudge(context, journal.pools)  # type: ignore[arg-type]
    for index in range(steps * each + 1):
        rollouts = thinking_rows(index, 3 + index // each)
        work = context.commit(rollouts, index)
        receive(journal, WorkCommitted(place(work.block), 1, work.node, work.step, index, 0, work.root))
        rows = [PooledRow(row_key(rollouts[position]), LEANING) for position in pool_positions(work)]
        journal.pools.keep(work, rows)
    found = await judge.judge(work, rows)
    assert found is not None
    finding = Finding(found.reason, None, found.evidence, ACCUSE)
    pool = await judge.show(found, work)
    context.sums, context.replayed = sums, 0
    return make_bundle(rules(), work, Inspection(finding, rollouts=rollouts, pool=pool), accuser=ACCUSER), work, context


def pool_positions(work: CommittedWork) -> list[int]:
    """Return the rows of a commitment of the context's chain that all validators re-run."""
    block_hash = (work.block + SAMPLE_BLOCKS).to_bytes(32, "big")
    return draw_pool(block_hash=block_hash, node=work.node, index=work.index, terms=rules().terms)


def changed(position: int, **changes: object) -> list[Rollout]:
    rows = honest_rows()
    rows[position] = replace(rows[position], **changes)  # type: ignore[arg-type]
    return rows


def accuse(rows: list[Rollout], finding: Finding, *shown: int) -> tuple[EvidenceBundle, CommittedWork]:
    commitment = committed(rows)
    return make_bundle(rules(), commitment, Inspection(finding, rollouts=rows, rows=shown), accuser=ACCUSER), commitment


def sampling_mismatch(position: int, *, accuse: bool = True) -> Finding:
    return Finding("sampling_mismatch", position, 3.0, 0.5, accuse=accuse)


async def verified(bundle: EvidenceBundle, commitment: CommittedWork, context: Context | None = None) -> Inspection:
    """Verify a bundle as a juror does: from its bytes, and without any shard of the task set."""
    context = context or Context()
    context.shards = False
    return await verify_evidence(bundle.to_bytes(), kind_of(bundle.reason), commitment, context)


def shown_wrongly(tasks: list[ShownTask]) -> list[tuple[list[ShownTask], str]]:
    """Return what a hostile accuser may show instead of the one right task, and why it does not count."""
    [right] = tasks
    task = Task.from_line(right.line.encode())
    other = next(slot for slot in range(64) if slot not in {group.task for group in drawn().groups})
    [elsewhere] = show_tasks(rules().task_set, [other])
    easier = replace(task, reference={"answer": "0"}).to_line().decode()
    flipped = "0x" + f"{int(right.path[0], 16) ^ 1:064x}"

    def but(**changes: object) -> list[ShownTask]:
        return [right.model_copy(update=changes)]

    return [
        ([], f"0 tasks are shown, the rows are of slots [{right.slot}]"),
        ([elsewhere], "1 tasks are shown"),
        ([right, elsewhere], "2 tasks are shown"),
        ([right, right], "2 tasks are shown"),
        (but(line=elsewhere.line, path=elsewhere.path), "the proof does not show this to be task"),
        (but(line=easier), "the proof does not show this to be task"),
        (but(line=right.line + " "), "the proof does not show this to be task"),
        (but(line=""), "the proof does not show this to be task"),
        (but(line="{" * 1000), "the proof does not show this to be task"),
        (but(line="é"), "tasks.0.line: String should match"),
        (but(path=[]), "the proof does not show this to be task"),
        (but(path=right.path[:-1]), "the proof does not show this to be task"),
        (but(path=[flipped, *right.path[1:]]), "the proof does not show this to be task"),
        (but(path=[*right.path, flipped]), "the proof does not show this to be task"),
        (but(slot=(1 << 32) - 1), "1 tasks are shown"),
        (but(path=[flipped] * 11), "not an evidence bundle: tasks.0.path"),
        (but(path=["0x12"]), "not an evidence bundle: tasks.0.path"),
        (but(line="x" * (MAX_TASK_BYTES + 1)), "not an evidence bundle: tasks.0.line"),
        (but(slot=1 << 32), "not an evidence bundle: tasks.0.slot"),
        ([right] * 9, "not an evidence bundle: tasks: List should have at most 8"),
    ]
