"""Receive what members say of themselves: names of nodes, benchmark scores. None of it leads to pay.

The rules:

1. A name is signed by the node's operator; any key may send it. Of several the latest `named` counts. A node is named
   once in NAME_SECONDS at most.
2. A score is signed by the run's trainer or its owner, and is of a step on chain. Of several of one step and benchmark
   the latest `measured` counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from eth_utils.address import to_checksum_address
from sqlalchemy import Connection, select

from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.ledger.database import Database
from muster.ledger.queries import Queries, member_of
from muster.ledger.tables import checkpoints, entries
from muster.protocol.announcements import BenchmarkScore, NodeName, name_problem
from muster.runtime import problems, telemetry
from orchestrator.log import Kind, Log, Offered

NAME_SECONDS: Final = 60.0
"""Between two changes of a node's name."""
MAX_BENCHMARKS: Final = 64
"""Benchmarks that a run has scores on."""
log = telemetry.logger("orchestrator")


@dataclass(eq=False)
class Announcements:
    """Receives announcements. One per service."""

    owner: str
    queries: Queries
    database: Database
    documents: Log
    clock: Callable[[], float] = field(default=time.time, kw_only=True)

    def __post_init__(self) -> None:
        self.documents.add_kind(
            Kind(
                name="name",
                message=NodeName,
                noun="name",
                key=lambda named: to_checksum_address(named.node),
                may_sign=self._operator,
                hint="use the operator's key: --operator WALLET",
                fits=self._fits_name,
                replaces=lambda new, earlier: new.named > earlier.named,
                about=lambda named: (to_checksum_address(named.node), 0),
            )
        )
        self.documents.add_kind(
            Kind(
                name="score",
                message=BenchmarkScore,
                noun="score",
                key=lambda score: f"{score.step}:{score.benchmark}",
                may_sign=lambda _connection, _score: {self.queries.keys_now.trainer, self.owner},
                hint="use the trainer's or the owner's key",
                could_sign=lambda _score, signer: signer == self.owner or self.queries.keys.ever_trained(signer),
                fits=self._fits_score,
                replaces=lambda new, earlier: new.measured > earlier.measured,
                about=lambda score: ("", score.step),
            )
        )

    # Names

    def _operator(self, connection: Connection, announced: NodeName) -> set[str]:
        node = to_checksum_address(announced.node)
        member = member_of(connection, node)
        if member is None:
            raise problems.no_node(node, self.queries.run)
        return {member.operator}

    def _fits_name(self, _connection: Connection, offered: Offered[NodeName]) -> str:
        announced, earlier = offered.document, offered.earlier
        if problem := name_problem(announced.name):
            raise problems.malformed(f"the name {announced.name!r} {problem}", "choose another one")
        self._expect_past(announced.named, "the name")
        if earlier is not None and announced.named > earlier.document.named:
            wait = earlier.received + NAME_SECONDS - self.clock()
            if wait > 0:
                hint = f"try again in {wait:.0f} s"
                raise problems.conflict(f"{announced.node} was named less than a minute ago", hint)
        return ""

    # Scores

    def expect_scorer(self, address: str) -> None:
        """Raise RefusedError for who is neither the run's trainer nor its owner."""
        trainer = self.queries.keys_now.trainer
        if address not in (trainer, self.owner):
            raise problems.not_allowed(
                f"{address} is neither the trainer of run {self.queries.run}, {trainer}, nor its owner, {self.owner}",
                "use the trainer's or the owner's key",
            )

    def _fits_score(self, connection: Connection, offered: Offered[BenchmarkScore]) -> str:
        score = offered.document
        self._expect_past(score.measured, "the score")
        if not score.low <= score.score <= score.high:
            raise problems.malformed(f"a score of {score.score:g} is not within {score.low:g} to {score.high:g}")
        if not score.tasks or not score.samples:
            raise problems.malformed("a score of no answers")
        published = select(checkpoints.c.step).where(checkpoints.c.step == score.step)
        if connection.execute(published).first() is None:
            raise problems.no_step(score.step, score.run)
        keys = connection.execute(select(entries.c.key).where(entries.c.kind == "score")).scalars()
        others = {key.partition(":")[2] for key in keys} - {score.benchmark}
        if offered.earlier is None and len(others) >= MAX_BENCHMARKS:
            raise problems.conflict(f"run {score.run} has scores on {MAX_BENCHMARKS} benchmarks: there is no room")
        return ""

    # Both

    def _expect_past(self, second: int, what: str) -> None:
        if second > self.clock() + REQUEST_LIFETIME_SECONDS:
            raise problems.malformed(f"{what} is of the future", "set this machine's clock")
