"""Say which tasks commitments drew, and attribute work to the authors of its tasks.

What a commitment drew follows from the chain alone, so credits are computed once, when the commitment is read, and hold
whatever becomes of it. Runs whose task set names no author keep none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Connection, select

from muster.clients.storage import ContentStore
from muster.errors import CheckError, StorageError
from muster.ledger.statements import ANY_OF, rows_of_any
from muster.ledger.tables import checkpoints, commitments, credit_tallies, nodes
from muster.ledger.tallies import STATES, CommitmentState, credit
from muster.protocol.draws import draw_base, group_draw
from muster.protocol.hashes import hash_bytes
from muster.protocol.masters import epoch_of
from muster.protocol.messages import Message
from muster.protocol.terms import Terms
from muster.tasksets.document import MAX_DOCUMENT_BYTES, TaskSetDocument, TaskSetPart


class AuthorLine(Message):
    """What came of one author's tasks."""

    author: str
    """Address; empty for tasks that no author has signed."""
    parts: list[str]
    """Of the task set."""
    tasks: int
    rollouts: int
    """Drawn and committed."""
    accepted: int
    """Of these, in accepted commitments."""


@dataclass(frozen=True)
class Attribution:
    """Knows what a run draws from, and the authors of its tasks."""

    chain_id: int
    runs: str
    """Address of the contract."""
    run: int
    terms: Terms
    document: TaskSetDocument | None
    """None where the task set is not known: nothing is attributed."""

    @classmethod
    async def of_run(cls, chain_id: int, runs: str, run: int, terms: Terms, files: ContentStore) -> Attribution:
        """Return that of a run, whose task set storage may hold."""
        document: TaskSetDocument | None
        try:
            name = "0x" + terms.task_root.hex()
            document = TaskSetDocument.parse(await files.get(name, MAX_DOCUMENT_BYTES))
        except (CheckError, StorageError):
            document = None  # `warn_of_lacks` says so
        if document is not None and (document.slots, document.epochs) != (terms.task_count, terms.grade_epochs):
            document = None  # no node works on a set that does not fit the terms
        return cls(chain_id, runs, run, terms, document)

    @cached_property
    def _has_authors(self) -> bool:
        return self.document is not None and any(part.author for part in self.document.parts)

    def part_of(self, slot: int, step: int) -> TaskSetPart | None:
        """Return the part of the task set that a slot drawn for a step falls on; None where that is not known. Pure."""
        if self.document is None:
            return None
        return self.document.parts[self.locate(slot, step)[0]]

    def locate(self, slot: int, step: int) -> tuple[int, int]:
        """Return the part that a slot drawn for a step falls on, by number, and the task's index in it. Pure."""
        assert self.document is not None
        epoch = max(
            1, epoch_of(self.terms.grade_series, step)
        )  # in a run with private tests it decides what slots mean
        return self.document.locate(slot, epoch)

    def draw_base(self, node: str, index: int, entropy: bytes) -> bytes:
        """Return the hash that all draws of a commitment follow from. `entropy`: by which its node draws. Pure."""
        return draw_base(chain_id=self.chain_id, runs=self.runs, run=self.run, entropy=entropy, node=node, index=index)

    def attribute(self, connection: Connection, work: Sequence[CommitmentState]) -> None:
        """Keep what commitments drew, of nodes for which it is known by which entropy they draw."""
        if not self._has_authors:
            return
        owners = {one.node for one in work}
        entropies = {node: hash_bytes(entropy) for node, entropy in rows_of_any(connection, _ENTROPIES, owners)}
        credit(
            connection,
            [
                (one, self.drawn(one.node, one.index, one.step, entropies[one.node]))
                for one in work
                if one.node in entropies
            ],
        )

    def drawn(self, node: str, index: int, step: int, entropy: bytes) -> Counter[str]:
        """Return how many groups of a commitment have tasks of which part. `entropy`: by which the node draws. Pure."""
        base = self.draw_base(node, index, entropy)
        found: Counter[str] = Counter()
        for group in range(self.terms.groups_per_commitment):
            part = self.part_of(group_draw(base, group, self.terms, 0).task, step)  # in any class
            assert part is not None
            found[part.name] += 1
        return found

    def complete(self, connection: Connection) -> int:
        """Attribute commitments that were read while the task set was not known; return how many."""
        if not self._has_authors:
            return 0
        lacking = STATES.where(commitments.c.drawn.is_(None))
        work = [CommitmentState(*row) for row in connection.execute(lacking)]
        self.attribute(connection, work)
        return len(work)

    def lines(self, connection: Connection) -> list[AuthorLine]:
        """Return a line for each author, most accepted first."""
        if self.document is None or not self._has_authors:
            return []
        rollouts: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        rows: Any = connection.execute(select(credit_tallies))
        for part, status, groups in rows:
            rollouts[part] += groups * self.terms.group_size
            accepted[part] += groups * self.terms.group_size if status == "accepted" else 0
        lines = []
        for author in dict.fromkeys(part.author for part in self.document.parts):
            own = [part for part in self.document.parts if part.author == author]
            lines.append(
                AuthorLine(
                    author=author,
                    parts=[part.name for part in own],
                    tasks=sum(part.count for part in own),
                    rollouts=sum(rollouts[part.name] for part in own),
                    accepted=sum(accepted[part.name] for part in own),
                )
            )
        return sorted(lines, key=lambda line: (-line.accepted, line.author))


_ENTROPIES: Final = (
    select(nodes.c.address, checkpoints.c.entropy)
    .join(checkpoints, checkpoints.c.step == nodes.c.first_step)
    .where(nodes.c.address.in_(ANY_OF))
)
