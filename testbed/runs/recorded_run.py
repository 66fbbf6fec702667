"""A run in a database of its own, filled as in service: by the chain's events and signed documents, without either."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from eth_utils.address import to_checksum_address
from fastapi.routing import APIRoute
from sqlalchemy import Connection
from starlette.requests import Request

from explorer.documents import Documents
from explorer.routes import pages
from explorer.source import PageSource
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts.codec import Event, Place
from muster.contracts.court import CaseOpened, CaseResolved, Outcome, VoteCommitted, VoteRevealed
from muster.contracts.registry import Convicted, Fined, Registered, Role
from muster.contracts.runs import CheckpointPublished, Claimed, Voided, WorkCommitted
from muster.ledger import tallies
from muster.ledger.attribution import Attribution
from muster.ledger.chain_projection import ChainProjection
from muster.ledger.database import Database
from muster.ledger.documents import DocumentKind, KeptCall, Placed
from muster.ledger.queries import Queries
from muster.ledger.queries import verdict_of as known_verdict
from muster.ledger.statements import insert_once
from muster.ledger.tables import node_names
from muster.ledger.tallies import CommitmentState
from muster.protocol.eip712 import UNSIGNED
from muster.protocol.hashes import hash_bytes
from muster.protocol.keys import RunKeys
from muster.protocol.kinds import kind_of
from muster.protocol.messages import LogEntry, Message, SignedText, StepReport, Upload, Verdict
from muster.protocol.terms import Terms, WorkClass
from muster.settings.schema import OrchestratorSettings
from muster.tasksets.document import TaskSetDocument
from orchestrator.log import Log
from orchestrator.reports import Reports
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts, gives_way
from testbed.samples.messages import HERE, receipt_of, request_of, verdict_of
from testbed.samples.terms import keys_of, terms_of

E = TypeVar("E", bound=Event)

CHAIN, RUNS, RUN = 31337, "0x" + "0c" * 20, 1
HOUR = 500_000
"""The first hour of a sample run; its first block is at its beginning."""


def address(name: str) -> str:
    """Return the address for a name."""
    return to_checksum_address(hashlib.sha256(name.encode()).digest()[:20])


def hash_of(name: str) -> str:
    return "0x" + hashlib.sha256(name.encode()).hexdigest()


async def html_of(service: Any, path: str, **asked: Any) -> str:
    """Return the HTML of a page of the route table; `asked` are the parameters in its path."""
    (route,) = [one for one in pages.routes if isinstance(one, APIRoute) and one.path == path]
    scope = {"type": "http", "method": "GET", "path": path.format(**asked), "query_string": b"", "headers": []}
    return bytes((await route.endpoint(Request(scope), service=service, **asked)).body).decode()


class RecordedRun:
    """A run in the tables of an explorer, which its parts write."""

    first_second, block_seconds = HOUR * 3600, 60
    tells = True
    """Whether there are events for people."""

    def __init__(
        self, database: Database, folder: Path, terms: Terms, attribution: Any, keys: RunKeys | None = None
    ) -> None:
        """Use a folder of the test's own as storage."""
        self.terms, self.database = terms, database
        self.queries = Queries(database, RUN, terms, keys or keys_of(TRAINER), groups_wanted=16)
        self.projection = ChainProjection(self.queries, attribution, tells=self.tells)
        self.kinds = self.open(folder)
        self.seats: list[str] = []
        """Validators, in the order in which they joined."""
        self.files: dict[tuple[str, int, str], str] = {}
        """What workers uploaded. Verdicts name it."""
        self.places = 0

    def open(self, folder: Path) -> Mapping[str, DocumentKind[Any]]:
        """Make the parts that take documents."""
        self.documents = Documents(HERE, self.queries, address("owner"))
        return self.documents.kinds

    def project(self, connection: Connection, one: Placed[Any]) -> None:
        self.documents.project(connection, [one])

    async def deliver(self, *events: Event) -> None:
        """Apply events."""
        numbers = self.projection.timed_blocks(events)
        times = {number: self.first_second + self.block_seconds * number for number in numbers}
        joined = [one for one in events if isinstance(one, Registered) and one.role is Role.VALIDATOR]
        self.seats += [one.node for one in joined]
        await self.database.write(lambda connection: self.projection.apply(connection, events, times))

    async def record_upload(
        self, node: str, index: int, root: str, file_hash: str, size: int = 1, stored_at: int | None = None
    ) -> None:
        """Let later verdicts name a file. `size` and `stored_at` are known to the orchestrator only."""
        self.files.setdefault((node, index, root), file_hash)

    async def record_verdict(self, verdict: Verdict, received: float, came: int | None = None) -> None:
        """Record a verdict that comes, unless told otherwise, in the second in which the places open.

        Who gives the first one about a commitment is the first that was called.
        """
        order = [verdict.validator, *(one for one in self.seats if one != verdict.validator)]
        opens = self.first_second
        call = KeptCall(block=0, hash="0x" + "00" * 32, order=json.dumps(order), opens=opens)
        came = opens if came is None else came
        beside = call.model_dump_json()

        def write(connection: Connection) -> None:
            earlier = known_verdict(connection, verdict.validator, verdict)
            if earlier is None or gives_way(earlier, verdict, call):
                self.record(connection, "verdict", verdict, verdict.validator, received, came=came, beside=beside)

        await self.database.write(write)

    async def record_report(self, received: float, **fields: Any) -> None:
        report, trainer = StepReport(run=RUN, **fields), self.queries.keys_now.trainer
        await self.database.write(lambda connection: self.record(connection, "report", report, trainer, received))

    def record(
        self,
        connection: Connection,
        kind: str,
        document: Message,
        signer: str,
        received: float,
        *,
        came: int = 0,
        beside: str = "",
    ) -> None:
        """Give an unsigned document the next place of the log, without a check."""
        text = document.to_bytes().decode()
        if not self.kinds[kind].is_signed:
            text = SignedText(run=RUN, kind=kind, text=text, signature=UNSIGNED).to_bytes().decode()
        at = LogEntry(place=self.places, kind=kind, came=came, received=received, text=text, beside=beside)
        self.places += 1
        self.project(connection, Placed(at, document, signer))


