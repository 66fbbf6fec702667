"""Rebuild: how long an orchestrator reads storage before it answers, where it was not stopped in good order.

    python benchmarks/rebuild.py [--commitments 100000] [--json]

Storage is a folder with a file for each upload's record and the log, which has two verdicts of each commitment; all are
signed. Seconds of `orchestrator.rebuild`, of which each figure's `processor` are CPU seconds of this process:

- `rebuild_new`: into an empty database
- `rebuild_killed`: into one that has all of it, as after a power cut
- `rebuild_older`: into one that lacks the last hundredth, as after an older copy was restored
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sqlalchemy import Connection, delete, update

from benchmarks.report import Figure, figure, parser, show
from muster.chain.keys import Signer
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.tables import entries, meta, uploads, verdicts
from muster.ledger.tallies import put_commitments
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import content_hash
from muster.protocol.messages import LogEntry, Upload
from muster.protocol.receipts import upload_target
from muster.protocol.requests import HEADER_EXPIRY, HEADER_NONCE, HEADER_SIGNATURE, sign_request
from muster.runtime import telemetry
from muster.settings.schema import OrchestratorSettings
from orchestrator.announcements import Announcements
from orchestrator.log import MAX_TOGETHER, Log
from orchestrator.rebuild import rebuild
from orchestrator.reports import Reports
from orchestrator.retention import Retention
from orchestrator.shown import ShownDocuments
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts
from testbed.samples.messages import receipt_of, request_of, verdict_of
from testbed.samples.terms import keys_of, terms_of

COMMITMENTS = 100_000
OF_NODE = 1_000
WHERE = Domain(31_337, "0x" + "11" * 20)
RUN, RUNS = 1, "0x" + "0c" * 20
TARGET_SECONDS = 3600.0


def key(name: str) -> Signer:
    return Signer.from_key(hashlib.sha256(name.encode()).hexdigest())


def work_of(number: int) -> dict[str, Any]:
    """Return which commitment is meant by a number."""
    node, index = divmod(number, OF_NODE)
    return {"run": RUN, "node": key(f"worker {node}").address, "index": index, "root": hashed(f"root {number}")}


def hashed(name: str) -> str:
    return "0x" + hashlib.sha256(name.encode()).hexdigest()


def documents(numbers: range) -> list[tuple[str, bytes]]:
    """Return the documents about some commitments: kind and text."""
    storage, found = key("storage"), list[tuple[str, bytes]]()
    for number in numbers:
        work, name = work_of(number), hashed(f"file {number}")
        node = key(f"worker {number // OF_NODE}")
        path, query = upload_target(name, RUN, work["index"], work["root"])
        headers = sign_request(node, WHERE, "PUT", f"http://muster.example{path}?{query}", name, now=1_000_000)
        given = {"nonce": headers[HEADER_NONCE], "expiry": int(headers[HEADER_EXPIRY])}
        where = {"method": "PUT", "host": "muster.example", "path": path, "query": query}
        request = request_of(name, **where, **given, signature=headers[HEADER_SIGNATURE])
        receipt = sign_message(storage, WHERE, receipt_of(**work, file_hash=name, size=1000, stored_at=number))
        found.append(("uploads", Upload(receipt=receipt, request=request).model_dump_json().encode()))
        for validator in (key("v1"), key("v2")):
            verdict = verdict_of(**work, file_hash=name, validator=validator.address, signature=UNSIGNED)
            found.append(("log", sign_message(validator, WHERE, verdict).to_bytes()))
    return found


def fill_storage(folder: Path, number: int) -> None:
    """Write the documents of so many commitments: a file of each upload, and the log."""
    lines = list[bytes]()
    parts = [range(first, min(first + OF_NODE, number)) for first in range(0, number, OF_NODE)]
    with ProcessPoolExecutor() as pool:
        for kind, text in chain.from_iterable(pool.map(documents, parts)):
            if kind == "log":
                at = LogEntry(place=len(lines), kind="verdict", came=0, received=0.0, text=text.decode())
                lines.append(at.to_bytes())
                continue
            name = content_hash(text)[2:]
            path = folder / kind / name[:2] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    (folder / "log").mkdir()
    for first in range(0, len(lines), MAX_TOGETHER):
        (folder / "log" / f"{first:016d}").write_bytes(b"\n".join(lines[first : first + MAX_TOGETHER]))


class Parts:
    """The parts of an orchestrator that a rebuild fills."""

    def __init__(self, database: Database, folder: Path) -> None:
        unused: Any = None
        url = f"file:{folder}"
        self.database = database
        self.keys = keys_of(key("trainer").address, key("storage").address)
        queries = Queries(database, RUN, terms_of(), self.keys, groups_wanted=16)
        settings = OrchestratorSettings(storage_url=url, state_dir=folder)
        follower: Any = type("Follower", (), {"queries": queries})()
        documents = Log(WHERE, database, queries, storage_url=url)
        Reports(queries, database, documents)
        Announcements("", queries, database, documents)
        self.parts: dict[str, Any] = {
            "uploads": Uploads(WHERE, unused, queries, database, settings),
            "documents": documents,
            "verdicts": Verdicts(WHERE, queries, database, documents, unused, storage_url=url),
            "shown": ShownDocuments(queries, database, documents, storage_url=url),
            "retention": Retention(WHERE, unused, follower, database, unbonding=0, storage_url=url),
        }

    async def rebuild(self) -> tuple[float, float]:
        """Return the seconds that a rebuild takes, and those of this process's CPU."""
        began, worked = time.monotonic(), time.process_time()
        await rebuild(self.database, WHERE, RUN, self.keys, runs=RUNS, **self.parts)
        return time.monotonic() - began, time.process_time() - worked


