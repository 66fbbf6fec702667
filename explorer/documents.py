"""Read the log's documents: who may have signed each kind, what it leads to, and what people read of it.

Nothing of another machine is believed: a document of which the signature, the signer or a fact of the chain is not
right leads to nothing. What is beside it (when it came, who was called) is the orchestrator's word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from eth_utils.address import to_checksum_address
from pydantic import ValidationError
from sqlalchemy import Connection, func, select

from explorer import series
from muster.errors import MusterError
from muster.ledger import tallies
from muster.ledger.documents import (
    KEY,
    MAX_FILES,
    DocumentKind,
    KeptCall,
    Placed,
    add_list,
    record_report,
    record_verdicts,
)
from muster.ledger.events import record_event
from muster.ledger.queries import NAMED, Queries, member_of, members_of, named, same_work
from muster.ledger.statements import ANY_OF, insert_each, row_of, rows_of_any, upsert
from muster.ledger.tables import checkpoints, meta, node_names, scores, spent, uploads, verdicts
from muster.protocol.announcements import BenchmarkScore, NodeName, name_problem
from muster.protocol.eip712 import Domain
from muster.protocol.messages import LogEntry, LookList, Message, MisbehaviourReport, StepReport, Verdict
from muster.runtime import telemetry

D = TypeVar("D", bound=Message)
MAX_BENCHMARKS: Final = 64
"""Benchmarks that a run has scores on."""
TOGETHER: Final = 64
"""Acceptances that are recorded at once."""
_FILE: Final = ("node", "index", "root", "file_hash")
_SPENT: Final = select(*spent.c["file_hash", "used"]).where(spent.c.file_hash.in_(ANY_OF))
_LISTED: Final = "looks until"
"""The hour of the newest list of looks, in the table `meta`."""

log = telemetry.logger("explorer")


@dataclass(frozen=True, kw_only=True)
class ReadKind(DocumentKind[D]):
    """How documents of a kind are read, and what they lead to here."""

    project: Callable[[Connection, Placed[D]], None]
    """Writes what a document leads to, in the caller's transaction; nothing for one that does not fit."""


class Documents:
    """Reads the documents of one run."""

    def __init__(self, where: Domain, queries: Queries, owner: str) -> None:
        self._where, self._queries, self._owner = where, queries, owner
        by_trainer: dict[str, Any] = {"could_sign": lambda _document, signer: queries.keys.ever_trained(signer)}
        kinds: Sequence[ReadKind[Any]] = [
            ReadKind(
                name="verdict",
                message=Verdict,
                could_sign=lambda verdict, signer: signer == to_checksum_address(verdict.validator),
                project=lambda connection, one: self._judge(connection, [one]),
            ),
            ReadKind(name="report", message=StepReport, **by_trainer, project=self._report),
            ReadKind(name="looks", message=LookList, **by_trainer, project=_list),
            ReadKind(name="name", message=NodeName, project=_name),
            ReadKind(
                name="score",
                message=BenchmarkScore,
                could_sign=lambda _score, signer: signer == owner or queries.keys.ever_trained(signer),
                project=_score,
            ),
            ReadKind(name="misbehaviour", message=MisbehaviourReport, project=_misbehaviour),
        ]
        self.kinds = {kind.name: kind for kind in kinds}
        """Those that lead to something here."""
        self._has_warned = False

    def open(self, entry: LogEntry) -> Placed[Any] | None:
        """Return a document of the log; None for one of another kind, and, said in the log, for a wrong one."""
        kind = self.kinds.get(entry.kind)
        if kind is None:
            return None
        try:
            signed = kind.travels_as.model_validate_json(entry.text)
            document, signer = kind.open(self._where, signed)
            if signed.run != self._queries.run or not kind.could_sign(document, signer):
                raise MusterError(f"it is of run {signed.run} and signed by {signer}")
            if kind.name == "verdict" and entry.beside:
                KeptCall.model_validate_json(entry.beside)
        except (ValidationError, MusterError) as error:
            log.warning("left out", kind=entry.kind, place=entry.place, reason=str(error).splitlines()[0])
            return None
        return Placed(entry, document, signer)

    def project(self, connection: Connection, found: Sequence[Placed[Any]]) -> None:
        """Write what documents lead to, in the caller's transaction. `found`: in the order of the log."""
        for some in _in_parts(found):
            if len(some) > 1:
                self._judge(connection, some)
            else:
                self.kinds[some[0].at.kind].project(connection, some[0])

    def _judge(self, connection: Connection, found: Sequence[Placed[Verdict]]) -> None:
        """Record verdicts: acceptances, no two of one validator about the same work, or a single one."""
        # 1. Those of validators, about work that is not closed.
        found = [Placed(one.at, _with_checksums(one.document), one.signer) for one in found]
        members = members_of(connection, [one.signer for one in found])
        given = named({(one.document.node, one.document.index) for one in found})
        closed = {(row.node, row.index) for row in connection.execute(NAMED.states, given) if row.day is not None}
        found = [
            one
            for one, member in zip(found, members, strict=True)
            if member and member.role == "validator" and (one.document.node, one.document.index) not in closed
        ]
        if not found:
            return
        record_verdicts(connection, self._queries, found)
        # 2. The files that they name, of which reports may have used some already.
        files = [
            one.document.model_dump(include=set(_FILE)) | {"size": 0, "document": "", "received": one.at.received}
            for one in found
            if one.document.reason != "data_missing"
        ]
        new = insert_each(connection, uploads, files, *_FILE)
        reported = dict(rows_of_any(connection, _SPENT, {row.file_hash for row in new}))
        for node, index, _, name in map(tuple, new):
            if name in reported:
                tallies.add(connection, {(node, "files"): int(reported[name])})
                tallies.mark_spent(connection, node, index)
        # 3. What people read of them.
        one, verdict = found[0], found[0].document
        if not verdict.accepted:
            query = select(func.count()).where(same_work(verdicts, verdict), verdicts.c.accepted.is_(False))
            rejections = max(1, connection.execute(query).scalar_one())
            data = verdict.model_dump(include={"node", "index", "reason", "validator"}) | {"rejections": rejections}
            source = f"verdict:{verdict.validator}:{verdict.node}:{verdict.index}:{verdict.root[:10]}"
            record_event(connection, "rejected", data, source, one.at.received)

    def _report(self, connection: Connection, one: Placed[StepReport]) -> None:
        if len(one.document.batch) + len(one.document.dropped) > MAX_FILES:
            return
        report, received = record_report(connection, self._queries, one), one.at.received
        self._warn_of(series.record(connection, report.step, report.metrics))
        data = {"step": report.step, "metrics": report.metrics, "files": len(report.batch)}
        record_event(connection, "step", data, f"step:{report.step}:{received}", received)
        if report.finished:
            record_event(connection, "finished", {"step": report.step}, f"finished:{report.step}", received)

    def _warn_of(self, left_out: list[str]) -> None:
        """Warn once of metrics that charts will not show."""
        if left_out and not self._has_warned:
            self._has_warned = True
            log.warning(
                "charts leave out some of the trainer's metrics",
                metrics=[name[: series.MAX_METRIC] for name in left_out[:3]],
                of=len(left_out),
                hint=f"{series.MAX_NAMES} metrics are shown, whose names print and have {series.MAX_METRIC} characters",
            )


