"""What is left of a day whose rollouts and verdicts are gone: how each commitment ended, and what was counted.

A summary is one file, signed by the storage key. The chain and the summaries give a rebuild the same statuses and
counts as the files did. `orchestrator.retention` says when a day's detail goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field
from sqlalchemy import Connection, and_, bindparam, delete, func, select, update

from muster.constants import MAX_SUMMARY_BYTES
from muster.errors import MismatchError, RefusedError
from muster.ledger import tallies
from muster.ledger.queries import OF_NODE, Queries
from muster.ledger.statements import insert_new, insert_once, upsert
from muster.ledger.tables import (
    calls,
    commitments,
    entries,
    files,
    hour_tallies,
    outcomes,
    spent,
    summaries,
    uploads,
    verdicts,
)
from muster.ledger.tallies import DAY_HOURS, Kind
from muster.protocol.acceptance import State, date_of
from muster.protocol.eip712 import UNSIGNED, Domain, TypedSigner, recover_signer, sign_message
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.keys import RunKeys
from muster.protocol.messages import Address, DaySummary, Hash, Many
from muster.protocol.windows import needed_until
from muster.runtime import problems
from muster.runtime.documents import StrictDocument

Index = Annotated[int, Field(ge=0, lt=1 << 32)]
Ending = tuple[Index, Index, State, Annotated[str, Field(max_length=24)] | None, bool]
"""First and last index of a node's commitments that ended alike; status, reason, and whether a report has the files."""


@dataclass(frozen=True)
class DayOfWork(StrictDocument):
    """What is left of the commitments of one day of the chain's clock, in UTC."""

    what: ClassVar = "a day's summary"
    max_bytes: ClassVar = MAX_SUMMARY_BYTES

    run: Index
    day: Index
    """Counted from 1970."""
    roots: Hash
    """sha256 of the roots of its commitments, 32 bytes each, by node and index."""
    nodes: dict[Address, Many[Ending]]
    counts: dict[Address, dict[Kind, Annotated[int, Field(ge=0, lt=1 << 40)]]]
    """What verdicts, reports and files of the day add to what addresses did."""
    places: Many[tuple[int, int]]
    """First and last of places of the log whose documents are forgotten with the day."""


@dataclass(frozen=True)
class SignedDay(StrictDocument):
    """A summary as storage keeps it."""

    what: ClassVar = "a signed summary"
    max_bytes: ClassVar = MAX_SUMMARY_BYTES + 1024

    signed: DaySummary
    work: DayOfWork


def sign_day(signer: TypedSigner, where: Domain, work: DayOfWork) -> bytes:
    """Return the file of a summary. Raises MalformedError when it is larger than MAX_SUMMARY_BYTES."""
    content = content_hash(work.to_bytes())
    statement = DaySummary(run=work.run, day=work.day, content=content, signature=UNSIGNED)
    return SignedDay(sign_message(signer, where, statement), work).to_bytes()


def read_day(where: Domain, keys: RunKeys, data: bytes) -> DayOfWork:
    """Read the file of a summary. Raises CheckError unless one of the run's storage keys signed it as it is."""
    file = SignedDay.parse(data)
    signed, work = file.signed, file.work
    if (signed.run, signed.day, signed.content) != (work.run, work.day, content_hash(work.to_bytes())):
        raise MismatchError("the signature is for another summary")
    if (signer := recover_signer(where, signed)) not in [one.keys.storage_key for one in keys.tenures]:
        raise MismatchError(f"the summary is signed by {signer}, which was never the run's storage key")
    return work


def summarise(connection: Connection, run: int, day: int) -> DayOfWork:
    """Return what is to be left of a day."""
    hours = day * DAY_HOURS, (day + 1) * DAY_HOURS - 1
    owners = select(hour_tallies.c.node).where(hour_tallies.c.hour.between(*hours)).distinct()
    roots, nodes, places = hashlib.sha256(), dict[str, list[Ending]](), _lists_of(connection, hours)
    counts = dict[str, dict[Kind, int]]()
    for node in sorted(connection.execute(owners).scalars()):
        earlier = select(func.max(outcomes.c.last)).where(outcomes.c.node == node, outcomes.c.day < day)
        query = select(*commitments.c["index", "root", "status", "reason", "spent"]).where(
            commitments.c.node == node,
            commitments.c.index > func.coalesce(earlier.scalar_subquery(), -1),
            commitments.c.hour.between(*hours),
        )
        rows = connection.execute(query.order_by(commitments.c.index)).all()
        for row in rows:
            roots.update(hash_bytes(row.root))
        nodes[node] = list(_endings(rows))
        for first, last, *_ in nodes[node]:
            _count(connection, node, first, last, counts)
            places += connection.execute(select(entries.c.place).where(*documents_of(node, first, last))).scalars()
    return DayOfWork(run, day, "0x" + roots.hexdigest(), nodes, counts, list(_ranges(sorted(places))))