def rows_of(number: int) -> Iterator[dict[str, Any]]:
    """Yield the commitments as the chain has them."""
    for one in range(number):
        work = {name: value for name, value in work_of(one).items() if name != "run"}
        yield {**work, "step": 0, "hour": one // 1000, "block": one}


def forget(connection: Connection, number: int) -> None:
    """Delete what members sent about the last hundredth."""
    for one in range(number - number // 100, number):
        work = work_of(one)
        for table in (uploads, verdicts):
            connection.execute(delete(table).where(table.c.node == work["node"], table.c.index == work["index"]))
    head = 2 * (number - number // 100) // MAX_TOGETHER * MAX_TOGETHER
    connection.execute(delete(verdicts).where(verdicts.c.id >= head))
    connection.execute(delete(entries).where(entries.c.place >= head))
    connection.execute(update(meta).where(meta.c.key == "places").values(value=str(head)))


async def measure(folder: Path, number: int) -> list[Figure]:
    """Measure the three of them, one after the other, in one database."""
    await asyncio.to_thread(fill_storage, folder / "storage", number)
    database = await Database.open(f"sqlite:///{folder}/orchestrator.db", "a benchmark")
    parts, found = Parts(database, folder / "storage"), list[Figure]()

    async def add(name: str) -> None:
        seconds, processor = await parts.rebuild()
        found.append(
            figure(name, seconds, target=TARGET_SECONDS, unit="s", at_most=True, processor=round(processor, 1))
        )

    await add("rebuild_new")
    rows = list(rows_of(number))
    for first in range(0, number, OF_NODE):
        await database.write(partial(put_commitments, rows=rows[first : first + OF_NODE]))
    await add("rebuild_killed")
    await database.write(partial(forget, number=number))
    await add("rebuild_older")
    await database.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--commitments", type=int, default=COMMITMENTS)
    given = options.parse_args(arguments)
    telemetry.configure("rebuild", level="error")
    with tempfile.TemporaryDirectory() as folder:
        return show(asyncio.run(measure(Path(folder), given.commitments)), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
