"""Show what the model writes: rows of accepted files, as text. A file is parsed in a separate process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from pydantic import Field
from sqlalchemy import Connection, func, select

from explorer.reading import RowReader
from explorer.rows import RowRead, RowText
from explorer.source import PageSource
from muster.constants import MICRO
from muster.errors import RefusedError, UnreachableError
from muster.ledger.queries import same_work
from muster.ledger.tables import checkpoints, commitments, node_names, nodes, step_tallies, uploads
from muster.protocol.draws import group_draw
from muster.protocol.hashes import hash_bytes
from muster.protocol.messages import Message
from muster.runtime import problems
from muster.runtime.kept import KeptAnswers
from muster.tasksets.document import ShardEntry, TaskSetPart

MAX_FILES: Final = 200
"""Files of one answer."""
COMPARED_SECONDS: Final = 600.0
MAX_PAIRS: Final = 8
"""Pairs of answers that are read to find a telling one."""
COMPARED_FILES: Final = 64
"""Early and late files each whose draws are searched for a task that both have."""


class ScorePart(Message):
    name: str
    value: float
    """0 to 1."""
    weight: float


class NamedFile(Message):
    """A rollout file, and the commitment that it is of."""

    file_hash: str
    node: str
    name: str
    """Of the node."""
    index: int


class RolloutView(RowText, NamedFile):
    """One row of an accepted file."""

    run: int
    policy_step: int
    position: int
    part: str
    environment: str
    graded: bool
    """False where tests are private, and the row says nothing of a score."""
    reward: float
    length_reward: float
    parts: list[ScorePart] = Field(default_factory=list)


class RolloutFile(NamedFile):
    """An accepted file that rows can be read of."""

    policy_step: int


class RolloutFiles(Message):
    """Newest first."""

    run: int
    rows: int
    """Of each file."""
    first_step: int | None
    last_step: int | None
    """Policy steps that there are accepted files of."""
    files: list[RolloutFile]
    before: int | None
    """Policy step to ask for the files before this; None at the end. Files of one step are not divided."""


class BeforeAndAfter(Message):
    """An early answer and a late one, to the same task where the files have one in common."""

    run: int
    same_task: bool
    before: RolloutView | None
    after: RolloutView | None
    why: str = ""
    """Why there are none, as a sentence."""


class DrawnFile(RolloutFile):
    """An accepted file, and what its draws follow from, which no answer includes."""

    root: str = Field(exclude=True)
    work_class: int = Field(exclude=True)
    entropy: str | None = Field(exclude=True)


@dataclass(frozen=True)
class FilePair:
    """An early file and a late one, and the group of each to show."""

    before: DrawnFile
    before_group: int
    after: DrawnFile
    after_group: int
    same_task: bool


class Rollouts:
    """Reads rollouts of one run. One per service."""

    def __init__(
        self,
        source: PageSource,
        reader: RowReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._reader = reader
        self._pairs = KeptAnswers(COMPARED_SECONDS, clock)

    async def row(self, file_hash: str, position: int) -> RolloutView:
        """Return a row of an accepted file.

        Raises RefusedError for another file or position, and when too many wait; UnreachableError when it cannot be
        read now.
        """
        file = await self._source.database.read(lambda connection: find_file(connection, file_hash))
        if file is None:
            raise problems.not_found(
                f"{file_hash} is not the file of an accepted commitment", "choose one of /rollouts"
            )
        group = position // self._source.terms.group_size
        if group >= self._source.terms.groups_per_commitment:
            rows = self._source.terms.positions
            raise problems.not_found(f"a file of this run has {rows} rows", f"choose a position from 0 to {rows - 1}")
        part, task = self._drawn(file, group)
        thinks = part is None or part.environment.thinks
        read = await self._reader.read(file_hash, position, root=file.root, thinks=thinks, task=task)
        return self._view(file, position, part, read)

    async def compared(self) -> BeforeAndAfter:
        """Return an early row and a late one, to the same task where the draws of a few files have one in common.

        Of a group its first sample is shown; of the newest pairs the first whose rewards differ, so it tells something.
        A pair is shown for COMPARED_SECONDS.
        """
        try:
            return await self._pairs.get("pair", self._compare)
        except (RefusedError, UnreachableError) as error:
            return BeforeAndAfter(run=self._source.run, same_task=False, before=None, after=None, why=str(error))

    async def _compare(self) -> BeforeAndAfter:
        """Read an early row and a late one. Raises as `row`, and RefusedError where no two steps have any."""
        size, found = self._source.terms.group_size, list[BeforeAndAfter]()
        for pair in await self._source.database.read(self._ends):
            try:
                before = await self.row(pair.before.file_hash, pair.before_group * size)
                after = await self.row(pair.after.file_hash, pair.after_group * size)
            except (RefusedError, UnreachableError):
                if not found:
                    raise
                break
            same = pair.same_task
            found.append(BeforeAndAfter(run=self._source.run, same_task=same, before=before, after=after))
            if before.reward != after.reward:
                return found[-1]
        if found:
            return next((one for one in found if one.after and one.after.reward), found[0])
        raise problems.not_found("no two steps have accepted work yet")

    def _ends(self, connection: Connection) -> list[FilePair]:
        """Return pairs of an early file and a late one; none where there are no two steps that have any."""
        query = _accepted_files().limit(COMPARED_FILES)
        orders = (commitments.c.step, *_ORDER), (commitments.c.step.desc(), *_ORDER)
        early, late = ([DrawnFile.of(row) for row in connection.execute(query.order_by(*order))] for order in orders)
        if not early or early[0].policy_step == late[0].policy_step:
            return []
        groups = range(self._source.terms.groups_per_commitment)
        others = (FilePair(early[0], group, late[0], group, same_task=False) for group in groups)
        return list(islice(self._common_tasks(early, late), MAX_PAIRS)) or list(islice(others, MAX_PAIRS))

    def _common_tasks(self, early: Sequence[DrawnFile], late: Sequence[DrawnFile]) -> Iterator[FilePair]:
        """Yield the latest files with a task that an earlier one has, and the earliest that has it."""
        first: dict[tuple[int, int], tuple[DrawnFile, int]] = {}
        for file in early:
            for group, task in enumerate(self._tasks(file)):
                first.setdefault(task, (file, group))
        for file in late:
            for group, task in enumerate(self._tasks(file)):
                if task in first and first[task][0].policy_step < file.policy_step:
                    yield FilePair(*first[task], file, group, same_task=True)

    def _tasks(self, file: DrawnFile) -> list[tuple[int, int]]:
        """Return the task of each group as (part, index); none where the draws cannot be known."""
        if self._source.attribution.document is None:
            return []
        return [self._source.attribution.locate(slot, file.policy_step) for slot in self._slots(file)]

    def _slots(self, file: DrawnFile) -> list[int]:
        """Return the slot that each group was drawn; none where the entropy is not known."""
        if file.entropy is None:
            return []
        terms = self._source.terms
        base = self._source.attribution.draw_base(file.node, file.index, hash_bytes(file.entropy))
        groups = range(terms.groups_per_commitment)
        return [group_draw(base, group, terms, file.work_class).task for group in groups]

    def _drawn(self, file: DrawnFile, group: int) -> tuple[TaskSetPart | None, tuple[ShardEntry, int] | None]:
        """Return the part that a group's task is of, and where the task is stored where it is public."""
        tasks, document = self._tasks(file), self._source.attribution.document
        if not tasks or document is None:
            return None, None
        number, index = tasks[group]
        part = document.parts[number]
        shard, place = part.locate(index)
        return part, None if part.sealed else (part.shards[shard], place)

    def _view(self, file: DrawnFile, position: int, part: TaskSetPart | None, read: RowRead) -> RolloutView:
        return RolloutView.of(
            read,
            file,
            self._source,
            position=position,
            part=part.name if part else "",
            environment=part.environment.name if part else "",
            graded=bool(read.parts),
            reward=read.reward / MICRO,
            length_reward=read.length_reward / MICRO,
            parts=score_parts(part, read.parts),
        )