def _in_parts(found: Sequence[Placed[Any]]) -> Iterator[list[Placed[Any]]]:
    """Yield what `Documents._judge` takes at once, and every other document by itself."""
    some = dict[tuple[Any, ...], Placed[Any]]()
    for one in found:
        said, key = one.document, ()
        if isinstance(said, Verdict) and said.accepted:
            key = tuple(str(getattr(said, name)).lower() for name in KEY)
        if some and (not key or key in some or len(some) == TOGETHER):
            yield list(some.values())
            some = {}
        if key:
            some[key] = one
        else:
            yield [one]
    if some:
        yield list(some.values())


def _with_checksums(verdict: Verdict) -> Verdict:
    given = {"node": to_checksum_address(verdict.node), "validator": to_checksum_address(verdict.validator)}
    return verdict.model_copy(update=given)


def _list(connection: Connection, one: Placed[LookList]) -> None:
    """Add a list of looks, once: of a later hour than those before."""
    last = connection.execute(select(meta.c.value).where(meta.c.key == _LISTED)).scalar()
    if last is None or one.document.hour > int(last):
        upsert(connection, meta, {"key": _LISTED, "value": str(one.document.hour)})
        add_list(connection, one.document)


def _name(connection: Connection, one: Placed[NodeName]) -> None:
    named, node = one.document, to_checksum_address(one.document.node)
    member = member_of(connection, node)
    if member is None or member.operator != one.signer or name_problem(named.name):
        return
    earlier = connection.execute(select(node_names.c.named).where(node_names.c.node == node)).scalar()
    if earlier is not None and earlier >= named.named:
        return
    received = one.at.received
    upsert(connection, node_names, row_of(node_names, named, node=node, document=one.at.text, received=received))
    data = {"node": node, "name": named.name}
    record_event(connection, "named", data, f"named:{node}:{named.named}", received)


def _score(connection: Connection, one: Placed[BenchmarkScore]) -> None:
    score = one.document
    same = scores.c.step == score.step, scores.c.benchmark == score.benchmark
    earlier = connection.execute(select(scores.c.measured).where(*same)).scalar()
    published = connection.execute(select(checkpoints.c.step).where(checkpoints.c.step == score.step)).first()
    others = select(func.count(scores.c.benchmark.distinct())).where(scores.c.benchmark != score.benchmark)
    is_full = earlier is None and (connection.execute(others).scalar() or 0) >= MAX_BENCHMARKS
    if published is None or is_full or (earlier is not None and earlier >= score.measured):
        return
    upsert(connection, scores, row_of(scores, score, document=one.at.text))
    data = score.model_dump(include={"step", "benchmark", "score", "low", "high"})
    source = f"scored:{score.step}:{score.benchmark}:{score.measured}"
    record_event(connection, "scored", data, source, one.at.received)


def _misbehaviour(connection: Connection, one: Placed[MisbehaviourReport]) -> None:
    if member_of(connection, one.signer) is None:
        return
    data = {"relay": one.document.url.rstrip("/"), "by": one.signer}
    data |= one.document.model_dump(include={"root", "why"})
    record_event(connection, "relay misbehaved", data, f"misbehaviour:{one.at.place}", one.at.received)
