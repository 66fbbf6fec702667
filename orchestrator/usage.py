"""Say what of a run is kept where, and until when: `muster orchestrator usage`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from muster.chain.client import Chain
from muster.clients.storage import ContentStore
from muster.contracts import registry
from muster.protocol.terms import Terms
from muster.protocol.windows import needed_until
from muster.settings.schema import Settings
from orchestrator.database import Database
from orchestrator.retention import DOCUMENTS, last_hour
from orchestrator.service import about_run
from orchestrator.summaries import date_of
from orchestrator.tables import commitments, evidence, uploads
from orchestrator.tallies import DAY_HOURS

LASTING: Final = ("summaries", "steps", "environments", "decisions", "names", "scores", "misbehaviour")
"""Kinds that stay as long as the run."""
_SECONDS: Final = DAY_HOURS * 3600


@dataclass(frozen=True)
class UsageLine:
    kind: str
    run: int
    files: int
    bytes: int
    where: str
    until: str


async def show_usage(settings: Settings, *, as_json: bool) -> None:
    """Print a line for each kind of file. Raises UnreachableError without the chain, StorageError without storage."""
    async with await Chain.connect(settings.chain) as chain:
        terms, unbonding = await chain.terms(settings.run), await chain.call(registry.unbonding())
        about = about_run(settings.run, chain)
    database = await Database.open(settings.orchestrator.database_url, about)
    try:
        hours = await database.read(_hours)
    finally:
        await database.close()
    lines = await usage_lines(settings, terms, unbonding, hours)
    if as_json:
        print(json.dumps([asdict(line) for line in lines]))
        return
    for line in lines:
        print(f"{line.kind:13} run {line.run} {line.files:9,} files {line.bytes:18,} bytes  {line.where}  {line.until}")


def _hours(connection: Connection) -> dict[str, tuple[Any, ...]]:
    """Return the first and the last hour of rollouts and of evidence, and of rollouts also files and bytes."""
    same = (uploads.c.node == commitments.c.node) & (uploads.c.index == commitments.c.index)
    made = (
        select(func.min(commitments.c.hour), func.max(commitments.c.hour)).select_from(commitments).join(uploads, same)
    )
    files = select(func.count(uploads.c.file_hash.distinct()), func.coalesce(func.sum(uploads.c.size), 0))
    posted = select(func.min(evidence.c.hour), func.max(evidence.c.hour)).where(evidence.c.hour > 0)
    first, last = connection.execute(made).one()
    number, size = connection.execute(files).one()
    return {"rollouts": (first, last, number, size), "evidence": tuple(connection.execute(posted).one())}


async def usage_lines(settings: Settings, terms: Terms, unbonding: int, hours: Any) -> list[UsageLine]:
    """Return what there is of each kind. `hours`: as of `_hours`."""
    ours, lines = settings.orchestrator, list[UsageLine]()

    def until(first: int | None, last: int | None) -> str:
        if ours.retention == "forever":
            return "kept forever: orchestrator.retention"
        if first is None or last is None:
            return "until its deadlines"
        phases = terms.commit_phase + terms.reveal_phase
        ends = [needed_until(last_hour(hour // DAY_HOURS), phases, unbonding) // _SECONDS for hour in (first, last)]
        return f"until {date_of(ends[0])}, the last until {date_of(ends[1])}"

    first, last, rollouts, rollout_bytes = hours["rollouts"]
    worked = until(first, last)
    for kind in ("files", "uploads", *DOCUMENTS, "evidence", *LASTING):
        sizes = [size async for _, size in ContentStore(ours.storage_url, kind).sizes()]
        where = f"{ours.storage_url.rstrip('/')}/{kind}"
        number, size = len(sizes), sum(sizes)
        if kind == "files":  # the run's own files are among them
            number, size = number - rollouts, size - rollout_bytes
            lines.append(UsageLine("rollouts", settings.run, rollouts, rollout_bytes, where, worked))
        lasting = kind in LASTING or kind == "files"
        stays = "as long as the run" if lasting else until(*hours["evidence"]) if kind == "evidence" else worked
        lines.append(UsageLine("run files" if kind == "files" else kind, settings.run, number, size, where, stays))
    return lines
