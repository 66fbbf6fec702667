"""Tables of the databases of orchestrator and explorer (SQLAlchemy Core): each has those that it uses.

Hashes are 0x and 64 hex digits, addresses checksummed, times Unix seconds. The first group follows the chain and is
rolled back by a reorg. The second is what members sent, and is copied to storage. A database of
another VERSION is refused: it is rebuilt from chain and storage.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    cast,
    literal_column,
    select,
)
from sqlalchemy.schema import SchemaItem

from muster.protocol.announcements import MAX_DEVICE, MAX_NAME

metadata: Final = MetaData()
VERSION: Final = "22"
"""Of these tables: raise it with every change of one."""
MAX_METRIC: Final = 80
"""Characters of a metric's name that is kept for charts."""
MAX_SOURCE: Final = 60
"""Characters of an event's source."""

PAYMENTS: Final = ("claim", "void", "slash", "fine")
"""Kinds of what nodes are paid or lose."""

_HASH: Final = String(66)
_ADDRESS: Final = String(42)
_IN_ORDER: Final = {"sqlite_with_rowid": False}
"""SQLite keeps such a table in the order of its key, at half the size."""


def _table(name: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


meta: Final = _table(
    "meta",
    Column("key", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)
"""What this database is about: deployment and run, its own random name, the mark of storage (`start_mark.py`)."""

# From the chain

nodes: Final = _table(
    "nodes",
    Column("address", _ADDRESS, primary_key=True),
    Column("operator", _ADDRESS, nullable=False),
    Column("role", String(9), nullable=False),
    Column("work_class", Integer, nullable=False),
    Column("status", String(9), nullable=False),
    Column("block", BigInteger, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("settled", BigInteger, nullable=False, default=0),
    Column("joined", BigInteger, nullable=False, default=0),
    Column("transaction", _HASH, nullable=False, default=""),
    Column("hours", Integer, nullable=False, default=0),
    Column("withdrawn", Boolean, nullable=False, default=False),
    *(Column(kind, String(40), nullable=False, default="0") for kind in PAYMENTS),
)
"""Members of the run. `first_step` is the first that the chain lets a worker work on, and whose entropy its draws
follow from (IRuns.Work.joinedStep); `settled` the first index of a worker that is not paid; `joined` the chain's time
of `block`, and `transaction` that in which it registered; `withdrawn` whether its operator has what was left of its
stake, which a convicted node's status does not say. Kept as the tallies are: `hours` of the chain in which it
made a commitment, and the sum of its payments of each kind."""

checkpoints: Final = _table(
    "checkpoints",
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("manifest_root", _HASH, nullable=False),
    Column("batch_root", _HASH, nullable=False),
    Column("anchor", _HASH, nullable=False),
    Column("block", BigInteger, nullable=False),
    Column("transaction", _HASH, nullable=False),
    Column("entropy", _HASH, nullable=False),
)
"""Published steps."""

commitments: Final = _table(
    "commitments",
    Column("node", _ADDRESS, primary_key=True),
    Column("index", BigInteger, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("hour", Integer, nullable=False),
    Column("root", _HASH, nullable=False),
    Column("block", BigInteger, nullable=False),
    Column("status", String(9), nullable=False),
    Column("reason", String(24)),
    Column("spent", Boolean, nullable=False, default=False),
    Column("drawn", Text),
    Index("commitments_by_step", "step"),
    Index("commitments_by_node_and_status", "node", "status", "step", "index"),
    Index("commitments_by_block", "block"),
)
"""`status` and `reason` follow from verdicts and cases (`muster.protocol.acceptance`); a new one updates them.
`spent`: whether the table of that name has its file (`tallies.mark_spent`). `drawn`: a JSON object, how many of its
groups drew tasks of which part of the task set; null where that names no authors (`attribution.py`)."""

counts: Final = _table(
    "counts",
    Column("kind", String(5), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", String(64), primary_key=True),
    Column("status", String(10), primary_key=True),
    Column("reason", String(24), primary_key=True),
    Column("count", BigInteger, nullable=False),
    Index("counts_by_subject", "kind", "subject", "number"),
    **_IN_ORDER,
)
"""How much there is of what, kept since counting takes too long: of a few kinds, each with the columns that its view
names, and "" or 0 in the others."""


DEED: Final = "deed"
"""The kind of counts that documents lead to, which no reorg takes back."""
COURT: Final = "court"


def _view(*kinds: str, **columns: Any) -> Any:
    """Return the counts of some kinds, with these columns. Literals let a database see that an index has its rows."""
    named = [column.label(name) for name, column in columns.items()]
    kind = counts.c.kind.in_([literal_column(f"'{kind}'") for kind in kinds])
    return select(*named, counts.c["count"]).where(kind).subquery(f"of_{kinds[0]}")


tallies: Final = _view("work", node=counts.c.subject, status=counts.c.status, reason=counts.c.reason)
"""How many commitments each node has of which status and reason ("" for none)."""
step_tallies: Final = _view(
    "step", step=counts.c.number, work_class=cast(counts.c.subject, Integer), status=counts.c.status
)
"""The same by the policy step and the class of the worker."""
hour_tallies: Final = _view("hour", hour=counts.c.number, node=counts.c.subject, status=counts.c.status)
"""The same by the hour of the chain in which they were made."""
credit_tallies: Final = _view("part", part=counts.c.subject, status=counts.c.status)
"""How many groups drew tasks of a part of the task set, by the status of their commitments."""
seals: Final = _view("seal", validator=counts.c.subject, hour=counts.c.number)
"""Hours that validators have sealed, once each."""
deeds: Final = _view(DEED, COURT, address=counts.c.subject, kind=counts.c.status)
"""What addresses did. Of documents: `accepts` and `rejections` that a validator gave, the `files` of a worker that went
into a batch (`used`), the `updates` of a trainer. On chain, in court: cases that a validator opened, by outcome;
`proofs`, `votes` revealed, `absences`, `seals`. They may be 0."""

cases: Final = _table(
    "cases",
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("node", _ADDRESS, nullable=False),
    Column("index", BigInteger, nullable=False),
    Column("challenger", _ADDRESS, nullable=False),
    Column("kind", String(24), nullable=False),
    Column("outcome", String(10), nullable=False),
    Column("evidence", _HASH, nullable=False),
    Column("jury", Integer, nullable=False),
    Column("reveals", Integer, nullable=False),
    Column("guilty_votes", Integer, nullable=False),
    Column("opened_in", _HASH, nullable=False),
    Column("resolved_in", _HASH),
    Column("step", BigInteger, nullable=False),
    Column("root", _HASH, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("commit_ends", BigInteger, nullable=False),
    Column("reveal_ends", BigInteger, nullable=False),
    Index("cases_by_commitment", "node", "index"),
    Index("cases_by_challenger", "challenger"),
    Index("cases_by_evidence", "evidence"),
    Index("cases_by_end", "commit_ends"),
)
"""Juried cases; `opened_in` and `resolved_in` are transactions, `commit_ends` and `reveal_ends` the chain's seconds."""

OPEN: Final = cases.c.outcome == literal_column("'open'")
"""Of cases. The outcome is a literal: of a parameter PostgreSQL cannot know that the index has its rows."""
Index("cases_open", cases.c.id, sqlite_where=OPEN, postgresql_where=OPEN)

votes: Final = _table(
    "votes",
    Column("case_id", BigInteger, primary_key=True, autoincrement=False),
    Column("judge", _ADDRESS, primary_key=True),
    Column("guilty", Boolean),
    Column("absent", Boolean, nullable=False, default=False),
    Column("committed_in", _HASH),
    Column("revealed_in", _HASH),
)
"""What the judges of a case did. `guilty` is null until a vote is revealed; the last two are transactions."""

proofs: Final = _table(
    "proofs",
    Column("block", BigInteger, primary_key=True),
    Column("log_index", BigInteger, primary_key=True),
    Column("node", _ADDRESS, nullable=False),
    Column("index", BigInteger, nullable=False),
    Column("prover", _ADDRESS, nullable=False),
    Column("kind", String(24), nullable=False),
    Column("flaw", String(24), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("transaction", _HASH, nullable=False),
    Index("proofs_by_commitment", "node", "index"),
)
"""Commitments that the contract itself found false."""

payments: Final = _table(
    "payments",
    Column("block", BigInteger, primary_key=True),
    Column("log_index", BigInteger, primary_key=True),
    Column("node", _ADDRESS, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("amount", String(30), nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("transaction", _HASH, nullable=False),
    Index("payments_by_node", "node", "block"),
)
"""What nodes were paid or lost, by the kinds of PAYMENTS: token wei as decimal text, for want of bits. `time` is the
chain's."""

places: Final = _table(
    "places",
    Column("block", BigInteger, primary_key=True, autoincrement=False),
    Column("hash", _HASH, nullable=False),
)
"""Blocks up to which the chain was read: a reorg is rolled back to one of them. The newest is the place to read on
from."""

undo: Final = _table(
    "undo",
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("block", BigInteger, nullable=False),
    Column("table", String(40), nullable=False),
    Column("key", Text, nullable=False),
    Column("before", Text),
    Index("undo_by_block", "block"),
)
"""What rows were before an event of a block changed them (`undo.py`). `key` and `before` are JSON; `before` is null
where there was no row."""

FROM_CHAIN: Final = tuple(table for table in metadata.tables.values() if table not in (meta, counts))
"""Everything that is read from the chain, and counts besides."""

# From members

entries: Final = _table(
    "log",
    Column("place", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("key", String(200), nullable=False),
    Column("subject", _ADDRESS, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("signer", _ADDRESS, nullable=False),
    Column("hour", Integer, nullable=False),
    Column("came", BigInteger, nullable=False),
    Column("received", Float, nullable=False),
    Column("text", Text, nullable=False),
    Column("beside", Text, nullable=False),
    Column("segment", BigInteger, nullable=False),
    Index("log_by_key", "kind", "key", "place"),
    Index("log_by_kind", "kind", "place"),
    Index("log_by_subject", "subject", "place"),
    Index("log_by_number", "subject", "number", "place"),
)
"""Signed documents in the order in which they were taken (`log.py`): all that follow here are made of them, but files.
`hour` and `came` are the chain's. `segment`: the first place of the file in storage that a document is in."""

uploads: Final = _table(
    "uploads",
    Column("node", _ADDRESS, primary_key=True),
    Column("index", BigInteger, primary_key=True),
    Column("root", _HASH, primary_key=True),
    Column("file_hash", _HASH, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Column("received", Float, nullable=False),
    Index("uploads_by_file", "file_hash"),
)
"""One file per (node, index, root), the first. `document` is a messages.Upload."""

verdicts: Final = _table(
    "verdicts",
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("validator", _ADDRESS, nullable=False),
    Column("node", _ADDRESS, nullable=False),
    Column("index", BigInteger, nullable=False),
    Column("root", _HASH, nullable=False),
    Column("accepted", Boolean, nullable=False),
    Column("reason", String(24)),
    Column("position", BigInteger),
    Column("document", Text, nullable=False),
    Column("received", Float, nullable=False),
    Column("came", BigInteger, nullable=False),
    Column("drawn_by", _HASH),
    Column("refuted", Boolean, nullable=False, default=False),
    UniqueConstraint("validator", "node", "index", "root"),
    Index("verdicts_by_validator", "validator", literal_column("id DESC")),
    Index("verdicts_by_arrival", "validator", "came"),
    Index("verdicts_by_commitment", "node", "index", "root"),
    Index("verdicts_by_node", "node", "accepted", literal_column("id DESC")),
)
"""One judgement per validator and commitment. `id`: its place in the log. `came`: the chain's second of its arrival.
`drawn_by`: the hash of the block by which its rows were drawn, null where none were. `refuted`: the trainer found the
rows true that it rejects."""

calls: Final = _table(
    "calls",
    Column("node", _ADDRESS, primary_key=True),
    Column("index", BigInteger, primary_key=True),
    Column("block", BigInteger, nullable=False),
    Column("hash", _HASH, nullable=False),
    Column("order", Text, nullable=False),
    Column("opens", BigInteger, nullable=False),
    Column("lapsed", Text),
    Index("calls_by_block", "block"),
    Index("calls_by_lapsed", "lapsed", "opens"),
)
"""Who is called to look at a commitment (`calls.py`): a JSON list of validators, as the drawing block with this number
and hash has it. `lapsed`: a JSON list of those that let a place lapse, each with the second; empty for none, null until
it is final."""

steps: Final = _table(
    "steps",
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("document", Text, nullable=False),
    Column("received", Float, nullable=False),
)
"""The trainer's report of each update; a newer one of the same step replaces it."""

metric_buckets: Final = _table(
    "metric_buckets",
    Column("name", String(MAX_METRIC), primary_key=True),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("bucket", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("low", Float, nullable=False),
    Column("high", Float, nullable=False),
    **_IN_ORDER,
)
"""The reports' numbers, for charts: a bucket of level L has 8^L steps, so any range is read in few rows."""

node_names: Final = _table(
    "node_names",
    Column("node", _ADDRESS, primary_key=True),
    Column("name", String(MAX_NAME), nullable=False),
    Column("named", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Column("received", Float, nullable=False, default=0),
)
"""What operators call their nodes. `document` is an announcements.NodeName; the one with the latest `named` counts."""

machines: Final = _table(
    "machines",
    Column("node", _ADDRESS, primary_key=True),
    Column("device", String(MAX_DEVICE), nullable=False),
    Column("devices", Integer, nullable=False),
    Column("tokens_per_second", Float, nullable=False),
    Column("gas_hours", Float),
    Column("received", Float, nullable=False),
)
"""What nodes said last of the machines they run on. It is not checked, and nothing is paid by it."""

current: Final = _table(
    "current",
    Column("kind", String(16), primary_key=True),
    Column("node", _ADDRESS, primary_key=True),
    Column("key", String(200), nullable=False),
    Column("received", Float, nullable=False),
    Column("text", Text, nullable=False),
    Index("current_by_time", "kind", "received"),
)
"""What nodes said last of what lasts only minutes: `text` is a messages.SignedText, `key` the URL of a relay."""

# What is left of days whose detail goes (`retention.py`)

summaries: Final = _table(
    "summaries",
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("name", _HASH, nullable=False),
)
"""Days, counted from 1970, about whose work nothing is taken any more. `name`: the content hash of what is left of one;
empty until that is in storage."""

outcomes: Final = _table(
    "outcomes",
    Column("node", _ADDRESS, primary_key=True),
    Column("last", BigInteger, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("day", Integer, nullable=False),
    Column("status", String(9), nullable=False),
    Column("reason", String(24)),
    Column("spent", Boolean, nullable=False),
    Column("swept", Boolean, nullable=False, default=False),
    Index("outcomes_by_day", "day", "swept"),
    **_IN_ORDER,
)
"""How the commitments of such days ended: of a node's, from `first` to `last`. `swept`: their rows are deleted."""

files: Final = _table(
    "files",
    Column("kind", String(12), primary_key=True),
    Column("holder", _ADDRESS, primary_key=True),
    Column("name", _HASH, primary_key=True),
    Column("size", BigInteger, nullable=False, default=0),
    Column("expiry", Float, nullable=False, default=0),
    Column("hour", Integer),
    Column("day", Integer, nullable=False, default=0),
    Column("since", BigInteger),
    Index("files_by_hour", "hour"),
    Index("files_by_time", "holder", "since"),
    Index("files_by_name", "name"),
)
"""Evidence that validators posted, and grades of private tests that the trainer showed. Until `expiry`, which is 0 once
a verdict names it, evidence counts as unnamed. `hour`: the chain's, at which the sweep of `retention.py` saw it first;
0 before. Without a `holder`: files of any kind that are to be deleted, and those deleted lately. `since` is the chain's
second of that; `day`: in whose summary is what is left of one."""

TRAINER: Final = "trainer"
"""The holder of grades."""

scores: Final = _table(
    "scores",
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("benchmark", String(40), primary_key=True),
    Column("score", Float, nullable=False),
    Column("measured", BigInteger, nullable=False),
    Column("document", Text, nullable=False),
    Index("scores_by_benchmark", "benchmark", "step"),
)
"""What steps score on published benchmarks. `document` is an announcements.BenchmarkScore."""

spent: Final = _table(
    "spent",
    Column("file_hash", _HASH, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("used", Boolean, nullable=False),
    Index("spent_by_step", "step"),
)
"""Files that a report says were in its batch (`used`) or left out for good."""

events: Final = _table(
    "events",
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("kind", String(24), nullable=False),
    Column("time", Float, nullable=False),
    Column("data", Text, nullable=False),
    Column("source", String(MAX_SOURCE), nullable=False, unique=True),
    sqlite_autoincrement=True,  # an id that a reorg freed would be behind the cursors of readers
)
"""Events that live views show. Bounded: old rows are deleted. `time` is the chain's, or when a document was received.
`source` identifies the event: the chain's block and log index, or the message it comes from."""

nonces: Final = _table(
    "nonces",
    Column("signer", _ADDRESS, primary_key=True),
    Column("nonce", _HASH, primary_key=True),
    Column("expiry", BigInteger, nullable=False),
    Index("nonces_by_expiry", "expiry"),
)
"""Requests seen and not expired; a replay finds its nonce here, after a restart too."""

# Whose they are

_OF_EXPLORER: Final = (proofs, payments, metric_buckets, node_names, machines, scores, events)
_OF_ORCHESTRATOR: Final = (entries, current, files, nonces)
ORCHESTRATOR: Final = tuple(table for table in metadata.sorted_tables if table not in _OF_EXPLORER)
EXPLORER: Final = tuple(table for table in metadata.sorted_tables if table not in _OF_ORCHESTRATOR)
"""The tables that each process makes."""
