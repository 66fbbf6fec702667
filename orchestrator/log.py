"""The log: all documents that are signed, in the order in which they were taken.

A place is a whole number; there are no gaps. A batch of documents is one file in storage, named by its first place and
created only where there is none: so each place has one file, whichever process creates it, and no lock is needed. A
process that finds the place taken first takes in what is there, as it stands: it may be another process's, or what one
left that was killed, or what a store kept and answered with an error. Only then comes its own batch, after being looked
at again. In the database a place is therefore there once all before it are.

What documents lead to in other tables, their kind projects in the same transaction. A new database is filled from
storage, and so is an older copy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import ValidationError
from sqlalchemy import BigInteger, Connection, func, literal, select

from muster.clients.storage import SegmentStore
from muster.constants import HOUR_SECONDS
from muster.errors import MalformedError, MismatchError, MusterError, RefusedError, StorageError
from muster.ledger.database import Database
from muster.ledger.documents import DocumentKind, Placed
from muster.ledger.queries import Queries
from muster.ledger.statements import insert_once, upsert
from muster.ledger.tables import entries, meta
from muster.protocol.eip712 import Domain
from muster.protocol.messages import LogEntry, LogPage, Message, SignedText
from muster.runtime import problems, telemetry
from muster.runtime.batches import Batches, Failure, Outcome
from muster.runtime.failpoints import failpoint

MAX_TOGETHER: Final = 256
"""Documents that share a file."""
MAX_TOGETHER_BYTES: Final = 1 << 20
"""Of several documents in one file."""
FILES_TOGETHER: Final = 64
"""That are taken in with one transaction."""
MAX_PAGE: Final = 500
MAX_PAGE_CHARACTERS: Final = 6 << 20
"""Characters of documents in one answer, unless a single one has more."""
_HEAD: Final = "places"
"""The number of places given, in the table `meta`: the newest rows may be forgotten."""
TRIES: Final = 16
"""Of a batch, where others come first."""
WRONG_KEY: Final = "check whose key signs, chain.chain_id and the address book"

D = TypeVar("D", bound=Message)
log = telemetry.logger("orchestrator")
DOCUMENTS: Final = telemetry.counter("documents", "Signed documents taken", ("kind",))


@dataclass(frozen=True)
class Earlier(Generic[D]):
    """The last document of a key."""

    place: int
    text: str
    received: float
    document: D


@dataclass(frozen=True)
class Offered(Generic[D]):
    """A document that somebody would like to have taken."""

    kind: Kind[D]
    document: D
    text: str
    signer: str
    earlier: Earlier[D] | None = None


class Taken(NamedTuple):
    """What became of a document."""

    is_new: bool
    place: int | None = None
    """None where another document says the same."""

    def __bool__(self) -> bool:
        return self.is_new


class KnownError(Exception):
    """The log needs a document no more: it has one that says the same."""


@dataclass(frozen=True, kw_only=True)
class Kind(DocumentKind[D]):
    """How documents of a kind are taken, and what they lead to."""

    noun: str
    """As a refusal says it."""
    key: Callable[[D], str]
    """Of documents about the same the last one counts."""
    may_sign: Callable[[Connection, D], Collection[str]] | None = None
    """Whose signature is taken now; None: `fits` says."""
    hint: str = WRONG_KEY
    """What to do where it is another's."""
    fits: Callable[[Connection, Offered[D]], str] = lambda _connection, _offered: ""
    """Raises RefusedError for what does not fit chain and log, KnownError for what they have already; returns what is
    kept beside the document."""
    replaces: Callable[[D, D], bool] = lambda _new, _earlier: False
    """Whether a document comes in the place of an earlier one of its key; else it is refused."""
    repeats: bool = False
    """Whether the same document again may be news."""
    about: Callable[[D], tuple[str, int]] = lambda _: ("", 0)
    """A node and the index of its commitment; an author and a version; or "" and a number."""
    project: Callable[[Connection, Sequence[Placed[D]]], None] = lambda _connection, _placed: None
    """Writes what documents lead to. A document that was taken never makes it fail."""


def by_trainer(queries: Queries) -> dict[str, Any]:
    """Return who signs a kind of which all documents are the trainer's."""
    return {
        "may_sign": lambda _connection, _document: {queries.keys_now.trainer},
        "could_sign": lambda _document, signer: queries.keys.ever_trained(signer),
    }


