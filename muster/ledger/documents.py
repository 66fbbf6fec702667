"""Write what signed documents lead to into the tables: verdicts, the trainer's reports, its lists of looks.

The orchestrator does so as it takes them, an explorer as it reads them in the log. Each function works in the caller's
transaction, and never fails for a document that the log has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import Field, TypeAdapter, field_validator
from sqlalchemy import Connection, bindparam, delete, select, update

from muster.ledger import tallies
from muster.ledger.queries import NAMED, Queries, named, same_work
from muster.ledger.statements import insert_new, insert_once, row_of, upsert
from muster.ledger.tables import calls, meta, spent, steps, verdicts
from muster.protocol.acceptance import Decision
from muster.protocol.eip712 import Domain, recover_signer
from muster.protocol.messages import (
    Address,
    Hash,
    LogEntry,
    LookList,
    Message,
    RowCheck,
    SignedText,
    StepReport,
    Verdict,
)
from muster.protocol.receipts import open_text

MAX_FILES: Final = 10_000
"""Most files one report may name."""
_SUMS: Final = "looks"
"""What the lists of looks sum up to, in the table `meta`."""

D = TypeVar("D", bound=Message)


@dataclass(frozen=True)
class Placed(Generic[D]):
    """A document at its place of the log."""

    at: LogEntry
    document: D
    signer: str


@dataclass(frozen=True, kw_only=True)
class DocumentKind(Generic[D]):
    """How documents of a kind are read."""

    name: str
    message: type[D]
    """One with its own signature, or a `LogDocument`."""
    could_sign: Callable[[D, str], bool] = lambda _document, _signer: True
    """Whether an address may ever have signed it, which is asked of what storage or another machine has."""

    @property
    def is_signed(self) -> bool:
        """Return whether the message has its own signature."""
        return "signature" in self.message.model_fields

    def open(self, where: Domain, signed: Any) -> tuple[D, str]:
        """Return what a signed document says, and who signed it. Raises MismatchError, MalformedError."""
        if self.is_signed:
            return signed, recover_signer(where, signed)
        message: Any = self.message
        return open_text(where, signed, self.name, message)

    @property
    def travels_as(self) -> type[Any]:
        """Return the message in which the kind travels."""
        return self.message if self.is_signed else SignedText


class KeptCall(Message):
    """Who was called to look at a commitment, as a row of the table `calls` says. The log has it beside a verdict."""

    block: int = Field(ge=0, lt=1 << 53)
    hash: Hash
    order: str = Field(max_length=1 << 16)
    """JSON list of validators."""
    opens: int = Field(ge=0, lt=1 << 37)

    @field_validator("order")
    @classmethod
    def _is_of_addresses(cls, value: str) -> str:
        _ORDER.validate_json(value)
        return value


_ORDER: Final = TypeAdapter(list[Address])

# Verdicts


def record_verdicts(
    connection: Connection, queries: Queries, found: Sequence[Placed[Verdict]]
) -> Mapping[tuple[str, int], Decision]:
    """Record verdicts; return what became of their commitments, by node and index.

    A later one of a validator about the same work takes the place of an earlier.
    """
    # 1. The verdicts, and the calls beside them, which a database that is filled again lacks.
    called = [
        KeptCall.model_validate_json(one.at.beside).model_dump()
        | {"node": one.document.node, "index": one.document.index, "lapsed": ""}
        for one in found
        if one.at.beside
    ]
    insert_new(connection, calls, called)
    counted = Counter[tuple[str, tallies.Kind]]()
    for one in found:
        verdict = one.document
        gone = connection.execute(_REMOVE, verdict.model_dump(include=set(KEY))).scalar_one_or_none()
        if gone is not None:
            counted[verdict.validator, "accepts" if gone else "rejections"] -= 1
        counted[verdict.validator, "accepts" if verdict.accepted else "rejections"] += 1
    rows = [
        row_of(verdicts, one.document, id=one.at.place, document=one.at.text, **one.at.model_dump(include=_ARRIVAL))
        for one in found
    ]
    insert_new(connection, verdicts, rows)

    # 2. What follows from them.
    tallies.add(connection, counted)
    works = {(one.document.node, one.document.index) for one in found}
    return queries.update_statuses(connection, NAMED, **named(works))


KEY: Final = ("validator", "node", "index", "root")
"""Columns of a verdict that no other has all of."""
_ARRIVAL: Final = {"came", "received"}
_SAME: Final = [verdicts.c[name] == bindparam(name) for name in KEY]
_REMOVE: Final = delete(verdicts).where(*_SAME).returning(verdicts.c.accepted)
"""Made once, as others here: making a statement takes many times as long as running it."""


# Reports


def record_report(connection: Connection, queries: Queries, one: Placed[StepReport]) -> StepReport:
    """Record a report, and that its files are used up; return what is known of its step now.

    A restarted trainer may train a step again: a later report takes the place of an earlier one of its step. Of an
    earlier one of the same batch, metrics, stages and refused files stay that the later one lacks: the trainer does
    not measure them twice.
    """
    report = _with_earlier(one.document, connection)
    row = {"step": report.step, "document": report.model_dump_json(), "received": one.at.received}
    upsert(connection, steps, row)
    _use_up(connection, queries, report.step, _files_of(report))
    _refute(connection, queries, report.refuted)
    return report


def _refute(connection: Connection, queries: Queries, refuted: Sequence[RowCheck]) -> None:
    """Let rejections whose rows the trainer found true take no place, and hold nothing back."""
    for one in refuted:
        rejected = update(verdicts).where(
            verdicts.c.validator == one.validator, same_work(verdicts, one), verdicts.c.accepted.is_(False)
        )
        if connection.execute(rejected.values(refuted=True)).rowcount:
            queries.update_status(connection, one.node, one.index)


def _use_up(connection: Connection, queries: Queries, step: int, files: Mapping[str, bool]) -> None:
    """Note which files a step has used or left out, in place of what was noted before; and count them again."""
    before, had_batch = tallies.spent_by(connection, step), tallies.has_batch(connection, step)
    connection.execute(delete(spent).where(spent.c.step == step))
    for name, used in files.items():
        insert_once(connection, spent, {"file_hash": name, "step": step, "used": used})
    for sign, works in ((-1, before), (1, tallies.spent_by(connection, step))):
        for node, index, used in works:
            tallies.mark_spent(connection, node, index)
            tallies.add(connection, {(node, "files"): sign * used})
    trained = tallies.has_batch(connection, step) - had_batch
    tallies.add(connection, {(queries.keys_now.trainer, "updates"): trained})


def _files_of(report: StepReport) -> dict[str, bool]:
    """Return whether a report has used each file that it names."""
    return dict.fromkeys(report.dropped, False) | dict.fromkeys(report.batch, True)


def _with_earlier(report: StepReport, connection: Connection) -> StepReport:
    """Add to a report the metrics, stages and refused files of an earlier one of the same step and batch."""
    document = connection.execute(select(steps.c.document).where(steps.c.step == report.step)).scalar()
    earlier = StepReport.model_validate_json(document) if document else None
    if earlier is None or earlier.batch != report.batch:
        return report
    both = {
        "metrics": earlier.metrics | report.metrics,
        "stages": earlier.stages | report.stages,
        "dropped": list(dict.fromkeys([*report.dropped, *earlier.dropped]))[:MAX_FILES],
    }
    return report.model_copy(update=both)


# Looks


def newest_sums(connection: Connection) -> Mapping[str, Any]:
    """Return by validator the `total` in token wei and `barred_until` that the newest list says.

    And how many of its rows all lists say were `checked`, and how many were `false`.
    """
    text = connection.execute(select(meta.c.value).where(meta.c.key == _SUMS)).scalar()
    return json.loads(text) if text else {}


def add_list(connection: Connection, listed: LookList) -> None:
    """Add a list of looks to what the lists before it say."""
    sums = _summed(newest_sums(connection), listed)
    upsert(connection, meta, {"key": _SUMS, "value": json.dumps(sums)})


def _summed(before: Mapping[str, Any], listed: LookList) -> dict[str, Any]:
    sums = {validator: dict(one) for validator, one in before.items()}

    def of(validator: str) -> dict[str, Any]:
        return sums.setdefault(validator, {"total": 0, "barred_until": 0, "checked": 0, "false": 0})

    for total in listed.totals:
        of(total.validator).update(total=total.total, barred_until=total.barred_until)
    for check in listed.checks:
        of(check.validator)["checked"] += 1
        of(check.validator)["false"] += check.outcome == "false"
    return sums
