"""Insert a synthetic run into the databases of an orchestrator and of an explorer that do not run."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table, create_engine, text
from sqlalchemy.dialects import sqlite

from muster.ledger import tables
from muster.ledger.database import Database
from testbed.big_run.court import CourtRows
from testbed.big_run.rows import Row, Rows, buckets_of, metrics_of

AT_ONCE: Final = 50_000
"""Rows of one statement."""

TALLIES: Final = """
INSERT INTO counts (kind, subject, number, status, reason, count)
    SELECT 'work', node, 0, status, coalesce(reason, ''), count(*) FROM commitments GROUP BY node, status, reason;
INSERT INTO counts (kind, subject, number, status, reason, count)
    SELECT 'step', '0', step, status, '', count(*) FROM commitments GROUP BY step, status;
INSERT INTO counts (kind, subject, number, status, reason, count)
    SELECT 'hour', node, hour, status, '', count(*) FROM commitments GROUP BY hour, node, status;
INSERT INTO counts (kind, subject, number, status, reason, count)
    SELECT 'court', challenger, 0, outcome, '', count(*) FROM cases GROUP BY 2, 4
    UNION ALL SELECT 'court', prover, 0, 'proofs', '', count(*) FROM proofs GROUP BY 2
    UNION ALL SELECT 'court', judge, 0, 'votes', '', count(guilty) FROM votes GROUP BY 2
    UNION ALL SELECT 'court', judge, 0, 'absences', '', sum(absent) FROM votes GROUP BY 2
    UNION ALL SELECT 'court', subject, 0, 'seals', '', count(*) FROM counts WHERE kind = 'seal' GROUP BY 2
    UNION ALL SELECT 'deed', validator, 0, 'accepts', '', sum(accepted) FROM verdicts GROUP BY 2
    UNION ALL SELECT 'deed', validator, 0, 'rejections', '', sum(NOT accepted) FROM verdicts GROUP BY 2
    UNION ALL SELECT 'deed', u.node, 0, 'files', '', count(*)
        FROM uploads u JOIN spent s USING (file_hash) WHERE s.used GROUP BY 2
    UNION ALL SELECT 'deed', :trainer, 0, 'updates', '', count(DISTINCT step) FROM spent WHERE used;
INSERT INTO meta (key, value) SELECT 'places', count(*) FROM verdicts
"""
"""All workers are of class 0. The log's next place is after the verdicts, whose documents it lacks."""

BESIDE: Final = """
UPDATE meta SET value = :about WHERE key = 'about';
UPDATE meta SET key = 'log place' WHERE key = 'places';
UPDATE uploads SET size = 0, document = ''
"""
"""An explorer has read the log up to its end, and knows of a file only which one it is."""

MARK: Final = "synthetic"
"""That the database was filled from storage (`orchestrator.start_mark`)."""

FAST: Final = (
    "journal_mode=OFF",
    "synchronous=OFF",
    "cache_size=-1000000",
    "temp_store=MEMORY",
    "locking_mode=EXCLUSIVE",
)
"""A crash loses the database, which is then rebuilt."""

Say = Callable[[str], None]
Contents = Iterable[tuple[Table, Iterable[Row]]]


def fill(path: Path, about: str, place: tuple[int, str], rows: Rows, say: Say = lambda _: None) -> None:
    """Make an orchestrator's SQLite database at `path`. Takes minutes at full size.

    about: what it belongs to; place: number and hash of the block that the chain is read up to; say: is called
    with how long each table took.
    """
    asyncio.run(_create(path, about))
    with _changed(path) as connection:
        later = [index for table in tables.metadata.sorted_tables for index in table.indexes]
        for index in later:
            index.drop(connection)
        _insert_all(connection, _of_both(rows), say)
        begun = time.monotonic()
        for index in later:
            index.create(connection)
        for statement in TALLIES.split(";"):
            given = {"trainer": rows.members.trainer} if ":trainer" in statement else {}
            connection.execute(text(statement), given)
        insert(connection, tables.places, ("block", "hash"), [place])
        insert(connection, tables.meta, ("key", "value"), [("rebuilt", MARK)])
        say(f"tallies and indexes: {time.monotonic() - begun:.1f} s")


def fill_beside(path: Path, about: str, orchestrator: Path, rows: Rows, say: Say = lambda _: None) -> None:
    """Make an explorer's database at `path`, of the run with which an orchestrator's was filled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(orchestrator, path)
    with _changed(path) as connection:
        for statement in BESIDE.split(";"):
            connection.execute(text(statement), {"about": about} if ":about" in statement else {})
        _insert_all(connection, _of_explorer(rows), say)


@contextmanager
def _changed(path: Path) -> Iterator[Connection]:
    """Yield the connection by which a database is changed: quickly, all at once."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        for setting in FAST:
            connection.exec_driver_sql(f"PRAGMA {setting}")
        connection.commit()
        yield connection
        connection.commit()
    engine.dispose()


async def _create(path: Path, about: str) -> None:
    database = await Database.open(f"sqlite:///{path}", about)
    await database.close()


def _of_both(rows: Rows) -> Contents:
    court = CourtRows(rows)
    return [
        (tables.nodes, rows.nodes()),
        (tables.checkpoints, rows.checkpoints()),
        (tables.steps, rows.reports()),
        (tables.commitments, rows.commitments()),
        (tables.uploads, rows.uploads()),
        (tables.verdicts, rows.verdicts()),
        (tables.calls, rows.calls()),
        (tables.spent, rows.spent()),
        (tables.counts, (("seal", hour, validator, "", "", 1) for validator, hour in rows.seals())),
        (tables.payments, rows.payments()),
        (tables.cases, court.cases()),
        (tables.votes, court.votes()),
        (tables.proofs, court.proofs()),
    ]


def _of_explorer(rows: Rows) -> Contents:
    """Return what an explorer alone has. An orchestrator that knew of machines would have them replaced."""
    return [
        (tables.node_names, rows.names()),
        (tables.machines, rows.machines(time.time())),
        (tables.metric_buckets, buckets_of(metrics_of(rows.shape))),
        (tables.scores, rows.scores()),
        (tables.events, CourtRows(rows).events()),
    ]


def _insert_all(connection: Connection, contents: Contents, say: Say) -> None:
    for table, found in contents:
        begun = time.monotonic()
        inserted = insert(connection, table, _columns(table), found)
        say(f"{table.name}: {inserted} rows, {time.monotonic() - begun:.1f} s")


def insert(connection: Connection, table: Table, columns: Iterable[str], rows: Iterable[Row]) -> int:
    """Insert rows, each with the values of these columns in their order; return how many."""
    statement = str(table.insert().compile(dialect=sqlite.dialect(), column_keys=list(columns)))
    inserted, left = 0, iter(rows)
    while some := list(islice(left, AT_ONCE)):
        connection.exec_driver_sql(statement, some)
        inserted += len(some)
    return inserted


def _columns(table: Table) -> Iterator[str]:
    """Return the columns that rows have: all but a number that the database counts."""
    return (column.name for column in table.columns if column is not table.autoincrement_column)