class Log:
    """The log of one run. One per service."""

    def __init__(
        self,
        where: Domain,
        database: Database,
        queries: Queries,
        *,
        storage_url: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._where, self._database, self._queries, self._clock = where, database, queries, clock
        self.kinds: dict[str, Kind[Any]] = {}
        self.segments = SegmentStore(storage_url, "log")
        self._batches = Batches(
            self._append, most=MAX_TOGETHER, most_bytes=MAX_TOGETHER_BYTES, size_of=lambda one: len(one.text)
        )

    def add_kind(self, kind: Kind[Any]) -> None:
        self.kinds[kind.name] = kind

    # Taking

    async def take(self, name: str, signed: Any, *, sender: str | None = None) -> Taken:
        """Take a signed document, and keep it in storage and database; return its place, and whether it is new.

        sender: who sends it, where nobody else may: the log is open, so anybody could send an earlier one again. Raises
        RefusedError for one that is not taken, StorageError when it cannot be kept.
        """
        document, signer = self.open(name, signed)
        if sender not in (None, signer):
            raise problems.not_allowed(f"the {name} is signed by {signer}, the request by {sender}")
        return await self._batches.add(Offered(self.kinds[name], document, signed.to_bytes().decode(), signer))

    def open(self, name: str, signed: Any) -> tuple[Any, str]:
        """Return what a signed document says, and who signed it. Raises RefusedError for one that is not this run's."""
        if signed.run != self._queries.run:
            raise problems.another_run(signed.run, self._queries.run)
        if name not in self.kinds or not isinstance(signed, self.kinds[name].travels_as):
            known = ", ".join(sorted(one.name for one in self.kinds.values() if not one.is_signed))
            raise problems.malformed(f"no signed text is a {name}", f"kinds of signed texts: {known}")
        try:
            return self.kinds[name].open(self._where, signed)
        except MusterError as error:
            raise problems.not_allowed(str(error), WRONG_KEY) from error

    async def _append(self, batch: Sequence[Offered[Any]]) -> Sequence[Outcome]:
        for _ in range(TRIES):
            first, outcomes = await self._database.read(lambda connection: self._look(connection, batch))
            new = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, str)]
            if not new:
                return outcomes
            given = [self._entry(batch[one], first + n, outcomes[one]) for n, one in enumerate(new)]
            if await self.segments.create(first, [entry.at.to_bytes() for entry in given]):
                failpoint("orchestrator.placed")
                await self._database.write(partial(self.record, first=first, given=given))
                for n, one in enumerate(new):
                    outcomes[one] = Taken(True, first + n)
                    DOCUMENTS.labels(batch[one].kind.name).inc()
                return outcomes
            await self.take_in(first)
        raise StorageError("the log: other processes came first each time", hint="try again in a second")

    def _look(self, connection: Connection, batch: Sequence[Offered[Any]]) -> tuple[int, list[Outcome]]:
        """Return the next place; and of each: what is kept beside it, where it is known, or why it is refused."""
        outcomes, seen = list[Outcome](), set[tuple[str, str]]()
        for one in batch:
            key = one.kind.key(one.document)
            try:
                if (one.kind.name, key) in seen:
                    raise problems.try_later(f"another {one.kind.noun} about the same comes at this moment")
                outcomes.append(self._admit(connection, one, key))
            except KnownError:
                outcomes.append(Taken(False))
            except RefusedError as error:
                outcomes.append(Failure(error))
            seen.add((one.kind.name, key))
        return head_of(connection), outcomes

    def _admit(self, connection: Connection, one: Offered[Any], key: str) -> str | Taken:
        kind, earlier = one.kind, self.latest(connection, one.kind.name, key)
        if earlier is not None and earlier.text == one.text and not kind.repeats:
            return Taken(False, earlier.place)
        if kind.may_sign is not None and one.signer not in (allowed := kind.may_sign(connection, one.document)):
            named = " or ".join(sorted(allowed))
            raise problems.not_allowed(f"the {kind.noun} is signed by {one.signer}, not by {named}", kind.hint)
        beside = kind.fits(connection, replace(one, earlier=earlier))
        if earlier is not None and not kind.replaces(one.document, earlier.document):
            raise problems.conflict(f"another {kind.noun} about the same is known, as late or later", "sign it again")
        return beside

    def _entry(self, one: Offered[Any], place: int, beside: str) -> Placed[Any]:
        came, received = self._queries.chain.now, self._clock()
        at = LogEntry(place=place, kind=one.kind.name, came=came, received=received, text=one.text, beside=beside)
        return Placed(at, one.document, one.signer)

    def record(self, connection: Connection, *, first: int, given: Sequence[Placed[Any] | None]) -> None:
        """Record the documents from a place on, None for what is none, unless they are there already."""
        if head_of(connection) != first:
            return
        upsert(connection, meta, {"key": _HEAD, "value": str(first + len(given))})
        for name, some in groupby(filter(None, given), key=lambda one: one.at.kind):
            kind, found = self.kinds[name], list(some)
            for one in found:
                subject, number = kind.about(one.document)
                row = one.at.model_dump() | {"key": kind.key(one.document), "subject": subject, "number": number}
                row |= {"signer": one.signer, "hour": one.at.came // HOUR_SECONDS, "segment": first}
                insert_once(connection, entries, row)
            kind.project(connection, found)

    # Taking in what storage has

    async def take_in(self, first: int) -> None:
        """Take in what storage has from a place on, as it stands."""
        given = await self._file(first)
        await self._database.write(partial(self.record, first=first, given=given))

    async def _file(self, first: int) -> list[Placed[Any] | None]:
        lines = await self.segments.read(first)
        return await asyncio.to_thread(lambda: [self._read(first + n, line) for n, line in enumerate(lines)])

    async def catch_up(self, skip: Callable[[Placed[Any]], bool], forgotten: Collection[int]) -> int:
        """Take in all that storage has and the database lacks; return how many places.

        skip: whether a document is about work of which only a summary is left. forgotten: places whose documents were.
        """
        begun = head = await self._database.read(head_of)
        left = iter(await self.segments.firsts(begun - 1))
        while some := list(islice(left, FILES_TOGETHER)):
            files = dict(zip(some, await asyncio.gather(*map(self._file, some)), strict=True))
            for first, found in files.items():
                missing = next((place for place in range(head, first) if place not in forgotten), None)
                if missing is not None:
                    log.error("documents are missing from storage", first=missing, before=first)
                files[first] = [None if one is None or skip(one) else one for one in found]
                head = first + len(found)
            await self._database.write(partial(self._record_files, files=files))
        head = max(head, 1 + max(forgotten, default=-1))
        await self._database.write(partial(_give_places, number=head))
        return head - begun

    def _record_files(self, connection: Connection, *, files: Mapping[int, Sequence[Placed[Any] | None]]) -> None:
        for first, given in files.items():
            _give_places(connection, number=first)
            self.record(connection, first=first, given=given)

    def _read(self, place: int, line: bytes) -> Placed[Any] | None:
        """Return the document of a line in storage; None, said in the log, where it is none of this run."""
        try:
            at = LogEntry.model_validate_json(line)
            signed = self.kinds[at.kind].travels_as.model_validate_json(at.text)
            if (at.place, signed.run) != (place, self._queries.run):
                raise MalformedError("it is of another place or run")
            document, signer = self.kinds[at.kind].open(self._where, signed)
            if not self.kinds[at.kind].could_sign(document, signer):
                raise MismatchError(f"it is signed by {signer}")
            return Placed(at, document, signer)
        except (ValidationError, MusterError, KeyError) as error:
            log.warning("left out", kind="log", place=place, reason=str(error).splitlines()[0])
            return None

    # Reading

    def latest(self, connection: Connection, name: str, key: str | None = None) -> Earlier[Any] | None:
        """Return the last document of a kind; of a key, where one is given."""
        last = select(func.max(entries.c.place)).where(entries.c.kind == name)
        last = last if key is None else last.where(entries.c.key == key)
        query = select(*entries.c["place", "text", "received"]).where(entries.c.place == last.scalar_subquery())
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return Earlier(row.place, row.text, row.received, self.document_of(name, row.text))

    def document_of(self, name: str, text: str) -> Any:
        """Return what a document of the log says."""
        kind = self.kinds[name]
        if kind.is_signed:
            return kind.message.model_validate_json(text)
        return kind.message.model_validate_json(SignedText.model_validate_json(text).text)

    async def page(self, after: int, **about: Any) -> LogPage:
        """Return documents from a place on. `about`: what their `kind`, `subject` or `number` is, where not None."""
        return await self._database.read(lambda connection: page_of(connection, after, about))


def page_of(connection: Connection, after: int, about: Mapping[str, Any]) -> LogPage:
    """Return documents from a place on, MAX_PAGE_CHARACTERS characters of them."""
    conditions = [entries.c[name] == value for name, value in about.items() if value is not None]
    query = select(*entries.c[tuple(LogEntry.model_fields)]).where(entries.c.place >= literal(after, BigInteger))
    query = query.where(*conditions).order_by(entries.c.place).limit(MAX_PAGE).execution_options(yield_per=16)
    found, room = list[LogEntry](), MAX_PAGE_CHARACTERS
    with connection.execute(query) as rows:
        for row in rows:
            room -= len(row.text)
            if found and room < 0:
                break
            found.append(LogEntry.of(row))
    return LogPage(entries=found, cursor=found[-1].place + 1 if found else after)


_NEXT: Final = select(meta.c.value).where(meta.c.key == _HEAD)


def head_of(connection: Connection) -> int:
    """Return the next place."""
    return int(connection.execute(_NEXT).scalar() or 0)


def _give_places(connection: Connection, *, number: int) -> None:
    """Let so many places be given at least: what stood there is forgotten."""
    if number > head_of(connection):
        upsert(connection, meta, {"key": _HEAD, "value": str(number)})
