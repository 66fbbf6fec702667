"""Evidence bundles: the result of an inspection, and the file that lets others repeat the check.

A bundle is canonical JSON under its content hash. It names one commitment, and holds the rows concerned and their
tasks, all with Merkle proofs, or, where the whole file is wrong, the node's own signed upload of that file, or, where
only many rows together show it, consecutive steps of the node's work (`muster.verification.pools`), and of those that
lean the rows that the chain draws, so that an accuser cannot choose. `evidence` and `pool_evidence` judge what a bundle
shows.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from muster.constants import MAX_EVIDENCE_BYTES
from muster.errors import MalformedError
from muster.protocol.draws import UNIT_ROWS
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import Address, Hash, Message, UInt32, Upload
from muster.protocol.reasons import REASONS, Reason
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime.documents import parse_json
from muster.verification.checks import Finding
from muster.verification.pools import WINDOW, PooledRow
from muster.verification.rules import CommittedWork, Rules
from muster.verification.shown_tasks import MAX_TASKS_BYTES, ShownTask, show_tasks, size_of
from muster.verification.statistics import RowSums

MAX_ROWS: Final = 8
"""Most rows in a bundle: one that is wrong suffices, a few make up for the numerics of different machines."""

MAX_PROOF: Final = 32
_ROWS_BYTES: Final = MAX_EVIDENCE_BYTES // 3
"""Of the rows, before base64."""
_BESIDES_BYTES: Final = 1 << 14
"""Of a bundle, besides its pool."""


@dataclass(frozen=True)
class ReplayedRow:
    """What the replay checks say of one row."""

    finding: Finding | None
    sums: RowSums
    beyond: bool = False
    """Whether it is beyond a limit that accuses by itself, whatever the other rows and the step's weights are."""
    look: np.ndarray | None = field(default=None, compare=False)
    """Its numbers (`muster.verification.look`), [2, K]; not finite where the model computes none."""


@dataclass(frozen=True)
class Inspection:
    """What inspecting a commitment, or the evidence against it, came to."""

    finding: Finding | None = None
    why: str = ""
    """For people."""
    rows: tuple[int, ...] = ()
    """Positions that show the finding, the clearest first."""
    replayed: int = 0
    """Rows that went through the replay checks."""
    upload: Upload | None = None
    rollouts: Sequence[Rollout] = ()
    """The whole file; empty when it does not parse, or was not asked for."""
    sums: Mapping[int, RowSums] = field(default_factory=dict)
    """Of the rows that went through the replay checks, by position."""
    pooled: Sequence[PooledRow] = ()
    """Those of its rows that all validators re-run, in the order of their positions."""
    pool: ShownPool | None = None
    """The pool that shows the finding; None where single rows do."""
    drawn_by: str | None = None
    """Hash of the block that drew the rows, as a verdict has it; None of evidence."""
    look: str = ""
    """The numbers of the look, as a verdict has them."""

    @property
    def guilty(self) -> bool:
        """Return whether the finding is beyond the accusing threshold."""
        return self.finding is not None and self.finding.accuse


class PoolMember(Message):
    """The rows of one commitment in a unit."""

    index: UInt32
    block: UInt32
    """Number of the block that holds the commitment."""
    rows: str = Field(max_length=MAX_EVIDENCE_BYTES)
    """A rollout file in base64."""
    proofs: list[Annotated[list[Hash], Field(max_length=MAX_PROOF)]] = Field(min_length=1, max_length=UNIT_ROWS)
    """A Merkle proof per row."""
    tasks: list[ShownTask] = Field(max_length=UNIT_ROWS)
    """The tasks of the rows, each once."""


class PoolUnit(Message):
    """A node's work of one step, and its rows where they are said to lean."""

    first: UInt32
    first_block: UInt32
    last: UInt32
    last_block: UInt32
    """Its first and last commitment, and the blocks that hold them."""
    members: list[PoolMember] = Field(default_factory=list, max_length=UNIT_ROWS)
    """The rows that count; empty of a unit that counts as honest."""


class ShownPool(Message):
    """Consecutive steps of a node's work."""

    before_block: UInt32 | None
    """The block of the commitment before; None of a node's first."""
    units: list[PoolUnit] = Field(min_length=1, max_length=WINDOW)
    next_block: UInt32
    """The block of the commitment after, which is of a later step."""