def score_parts(part: TaskSetPart | None, values: Sequence[int]) -> list[ScorePart]:
    """Return the parts of a score by name. A row of private tests says nothing of a score. Pure."""
    if part is None or len(values) != len(part.environment.parts):
        return []
    weights = part.environment.weights
    return [
        ScorePart(name=name, value=value / MICRO, weight=weights[name] / MICRO)
        for name, value in zip(part.environment.parts, values, strict=True)
    ]


# Queries

_ORDER: Final = (commitments.c.node, commitments.c.index.desc())


def accepted_files(
    connection: Connection, source: PageSource, step: int | None, node: str | None, before: int | None, limit: int
) -> RolloutFiles:
    """Return accepted files, newest policy step first: of one step, of one node, or before a step."""
    query = _accepted_files()
    if step is not None:
        query = query.where(commitments.c.step == step)
    if node is not None:
        query = query.where(commitments.c.node == node)
    if before is not None:
        query = query.where(commitments.c.step < before)
    rows = connection.execute(query.order_by(commitments.c.step.desc(), *_ORDER).limit(limit + 1))
    found, rest = _whole_steps([DrawnFile.of(row) for row in rows], limit)
    first, last = step_range(connection)
    rows_of_each = source.terms.positions
    return RolloutFiles(
        run=source.run, rows=rows_of_each, first_step=first, last_step=last, files=[*found], before=rest
    )


def _accepted_files() -> Any:
    """Return the query for DrawnFiles; callers say which."""
    return (
        select(
            *uploads.c["file_hash", "node", "index"],
            func.coalesce(node_names.c.name, "").label("name"),
            commitments.c.step.label("policy_step"),
            commitments.c.root,
            nodes.c.work_class,
            checkpoints.c.entropy,
        )
        .select_from(commitments)
        .join(uploads, same_work(commitments, uploads.c))
        .join(nodes, nodes.c.address == commitments.c.node)
        .outerjoin(node_names, node_names.c.node == commitments.c.node)
        .outerjoin(checkpoints, checkpoints.c.step == nodes.c.first_step)
        .where(commitments.c.status == "accepted")
    )


def find_file(connection: Connection, file_hash: str) -> DrawnFile | None:
    """Return an accepted file; None for a file that is none."""
    query = _accepted_files().where(uploads.c.file_hash == file_hash).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else DrawnFile.of(row)


def step_range(connection: Connection) -> tuple[int | None, int | None]:
    """Return the first and the last policy step that there are accepted commitments of."""
    some = select(step_tallies.c.step).where(step_tallies.c.status == "accepted", step_tallies.c.count > 0).limit(1)
    first, last = (
        connection.execute(some.order_by(order)).scalar() for order in (step_tallies.c.step, step_tallies.c.step.desc())
    )
    return first, last


def _whole_steps(rows: list[DrawnFile], limit: int) -> tuple[list[DrawnFile], int | None]:
    """Return as many rows as fit, of whole steps where more than one fits, and the step before which the rest is."""
    if len(rows) <= limit:
        return rows, None
    last = rows[limit].policy_step
    whole = [row for row in rows[:limit] if row.policy_step != last]
    kept = whole or rows[:limit]
    return kept, kept[-1].policy_step