class ServedRun(RecordedRun):
    """A run in the tables of its orchestrator. Mix it in before the kind of story that is told."""

    tells = False

    def open(self, folder: Path) -> Mapping[str, DocumentKind[Any]]:
        unused: Any = None
        url = f"file:{folder}"
        self.log = Log(unused, self.database, self.queries, storage_url=url)
        self.verdicts = Verdicts(unused, self.queries, self.database, self.log, unused, storage_url=url)
        self.uploads = Uploads(unused, unused, self.queries, self.database, OrchestratorSettings())
        self.reports = Reports(self.queries, self.database, self.log)
        return self.log.kinds

    def project(self, connection: Connection, one: Placed[Any]) -> None:
        self.log.record(connection, first=one.at.place, given=[one])

    async def record_upload(
        self, node: str, index: int, root: str, file_hash: str, size: int = 1, stored_at: int | None = None
    ) -> None:
        await super().record_upload(node, index, root, file_hash)
        work = {"run": RUN, "node": node, "index": index, "root": root, "file_hash": file_hash}
        receipt = receipt_of(**work, size=size, stored_at=self.first_second if stored_at is None else stored_at)
        await self.uploads.record(Upload(receipt=receipt, request=request_of(file_hash, method="PUT")), 0.0)


URL = "https://run.example"
"""Where visitors find the page."""