class EvidenceBundle(Message):
    """An accusation with everything it rests on."""

    version: Literal[4] = 4
    chain_id: int
    runs: Address
    """The Runs contract."""
    run: UInt32
    step: UInt32
    node: Address
    index: UInt32
    root: Hash
    accuser: Address
    reason: Reason
    position: UInt32 | None = None
    measured: FiniteFloat | None = None
    threshold: FiniteFloat | None = None
    upload: Upload | None = None
    """The node's signed upload, where the reason concerns the whole file."""
    rows: str = Field(default="", max_length=MAX_EVIDENCE_BYTES)
    """The rows concerned: a rollout file in base64, or nothing."""
    proofs: list[Annotated[list[Hash], Field(max_length=MAX_PROOF)]] = Field(default_factory=list, max_length=MAX_ROWS)
    """A Merkle proof per row."""
    tasks: list[ShownTask] = Field(default_factory=list, max_length=MAX_ROWS)
    """The tasks of the rows, each once. None where the rows are not of the draw, which shows without them."""
    pool: ShownPool | None = None
    """Where many rows together show it: the commitment concerned is of one of its steps, or the next one."""


def parse_bundle(data: bytes) -> EvidenceBundle:
    """Parse a bundle. Raises MalformedError on anything that is none."""
    return parse_json(EvidenceBundle, data, "an evidence bundle", MAX_EVIDENCE_BYTES)


def finite(value: float | None) -> float | None:
    """Return a measured number as messages carry it: the largest one for infinity and for what is not a number."""
    if value is None or math.isfinite(value):
        return value
    return -sys.float_info.max if value < 0 else sys.float_info.max


def name_of(rules: Rules, commitment: CommittedWork) -> dict[str, Any]:
    """Return the fields by which a bundle names a commitment."""
    return {
        "chain_id": rules.chain_id,
        "runs": rules.runs,
        "run": commitment.run,
        "step": commitment.step,
        "node": commitment.node,
        "index": commitment.index,
        "root": hex_hash(commitment.root),
    }


def make_bundle(rules: Rules, commitment: CommittedWork, inspection: Inspection, *, accuser: str) -> EvidenceBundle:
    """Return the bundle for the finding of an inspection."""
    finding, rollouts = inspection.finding, inspection.rollouts
    assert finding is not None
    whole_file = REASONS[finding.reason].shown_by == "file"
    shown = [] if whole_file or inspection.pool or not rollouts else list(inspection.rows[:MAX_ROWS])
    tasks: list[ShownTask] = []
    if shown and finding.reason != "wrong_draw":
        tasks = show_tasks(rules.at(commitment.step).task_set, [rollouts[i].task for i in shown])
    while shown and (
        len(write_rollouts([rollouts[i] for i in shown])) > _ROWS_BYTES or size_of(tasks) > MAX_TASKS_BYTES
    ):
        shown.pop()
        tasks = [task for task in tasks if task.slot in {rollouts[i].task for i in shown}]
    rows, proofs = show_rows(rollouts, shown)
    return EvidenceBundle(
        **name_of(rules, commitment),
        accuser=accuser,
        reason=finding.reason,
        position=finding.position,
        measured=finite(finding.measured),
        threshold=finite(finding.threshold),
        upload=inspection.upload if whole_file else None,
        rows=rows,
        proofs=proofs,
        tasks=tasks,
        pool=inspection.pool,
    )


def show_rows(rollouts: Sequence[Rollout], positions: Sequence[int]) -> tuple[str, list[list[str]]]:
    """Return the rows at these positions of a file as a bundle holds them, and their Merkle proofs."""
    if not positions:
        return "", []
    tree = rollout_tree(rollouts)
    data = write_rollouts([rollouts[i] for i in positions])
    return base64.b64encode(data).decode(), [[hex_hash(h) for h in tree.proof(i)] for i in positions]


def make_member(rules: Rules, work: CommittedWork, rollouts: Sequence[Rollout], positions: Sequence[int]) -> PoolMember:
    """Return a pool's rows of one commitment. Raises MalformedError where they are too large to be shown."""
    rows, proofs = show_rows(rollouts, positions)
    tasks = show_tasks(rules.at(work.step).task_set, [rollouts[i].task for i in positions])
    if len(rows) + size_of(tasks) > _ROWS_BYTES:
        raise MalformedError(f"the pool's rows of commitment {work.index} are too large for an evidence bundle")
    return PoolMember(index=work.index, block=work.block, rows=rows, proofs=proofs, tasks=tasks)


def check_size(pool: ShownPool) -> None:
    """Check that a pool fits into one bundle. Raises MalformedError."""
    if (size := len(pool.model_dump_json())) > MAX_EVIDENCE_BYTES - _BESIDES_BYTES:
        raise MalformedError(f"the rows of {len(pool.units)} steps have {size} bytes: too many for one bundle")


def is_about(bundle: EvidenceBundle, commitment: CommittedWork, rules: Rules) -> bool:
    c = commitment
    named = (bundle.chain_id, bundle.runs.lower(), bundle.run, bundle.step, bundle.node.lower(), bundle.index)
    meant = (rules.chain_id, rules.runs.lower(), c.run, c.step, c.node.lower(), c.index)
    return named == meant and bundle.root == hex_hash(c.root)