def documents_of(node: str, first: int, last: int) -> tuple[Any, ...]:
    """Return the conditions that rows of the log are about some commitments of a node."""
    return entries.c.subject == node, entries.c.number.between(first, last), entries.c.kind == "verdict"


def _lists_of(connection: Connection, hours: tuple[int, int]) -> list[int]:
    """Return the places of the lists of looks of some hours; the newest of all stays."""
    newest = select(func.max(entries.c.place)).where(entries.c.kind == "looks").scalar_subquery()
    here = entries.c.kind == "looks", entries.c.number.between(*hours), entries.c.place < newest
    return list(connection.execute(select(entries.c.place).where(*here)).scalars())


def _ranges(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of places that follow each other. `places`: in order."""
    start = 0
    for at, place in enumerate(places, 1):
        if at == len(places) or places[at] != place + 1:
            yield places[start], place
            start = at


def _endings(rows: Any) -> Iterator[Ending]:
    """Yield the commitments of one node that ended alike. `rows`: by index."""
    start = 0
    for at, row in enumerate(rows, 1):
        following = rows[at] if at < len(rows) else None
        if following is None or following.index != row.index + 1 or _end(following) != _end(row):
            yield rows[start].index, row.index, *_end(row)
            start = at


def _end(row: Any) -> tuple[State, str | None, bool]:
    return row.status, row.reason, bool(row.spent)


def _count(connection: Connection, node: str, first: int, last: int, counts: dict[str, dict[Kind, int]]) -> None:
    """Add what verdicts, reports and files of a node's commitments count to `counts`."""

    def add(address: str, kind: Kind, number: int) -> None:
        if number:
            kinds = counts.setdefault(address, {})
            kinds[kind] = kinds.get(kind, 0) + number

    given = select(*verdicts.c["validator", "accepted"])
    for one in connection.execute(given.where(*within(verdicts, node, first, last))):
        add(one.validator, "accepts" if one.accepted else "rejections", 1)
    own = within(uploads, node, first, last)
    used = select(func.count()).select_from(uploads).join(spent, spent.c.file_hash == uploads.c.file_hash)
    add(node, "files", connection.execute(used.where(*own, spent.c.used)).scalar_one())


def within(table: Any, node: str, first: int, last: int) -> tuple[Any, ...]:
    """Return the conditions that rows are about some commitments of a node."""
    return table.c.node == node, table.c.index.between(first, last)


# In the database


def close(connection: Connection, day: int) -> bool:
    """Take nothing about the work of a day any more; return whether that is new."""
    return insert_once(connection, summaries, {"day": day, "name": ""})


def settle(connection: Connection, work: DayOfWork, name: str) -> bool:
    """Let the outcomes of a closed day count, as its summary in storage says; return False when another one does."""
    open_day = and_(summaries.c.day == work.day, summaries.c.name == "")
    if not connection.execute(update(summaries).where(open_day).values(name=name)).rowcount:
        return False
    for node, endings in work.nodes.items():
        ended = [dict(zip(_ENDING, ending, strict=True)) for ending in endings]
        insert_new(connection, outcomes, [{"node": node, "day": work.day, "swept": False, **one} for one in ended])
    return True


def forget_lists(connection: Connection, work: DayOfWork) -> None:
    """Delete the lists of looks of a day from the log."""
    for first, last in work.places:
        forget(connection, work.day, entries.c.kind == "looks", entries.c.place.between(first, last))


def forget(connection: Connection, day: int, *conditions: Any) -> None:
    """Delete documents of the log, and note the files that have none left."""
    gone = delete(entries).where(*conditions).returning(entries.c.segment)
    for first in sorted(set(connection.execute(gone).scalars())):
        if connection.execute(_FOLLOWING, {"first": first}).scalar() != first:
            leave(connection, [("log", str(first))], day)


_FOLLOWING: Final = (
    select(entries.c.segment).where(entries.c.place >= bindparam("first")).order_by(entries.c.place).limit(1)
)
"""The file of the first document from a place on."""


_ENDING: Final = ("first", "last", "status", "reason", "spent")


def restore(connection: Connection, work: DayOfWork, name: str) -> bool:
    """Let a summary count instead of what the rows of its day do; return False where its day has another summary."""
    if not close(connection, work.day):
        return name == connection.execute(select(summaries.c.name).where(summaries.c.day == work.day)).scalar()
    settle(connection, work, name)
    here = dict[str, dict[Kind, int]]()
    for node, endings in work.nodes.items():
        for first, last, *_ in endings:
            _count(connection, node, first, last, here)
    for sign, counts in ((1, work.counts), (-1, here)):
        for address, kinds in counts.items():
            for kind, number in kinds.items():
                tallies.add(connection, {(address, kind): sign * number})
    return True


def due_days(connection: Connection, *, now: int, phases: int, unbonding: int) -> list[int]:
    """Return the days with work, in order, whose deadlines are over and of which no summary counts.

    `now`: the chain's second; `phases` and `unbonding` as of `muster.protocol.windows.needed_until`.
    """
    known = set(connection.execute(select(summaries.c.day)).scalars())
    worked = {hour // DAY_HOURS for hour in connection.execute(select(hour_tallies.c.hour).distinct()).scalars()}
    return sorted(day for day in worked - known if needed_until(last_hour(day), phases, unbonding) < now)


def last_hour(day: int) -> int:
    """Return the last hour of a day."""
    return (day + 1) * DAY_HOURS - 1


def is_of_its_day(connection: Connection, work: DayOfWork) -> bool:
    """Return whether a summary says what became of all commitments of its day, and of no others."""
    hours = commitments.c.hour.between(work.day * DAY_HOURS, last_hour(work.day))
    query = select(commitments.c.node, func.min(commitments.c.index), func.max(commitments.c.index), func.count())
    found = connection.execute(query.where(hours).group_by(commitments.c.node)).all()
    made = {node: (first, last, number) for node, first, last, number in found}
    said = {
        node: (endings[0][0], endings[-1][1], sum(1 + last - first for first, last, *_ in endings))
        for node, endings in work.nodes.items()
        if endings and all(before[1] < after[0] for before, after in pairwise(endings))
    }
    return made == said and len(said) == len(work.nodes)


def forget_day(connection: Connection, queries: Queries, work: DayOfWork) -> None:
    """Decide again what became of the work of a day whose summary counts, and delete what members sent about it."""
    for node, endings in work.nodes.items():
        queries.update_statuses(connection, OF_NODE, node=node)
        for first, last, *_ in endings:
            for table in (verdicts, calls, uploads):
                connection.execute(delete(table).where(*within(table, node, first, last)))
            tallies.mark_spent(connection, node, first, last)


def day_in(works: Sequence[DayOfWork], node: str, index: int) -> int | None:
    """Return the day whose summary says how a commitment ended, if one does."""
    found = (work.day for work in works for first, last, *_ in work.nodes.get(node, ()) if first <= index <= last)
    return next(found, None)


def leave(connection: Connection, gone: Sequence[tuple[str, str]], day: int) -> None:
    """Note files, by kind and name, that are to be deleted; in `day`'s summary is what is left of them."""
    for kind, name in gone:
        upsert(connection, files, {"kind": kind, "holder": "", "name": name, "day": day, "since": None})


# What readers hear


def gone_work(what: str, day: int) -> RefusedError:
    """Return the refusal of what is about the work of a closed day."""
    return problems.gone(f"the detail of {what} is gone, kept in the summary of {date_of(day)}: its deadlines are over")


def gone_file(connection: Connection, kind: str, name: str) -> RefusedError | None:
    """Return the refusal of a file that was deleted lately; None for any other."""
    same = files.c.kind == kind, files.c.holder == "", files.c.name == name
    query = select(*files.c["day", "since"]).where(*same, files.c.since.is_not(None))
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    since = datetime.fromtimestamp(row.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
    left = f"kept in the summary of {date_of(row.day)}" if row.day else "nothing names it"
    return problems.gone(f"{name} is gone since {since}, {left}")


def summary_of(connection: Connection, day: date) -> str | None:
    """Return the name of a day's summary; empty or None where there is none."""
    number = (day - date(1970, 1, 1)).days
    return connection.execute(select(summaries.c.name).where(summaries.c.day == number)).scalar()
