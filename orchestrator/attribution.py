"""Attribute work to the authors of its tasks: whose tasks each commitment drew.

What a commitment drew follows from the chain alone, so this is computed once, when the commitment is read, and holds
whatever becomes of it. Runs whose task set names no author keep nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection, and_, select

from muster.clients.storage import ContentStore
from muster.errors import CheckError, StorageError
from muster.protocol.draws import draw_base, group_draw
from muster.protocol.hashes import hash_bytes
from muster.protocol.masters import epoch_of
from muster.protocol.messages import Message
from muster.protocol.terms import Terms
from muster.tasksets.document import MAX_DOCUMENT_BYTES, TaskSetDocument
from orchestrator.page.tallies import credit
from orchestrator.tables import checkpoints, commitments, credit_tallies, credits, nodes


class AuthorLine(Message):
    """What came of one author's tasks."""

    author: str
    """Address; empty for tasks that nobody has signed as theirs."""
    parts: list[str]
    """Of the task set."""
    tasks: int
    rollouts: int
    """Drawn and committed."""
    accepted: int
    """Of these, in accepted commitments."""


@dataclass(frozen=True)
class Attribution:
    """Knows the authors of a run's tasks."""

    chain_id: int
    runs: str
    """Address of the contract."""
    run: int
    terms: Terms
    document: TaskSetDocument | None
    """None where no part has an author, or the task set is not known: nothing is attributed."""

    @classmethod
    async def of_run(cls, chain_id: int, runs: str, run: int, terms: Terms, files: ContentStore) -> Attribution:
        """Return that of a run, whose task set storage may hold."""
        document: TaskSetDocument | None
        try:
            name = "0x" + terms.task_root.hex()
            document = TaskSetDocument.from_bytes(await files.get(name, MAX_DOCUMENT_BYTES))
        except (CheckError, StorageError):
            document = None  # `warn_of_lacks` says so
        if document is not None:
            fits = (document.slots, document.epochs) == (terms.task_count, terms.grade_epochs)
            if not fits or not any(part.author for part in document.parts):
                document = None  # nobody works on a set that does not fit the terms
        return cls(chain_id, runs, run, terms, document)

    def attribute(self, connection: Connection, node: str, index: int, step: int) -> None:
        """Keep what a commitment drew, if it is known by which entropy its node draws."""
        if self.document is None:
            return
        joined = select(nodes.c.first_step).where(nodes.c.address == node).scalar_subquery()
        entropy = connection.execute(select(checkpoints.c.entropy).where(checkpoints.c.step == joined)).scalar()
        if entropy is None:
            return
        for part, groups in self.drawn(node, index, step, hash_bytes(entropy)).items():
            credit(connection, node, index, part, groups)

    def drawn(self, node: str, index: int, step: int, entropy: bytes) -> Counter[str]:
        """Return how many groups of a commitment have tasks of which part. `entropy`: by which the node draws. Pure."""
        assert self.document is not None
        base = draw_base(chain_id=self.chain_id, runs=self.runs, run=self.run, entropy=entropy, node=node, index=index)
        found: Counter[str] = Counter()
        epoch = max(1, epoch_of(self.terms, step))  # in a run with private tests it decides what slots mean
        for group in range(self.terms.groups_per_commitment):
            part, _ = self.document.locate(group_draw(base, group, self.terms, 0).task, epoch)  # in any class
            found[self.document.parts[part].name] += 1
        return found

    def complete(self, connection: Connection) -> int:
        """Attribute commitments that were read while the task set was not known; return how many."""
        if self.document is None:
            return 0
        same = and_(credits.c.node == commitments.c.node, credits.c.index == commitments.c.index)
        lacking = select(*commitments.c["node", "index", "step"]).outerjoin(credits, same)
        rows = connection.execute(lacking.where(credits.c.node.is_(None))).all()
        for row in rows:
            self.attribute(connection, *row)
        return len(rows)

    def lines(self, connection: Connection) -> list[AuthorLine]:
        """Return a line for each author, most accepted first."""
        if self.document is None:
            return []
        rollouts: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for part, status, groups in connection.execute(select(credit_tallies)):
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
