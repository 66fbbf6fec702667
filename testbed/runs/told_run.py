"""A run that is told event by event, in any order, to the parts of an orchestrator that write it into the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection

from muster.constants import HOUR_SECONDS
from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Kind, Outcome
from muster.contracts.registry import Convicted, Fined, Registered, Role
from muster.contracts.runs import CheckpointPublished, Claimed, Voided, WorkCommitted
from muster.protocol.terms import WorkClass
from orchestrator import tallies
from orchestrator.database import Database
from testbed.runs.recorded_run import RecordedRun
from testbed.samples.messages import verdict_of
from testbed.samples.terms import terms_of

E = TypeVar("E", bound=Event)
WORKERS = ["0x" + digit * 40 for digit in "123"]
VALIDATORS = ["0x" + digit * 40 for digit in "789"]
OPERATOR = "0x" + "c" * 40
TRAINER = "0x" + "d" * 40
CLASSES = (WorkClass(10_000, (8, 16)), WorkClass(5_000, (6,)))
TERMS = terms_of(TRAINER, TRAINER, accepts_required=1, classes=CLASSES)
"""The second worker is of the second class."""
Operation = tuple[Any, ...]
BEGINNING = len(WORKERS) + len(VALIDATORS) + 4
"""Events by which nodes register and steps are published."""


def file_hash(number: int) -> str:
    return "0x" + f"{number:064x}"


class TwoParts:
    """In place of an Attribution: what commitments drew follows from their indices."""

    def attribute(self, connection: Connection, node: str, index: int, step: int) -> None:
        tallies.credit(connection, node, index, "first", 1 + index % 3)
        tallies.credit(connection, node, index, "second", 1 + step)


class ToldRun(RecordedRun):
    """A run and what happened to it so far. Block N is of the chain's hour N."""

    first_second, block_seconds = 0, HOUR_SECONDS

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database, folder, TERMS, TwoParts())
        self.happened: list[Event] = []
        self.verdicts_given = self.reports_given = 0

    async def do(self, operation: Operation) -> None:
        what, *how = operation
        await getattr(self, what.replace(" ", "_"))(*how)

    async def happen(self, make: Callable[..., Event], *values: Any) -> None:
        number = len(self.happened) + 1
        event = make(Place(number, bytes(32), number.to_bytes(32), 0), *values)
        self.happened.append(event)
        await self.deliver(event)

    def latest(self, kind: type[E], which: int) -> E | None:
        """Return one of the events of a kind, if there are any."""
        found = [event for event in self.happened if isinstance(event, kind)]
        return found[which % len(found)] if found else None

    async def begin(self) -> None:
        for number, node in enumerate(WORKERS):
            await self.happen(Registered, node, OPERATOR, 1, Role.WORKER, number % 2, 100, bytes(32))
        for node in VALIDATORS:
            await self.happen(Registered, node, OPERATOR, 1, Role.VALIDATOR, 0, 100, bytes(32))
        for step in range(4):
            await self.happen(CheckpointPublished, 1, step, *(bytes([step]) * 32,) * 4)
        for node in WORKERS:
            for hour in (100, 101):
                await self.commit(node, 0, hour)

    async def commit(self, node: str, step: int, hour: int) -> None:
        index = sum(isinstance(event, WorkCommitted) and event.node == node for event in self.happened)
        root = bytes.fromhex(node[2:4]) + index.to_bytes(31)
        await self.happen(WorkCommitted, 1, node, step, index, hour, root)

    async def judge(self, validator: str, which: int, reason: Any) -> None:
        if work := self.latest(WorkCommitted, which):
            self.verdicts_given += 1
            about = {"step": work.step, "node": work.node, "index": work.index, "root": "0x" + work.root.hex()}
            about |= {"validator": validator, "accepted": reason is None, "reason": reason}
            await self.verdicts.record(verdict_of(**about, draw_index=self.verdicts_given, inspected=1), 0.0)

    async def accuse(self, validator: str, which: int) -> None:
        if work := self.latest(WorkCommitted, which):
            number = sum(isinstance(event, CaseOpened) for event in self.happened)
            about = (1, work.index, work.step, work.root, Kind.WRONG_REWARD, 0, bytes(32), 3, 0, 0)
            await self.happen(CaseOpened, number, work.node, validator, *about)

    async def resolve(self, which: int, outcome: Outcome) -> None:
        if case := self.latest(CaseOpened, which):
            await self.happen(CaseResolved, case.case_id, case.node, outcome, 1, 2, 3)

    async def convict(self, node: str) -> None:
        await self.happen(Convicted, node, 1, 50, 10, OPERATOR)

    async def pay(self, kind: Any, node: str, amount: int) -> None:
        amount *= 10**25
        values = {Claimed: (1, node, 0, amount), Voided: (1, node, 0, 1, amount), Fined: (node, 1, amount)}
        await self.happen(kind, *values[kind])

    async def upload(self, which: int, file: int) -> None:
        if work := self.latest(WorkCommitted, which):
            await self.record_upload(work.node, work.index, "0x" + work.root.hex(), file_hash(file))

    async def report(self, step: int, used: Iterable[int], dropped: Iterable[int]) -> None:
        self.reports_given += 1
        batch, lost = ([file_hash(file) for file in sorted(files)] for files in (used, dropped))
        await self.record_report(self.reports_given, step=step, metrics={}, batch=batch, dropped=lost)

    async def deliver_again(self, which: int) -> None:
        await self.deliver(self.happened[-1 - which % len(self.happened)])

    async def reorganise(self, lost: int) -> None:
        """Lose what happened last, but not who registered, and read the rest anew."""
        self.happened = self.happened[: max(BEGINNING, len(self.happened) - lost % 8)]
        await self.database.write(self.projection.forget)
        await self.deliver(*self.happened)
