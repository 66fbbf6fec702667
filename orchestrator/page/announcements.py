"""Receive what members say of themselves: names of nodes, machines, benchmark scores. None of it leads to pay.

The rules:

1. A name is signed by the node's operator; any key may send it. Of several the latest `named` counts. A node is named
   once in NAME_SECONDS at most.
2. A score is signed by the run's trainer or its owner, and is of a step on chain. Of several of one step and benchmark
   the latest `measured` counts.
3. A machine's report is that of an active node, which signs the request. What it says cannot be checked; its text is
   cleaned.
4. Names and scores are copied to storage, from which a new database is filled. What machines said is not.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from eth_utils.address import to_checksum_address
from sqlalchemy import Connection, func, select

from muster.clients.storage import ContentStore
from muster.constants import REQUEST_LIFETIME_SECONDS
from muster.errors import MalformedError
from muster.protocol.announcements import BenchmarkScore, MachineReport, NodeName, clean_device, name_problem
from muster.protocol.eip712 import Domain, recover_signer
from muster.runtime import telemetry
from orchestrator import problems
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.events import record_event
from orchestrator.queries import Queries, member_of
from orchestrator.statements import row_of, upsert
from orchestrator.tables import checkpoints, machines, node_names, scores

NAME_SECONDS: Final = 60.0
"""Between two changes of a node's name."""
MAX_BENCHMARKS: Final = 64
"""Benchmarks that a run has scores on."""
AT_ONCE: Final = 200
"""Nodes whose operators are read from the chain in one trip."""

Operators = Callable[[Sequence[str]], Awaitable[Sequence[str]]]
"""Read the operators of nodes from the chain, "" for what is no node of the run."""

ANNOUNCED: Final = telemetry.counter("announcements", "Names, machines and scores received", ("kind",))
log = telemetry.logger("orchestrator")


