"""A run told event by event to the parts of an orchestrator that write it into the database, without chain or HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from muster.constants import HOUR_SECONDS
from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Kind, Outcome
from muster.contracts.registry import Convicted, Fined, Registered, Role
from muster.contracts.runs import CheckpointPublished, Claimed, Voided, WorkCommitted
from muster.protocol.eip712 import UNSIGNED
from muster.protocol.messages import SignedRequest, StepReport, Upload, UploadReceipt, Verdict
from muster.protocol.terms import WorkClass
from muster.settings.schema import OrchestratorSettings
from orchestrator import tallies
from orchestrator.chain_projection import ChainProjection
from orchestrator.database import Database
from orchestrator.queries import Queries
from orchestrator.reports import KeptReport, Reports
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts
from testbed.runs.run_fixture import terms_of

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


@dataclass
class ToldRun:
    """A run, its database, and what happened to it so far."""

    database: Database
    folder: Path
    happened: list[Event] = field(default_factory=list)
    verdicts_given: int = 0
    reports: int = 0

    def __post_init__(self) -> None:
        nobody: Any = None
        two_parts: Any = TwoParts()
        self.queries = Queries(self.database, 1, TERMS, batch_groups=8, demand_batches=2)
        self.projection = ChainProjection(self.queries, two_parts)
        self.verdicts = Verdicts(nobody, self.queries, nobody, self.database, storage_url=f"file:{self.folder}")
        self.reports_of = Reports(self.queries, self.database, storage_url=f"file:{self.folder}")
        self.uploads = Uploads(nobody, nobody, self.queries, self.database, OrchestratorSettings())

    async def do(self, operation: Operation) -> None:
        what, *how = operation
        await getattr(self, what.replace(" ", "_"))(*how)

    async def deliver(self, *events: Event) -> None:
        """Apply events. Block N is of the chain's hour N."""
        times = {number: HOUR_SECONDS * number for number in self.projection.timed_blocks(events)}
        await self.database.write(lambda c: [self.projection.apply(c, event, times) for event in events])

    async def happen(self, make: Callable[..., Event], *values: Any) -> None:
        number = len(self.happened) + 1
        event = make(Place(number, bytes(32), number.to_bytes(32), 0), *values)
        self.happened.append(event)
        await self.deliver(event)

    def committed(self, which: int) -> WorkCommitted | None:
        found = [event for event in self.happened if isinstance(event, WorkCommitted)]
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
        work = self.committed(which)
        if work is None:
            return
        self.verdicts_given += 1
        verdict = Verdict(
            run=1, step=work.step, node=work.node, index=work.index, root="0x" + work.root.hex(),
            file_hash=file_hash(0), validator=validator, accepted=reason is None, reason=reason,
            draw_index=self.verdicts_given, preimage=file_hash(0), inspected=1, signature=UNSIGNED,
        )  # fmt: skip
        await self.verdicts.record(verdict, 0.0)

    async def accuse(self, validator: str, which: int) -> None:
        work = self.committed(which)
        if work is not None:
            number = sum(isinstance(event, CaseOpened) for event in self.happened)
            about = (1, work.index, work.step, work.root, Kind.WRONG_REWARD, 0, bytes(32), 3, 0, 0)
            await self.happen(CaseOpened, number, work.node, validator, *about)

    async def resolve(self, which: int, outcome: Outcome) -> None:
        found = [event for event in self.happened if isinstance(event, CaseOpened)]
        if found:
            case = found[which % len(found)]
            await self.happen(CaseResolved, case.case_id, case.node, outcome, 1, 2, 3)

    async def convict(self, node: str) -> None:
        await self.happen(Convicted, node, 1, 50, 10, OPERATOR)

    async def pay(self, kind: Any, node: str, amount: int) -> None:
        amount *= 10**25
        values = {Claimed: (1, node, 0, amount), Voided: (1, node, 0, 1, amount), Fined: (node, 1, amount)}
        await self.happen(kind, *values[kind])

    async def upload(self, which: int, file: int) -> None:
        work = self.committed(which)
        if work is None:
            return
        name = file_hash(file)
        receipt = UploadReceipt(
            run=1, node=work.node, index=work.index, root="0x" + work.root.hex(), file_hash=name, size=1,
            stored_at=0, signature=UNSIGNED,
        )  # fmt: skip
        request = SignedRequest(
            method="PUT", host="", path="", query="", body_hash=name, nonce=name, expiry=0, signature=UNSIGNED
        )
        await self.uploads.record(Upload(receipt=receipt, request=request), 0.0)

    async def report(self, step: int, used: Iterable[int], dropped: Iterable[int]) -> None:
        self.reports += 1
        names = [[file_hash(file) for file in sorted(files)] for files in (used, dropped)]
        report = StepReport(run=1, step=step, metrics={}, batch=names[0], dropped=names[1])
        await self.reports_of.record(KeptReport(report=report, received=self.reports))

    async def deliver_again(self, which: int) -> None:
        await self.deliver(self.happened[-1 - which % len(self.happened)])

    async def reorganise(self, lost: int) -> None:
        """Lose what happened last, but not who registered, and read the rest anew."""
        self.happened = self.happened[: max(BEGINNING, len(self.happened) - lost % 8)]
        await self.database.write(self.projection.forget)
        await self.deliver(*self.happened)