class SampleRun(RecordedRun):
    """One run. Blocks are 60 seconds apart, one for each event."""

    def __init__(
        self, database: Database, folder: Path, document: TaskSetDocument | None = None, **changes: Any
    ) -> None:
        """Begin an empty run. `changes` are terms."""
        terms = terms_of(**changes)
        if document is not None:
            terms = replace(terms, task_count=document.slots)
        attribution = Attribution(CHAIN, RUNS, RUN, terms, document)
        super().__init__(database, folder, terms, attribution, keys_of(address("trainer"), address("storage")))
        self.source = PageSource(database, self.queries, attribution, URL)
        self.blocks = 0
        self.judged: dict[str, int] = {}
        self.made: dict[str, int] = {}
        self.roots: dict[tuple[str, int], str] = {}
        """Of commitments to real rows, by name and index."""

    def at(self, seconds: int, sealed_through: int = 0) -> None:
        """Set what the follower saw last: the chain's clock, and the hour that is sealed."""
        self.queries.chain = replace(self.queries.chain, now=seconds, sealed_through=sealed_through)

    # The chain

    async def happen(self, kind: Any, *values: Any) -> str:
        """Let an event happen in a separate block; its transaction."""
        self.blocks += 1
        await self.deliver(kind(Place(self.blocks, bytes(32), self.blocks.to_bytes(32), 0), *values))
        return "0x" + self.blocks.to_bytes(32).hex()

    async def join(self, name: str, role: Role = Role.WORKER, work_class: int = 0) -> str:
        await self.happen(Registered, address(name), address(f"{name}'s operator"), RUN, role, work_class, 1, bytes(32))
        return address(name)

    async def publish(self, *steps: int) -> None:
        for step in steps:
            roots = [hash_bytes(hash_of(f"{what} {step}")) for what in ("manifest", "batch", "entropy", "anchor")]
            await self.happen(CheckpointPublished, RUN, step, *roots)

    async def commit(self, name: str, step: int = 0, hour: int = HOUR) -> int:
        """Commit to work; its index."""
        index = self.made[name] = self.made.get(name, -1) + 1
        root = hash_bytes(self.root(name, index))
        await self.happen(WorkCommitted, RUN, address(name), step, index, hour, root)
        return index

    def root(self, name: str, index: int) -> str:
        return self.roots.get((name, index)) or hash_of(f"root {index} of {name}")

    async def open_case(
        self,
        number: int,
        challenger: str,
        accused: str,
        index: int,
        kind: int = kind_of("wrong_reward"),
        **changes: Any,
    ) -> None:
        """Open a case at second `now` of the follower."""
        now = self.queries.chain.now
        values = (
            RUN,
            index,
            changes.get("step", 0),
            hash_bytes(self.root(accused, index)),
            kind,
            changes.get("row", 3),
        )
        ends = now + self.terms.commit_phase, now + self.terms.commit_phase + self.terms.reveal_phase
        evidence = hash_bytes(hash_of("evidence"))
        await self.happen(CaseOpened, number, address(accused), address(challenger), *values, evidence, 3, *ends)

    async def vote(self, number: int, judge: str, guilty: bool | None = None) -> None:
        """Commit to a vote, or reveal it."""
        if guilty is None:
            await self.happen(VoteCommitted, number, address(judge), bytes(32))
        else:
            await self.happen(VoteRevealed, number, address(judge), guilty)

    async def resolve(self, number: int, accused: str, outcome: Outcome, guilty: int = 2, reveals: int = 3) -> str:
        """End a case; its transaction. Of a conviction, slash and void are in the same one."""
        return await self.happen(CaseResolved, number, address(accused), outcome, guilty, reveals, 3)

    async def convict(self, accused: str, slashed: int = 50 * TOKEN, voided: tuple[int, int] | None = None) -> None:
        """Convict a node in the block of the last event. `voided`: the first and the last index that are not paid."""
        block = Place(self.blocks, bytes(32), self.blocks.to_bytes(32), 1)
        events: list[Event] = [Convicted(block, address(accused), RUN, slashed, slashed // 5, address("winner"))]
        if voided is not None:
            amount = (voided[1] + 1 - voided[0]) * self.terms.pay
            events.append(Voided(replace(block, log_index=2), RUN, address(accused), *voided, amount))
        await self.deliver(*events)

    # Members

    def file_of(self, name: str, index: int) -> str:
        """Return the file that was uploaded for a commitment, or would be."""
        uploaded = self.files.get((address(name), index, self.root(name, index)))
        return uploaded or hash_of(f"file {index} of {name}")

    async def upload(self, name: str, index: int, file_hash: str = "", size: int = 1000) -> str:
        """Upload the file of a commitment; its hash."""
        file_hash = file_hash or self.file_of(name, index)
        await self.record_upload(address(name), index, self.root(name, index), file_hash, size)
        return file_hash

    async def judge(self, validator: str, name: str, index: int, reason: Any = None, **changes: Any) -> None:
        """Give a verdict: accepting without a reason."""
        number = self.judged[validator] = self.judged.get(validator, -1) + 1
        values: dict[str, Any] = {
            "node": address(name),
            "index": index,
            "root": self.root(name, index),
            "file_hash": self.file_of(name, index),
            "validator": address(validator),
            "accepted": reason is None,
            "reason": reason,
            "inspected": 4,
        }
        await self.record_verdict(verdict_of(**(values | changes)), 1000.0 + number)

    async def accept(self, name: str, index: int, validators: Iterable[str] = ("vera", "viktor")) -> None:
        for validator in validators:
            await self.judge(validator, name, index)

    async def report(
        self, step: int, metrics: dict[str, float | None], batch: Sequence[str] = (), dropped: Sequence[str] = ()
    ) -> None:
        files = {"batch": list(batch), "dropped": list(dropped)}
        await self.record_report(2000.0 + step, step=step, metrics=metrics, **files, stages={"publish": 1.5})

    async def name(self, node: str, called: str) -> None:
        row = {"node": address(node), "name": called, "named": 1, "document": "{}"}
        await self.database.write(lambda connection: insert_once(connection, node_names, row))


WORKERS = ["0x" + digit * 40 for digit in "123"]
VALIDATORS = ["0x" + digit * 40 for digit in "789"]
OPERATOR = "0x" + "c" * 40
TRAINER = "0x" + "d" * 40
CLASSES = (WorkClass(10_000, (8, 16)), WorkClass(5_000, (6,)))
TERMS = terms_of(accepts_required=1, classes=CLASSES)
"""The second worker is of the second class."""
Operation = tuple[Any, ...]
BEGINNING = len(WORKERS) + len(VALIDATORS) + 4
"""Events by which nodes register and steps are published."""


def file_hash(number: int) -> str:
    return "0x" + f"{number:064x}"


class TwoParts:
    """In place of an Attribution: what commitments drew follows from their indices."""

    def attribute(self, connection: Connection, work: Sequence[CommitmentState]) -> None:
        drawn = [(one, {"first": 1 + one.index % 3, "second": 1 + one.step}) for one in work]
        tallies.credit(connection, drawn)


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
            about["file_hash"] = self.files.get((work.node, work.index, about["root"]), about["root"])
            await self.record_verdict(verdict_of(**about, inspected=1), 0.0)

    async def accuse(self, validator: str, which: int) -> None:
        if work := self.latest(WorkCommitted, which):
            number = sum(isinstance(event, CaseOpened) for event in self.happened)
            about = (1, work.index, work.step, work.root, kind_of("wrong_reward"), 0, bytes(32), 3, 0, 0)
            await self.happen(CaseOpened, number, work.node, validator, *about)

    async def resolve(self, which: int, outcome: Outcome) -> None:
        """End a case, as on the chain at most once."""
        ended = {event.case_id for event in self.happened if isinstance(event, CaseResolved)}
        if (case := self.latest(CaseOpened, which)) and case.case_id not in ended:
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
        """Lose what happened last, but not who registered."""
        self.happened = self.happened[: max(BEGINNING, len(self.happened) - lost % 8)]
        await self.database.write(lambda connection: self.projection.roll_back(connection, len(self.happened)))


class ServedSample(ServedRun, SampleRun):
    """A sample run in the tables of its orchestrator."""


class ServedStory(ServedRun, ToldRun):
    """A told run in the tables of its orchestrator."""