@dataclass(eq=False)
class Announcements:
    """Receives announcements. One per service."""

    where: Domain
    owner: str
    queries: Queries
    database: Database
    storage_url: str = field(kw_only=True)
    clock: Callable[[], float] = field(default=time.time, kw_only=True)

    def __post_init__(self) -> None:
        self._naming = asyncio.Lock()
        """Of this process: what two refuse each other is decided in the database."""
        self.names = ContentStore(self.storage_url, "names")
        self.scores = ContentStore(self.storage_url, "scores")

    # Names

    async def receive_name(self, run: int, announced: NodeName) -> bool:
        """Take a node's name; return whether it is new. The same one again changes nothing."""
        # 1. Its form, and the operator's signature.
        self._expect_run(run, announced.run)
        if problem := name_problem(announced.name):
            raise problems.malformed(f"the name {announced.name!r} {problem}", "choose another one")
        self._expect_past(announced.named, "the name")
        signer = recover_signer(self.where, announced)
        if not await self.database.read(lambda connection: self._is_new_name(connection, announced, signer)):
            return False

        # 2. One change at a time: storage, then the database.
        async with self._naming:
            await self.database.read(lambda connection: self._is_new_name(connection, announced, signer))
            await self.names.put(announced.model_dump_json().encode())
            new = await self.database.write(lambda connection: self._write_name(connection, announced, signer))
        ANNOUNCED.labels("name").inc()
        log.info("named", node=to_checksum_address(announced.node), name=announced.name)
        return new

    def _is_new_name(self, connection: Connection, announced: NodeName, signer: str) -> bool:
        """Return whether this name is new.

        Raises RefusedError for one that is not the operator's or the latest, or comes too soon.
        """
        node = to_checksum_address(announced.node)
        member = member_of(connection, node)
        if member is None:
            raise problems.no_node(node, self.queries.run)
        if member.operator != signer:
            raise problems.not_allowed(
                f"the name is signed by {signer}; the operator of {node} is {member.operator}",
                "use the operator's key: --operator WALLET",
            )
        query = select(*node_names.c["named", "document", "received"]).where(node_names.c.node == node)
        kept = connection.execute(query).one_or_none()
        if kept is None:
            return True
        if NodeName.model_validate_json(kept.document) == announced:
            return False
        if announced.named <= kept.named:
            raise problems.conflict(f"a name of {node} that is as late or later is known", "sign it again")
        wait = kept.received + NAME_SECONDS - self.clock()
        if wait > 0:
            raise problems.conflict(f"{node} was named less than a minute ago", f"try again in {wait:.0f} s")
        return True

    def _write_name(self, connection: Connection, announced: NodeName, signer: str) -> bool:
        if not self._is_new_name(connection, announced, signer):
            return False
        node = to_checksum_address(announced.node)
        _keep_name(connection, announced, self.clock())
        record_event(connection, "named", {"node": node, "name": announced.name}, f"named:{node}:{announced.named}")
        return True

    def check_name(self, announced: NodeName) -> None:
        """Raise CheckError unless a name from storage is one, and signed by somebody."""
        if problem := name_problem(announced.name):
            raise MalformedError(f"the name {announced.name!r} {problem}")
        recover_signer(self.where, announced)

    async def restore_names(self, kept: Iterable[NodeName], operators: Operators) -> None:
        """Fill a new database: of each node the latest name that its operator signed."""
        by_node: dict[str, list[NodeName]] = defaultdict(list)
        for announced in sorted(kept, key=lambda one: one.named, reverse=True):
            if announced.run == self.queries.run:
                by_node[to_checksum_address(announced.node)].append(announced)
        found: list[NodeName] = []
        nodes = list(by_node)
        for first in range(0, len(nodes), AT_ONCE):
            some = nodes[first : first + AT_ONCE]
            for node, operator in zip(some, await operators(some), strict=True):
                signed = (one for one in by_node[node] if recover_signer(self.where, one) == operator)
                found += [one for one in [next(signed, None)] if one is not None]

        def write(connection: Connection) -> None:
            for announced in found:
                _keep_name(connection, announced, 0)

        await self.database.write(write)

    # Machines

    async def receive_machine(self, caller: Caller, run: int, report: MachineReport) -> None:
        """Take what a node says of its machine."""
        member = caller.member
        if member is None or not member.active:
            raise problems.not_allowed(f"{caller.address} is no active node of run {self.queries.run}")
        self._expect_run(run, report.run)
        row = {
            "node": caller.address,
            "device": clean_device(report.device),
            "devices": report.devices,
            "tokens_per_second": report.tokens_per_second if member.role == "worker" else 0.0,
            "gas_hours": report.gas_hours,
            "received": self.clock(),
        }

        # Without news: a report a second would undo what answers are kept.
        await self.database.write(lambda connection: upsert(connection, machines, row), news=False)
        ANNOUNCED.labels("machine").inc()

    # Scores

    def expect_scorer(self, address: str) -> None:
        """Raise RefusedError for who is neither the run's trainer nor its owner."""
        trainer = self.queries.keys_now.trainer
        if address not in (trainer, self.owner):
            raise problems.not_allowed(
                f"{address} is neither the trainer of run {self.queries.run}, {trainer}, nor its owner, {self.owner}",
                "use the trainer's or the owner's key",
            )

    async def receive_score(self, run: int, score: BenchmarkScore) -> bool:
        """Take a score; return whether it is new. The same one again changes nothing."""
        # 1. Its form, and whose it is.
        self._expect_run(run, score.run)
        self._expect_past(score.measured, "the score")
        if not score.low <= score.score <= score.high:
            raise problems.malformed(f"a score of {score.score:g} is not within {score.low:g} to {score.high:g}")
        if not score.tasks or not score.samples:
            raise problems.malformed("a score of no answers")
        self.expect_scorer(recover_signer(self.where, score))

        # 2. Storage, then the database.
        if not await self.database.read(lambda connection: self._is_new_score(connection, score)):
            return False
        await self.scores.put(score.model_dump_json().encode())
        new = await self.database.write(lambda connection: self._write_score(connection, score))
        ANNOUNCED.labels("score").inc()
        log.info("scored", step=score.step, benchmark=score.benchmark, score=score.score)
        return new

    def _is_new_score(self, connection: Connection, score: BenchmarkScore) -> bool:
        """Return whether a score is new. Raises RefusedError when its step is not on chain, or it is not the latest."""
        published = select(checkpoints.c.step).where(checkpoints.c.step == score.step)
        if connection.execute(published).first() is None:
            raise problems.no_step(score.step, score.run)
        query = select(scores.c.measured, scores.c.document)
        query = query.where(scores.c.step == score.step, scores.c.benchmark == score.benchmark)
        kept = connection.execute(query).one_or_none()
        if kept is not None:
            if BenchmarkScore.model_validate_json(kept.document) == score:
                return False
            if score.measured <= kept.measured:
                raise problems.conflict(
                    f"a score of step {score.step} on {score.benchmark} that is as late or later is known",
                    "measure it again",
                )
            return True
        others = select(func.count(scores.c.benchmark.distinct())).where(scores.c.benchmark != score.benchmark)
        if (connection.execute(others).scalar() or 0) >= MAX_BENCHMARKS:
            raise problems.conflict(f"run {score.run} has scores on {MAX_BENCHMARKS} benchmarks: there is no room")
        return True

    def _write_score(self, connection: Connection, score: BenchmarkScore) -> bool:
        if not self._is_new_score(connection, score):
            return False
        _keep_score(connection, score)
        data = score.model_dump(include={"step", "benchmark", "score", "low", "high"})
        record_event(connection, "scored", data, f"scored:{score.step}:{score.benchmark}:{score.measured}")
        return True

    def check_score(self, score: BenchmarkScore) -> None:
        """Raise CheckError unless a score from storage is this run's, and its trainer's or owner's."""
        if score.run == self.queries.run:
            self.expect_scorer(recover_signer(self.where, score))

    async def restore_scores(self, kept: Iterable[BenchmarkScore]) -> None:
        """Fill a new database: of each step and benchmark the score that was measured last."""
        ours = sorted((one for one in kept if one.run == self.queries.run), key=lambda one: one.measured)

        def write(connection: Connection) -> None:
            for score in ours:
                _keep_score(connection, score)

        await self.database.write(write)

    # Both

    def _expect_run(self, run: int, named: int) -> None:
        if named != run:
            raise problems.another_run(named, run)

    def _expect_past(self, second: int, what: str) -> None:
        if second > self.clock() + REQUEST_LIFETIME_SECONDS:
            raise problems.malformed(f"{what} is of the future", "set this machine's clock")


def _keep_name(connection: Connection, announced: NodeName, received: float) -> None:
    node, document = to_checksum_address(announced.node), announced.model_dump_json()
    upsert(connection, node_names, row_of(node_names, announced, node=node, document=document, received=received))


def _keep_score(connection: Connection, score: BenchmarkScore) -> None:
    upsert(connection, scores, row_of(scores, score, document=score.model_dump_json()))
