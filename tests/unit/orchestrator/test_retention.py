"""When the detail of work goes, what keeps it, and which summaries count."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, insert, select

from muster.clients.storage import ContentStore
from muster.constants import HOUR_SECONDS, UNNAMED_SECONDS
from muster.contracts.court import Outcome
from muster.contracts.registry import Role
from muster.ledger.database import Database
from muster.ledger.queries import OF_NODE
from muster.ledger.statements import insert_once, row_of
from muster.ledger.summaries import gone_file, summarise
from muster.ledger.tables import (
    commitments,
    deeds,
    entries,
    files,
    meta,
    outcomes,
    summaries,
    uploads,
    verdicts,
)
from muster.ledger.tables import tallies as tally
from muster.protocol.hashes import content_hash
from muster.protocol.messages import LookList, Message, ShownMaster, Upload
from muster.protocol.windows import RESOLVING_SECONDS, end_of, needed_until
from orchestrator.log import head_of
from orchestrator.retention import Retention, forget_uploads
from orchestrator.shown import ShownDocuments
from testbed.runs.recorded_run import ServedSample, address, hash_of
from testbed.samples.messages import HERE, KEY, receipt_of, request_of

DAY = 20_834
HOUR = DAY * 24
"""The first of a day."""
WEEK = 7 * 24 * HOUR_SECONDS
WINDOW = 72 * HOUR_SECONDS

seconds = st.integers(0, 72 * HOUR_SECONDS)


@given(st.integers(0, 1 << 22), seconds, st.integers(0, 30 * 24 * HOUR_SECONDS))
def test_nothing_goes_before_the_last_of_its_deadlines(hour: int, phases: int, unbonding: int) -> None:
    """The challenge, both phases of a case and ending it, and unbonding."""
    end = needed_until(hour, phases, unbonding)
    assert end == max(end_of(hour) + WINDOW + phases + RESOLVING_SECONDS, end_of(hour) + unbonding)
    assert needed_until(hour + 1, phases, unbonding) >= end


@pytest.fixture
async def run(database_url: str, tmp_path: Path) -> AsyncIterator[ServedSample]:
    """A run with a day of work: w0 accepted, w1 rejected, and one the day after."""
    database = await Database.open(database_url, "a test")
    run = ServedSample(database, tmp_path, accepts_required=1)
    await run.join("vera", Role.VALIDATOR)
    await run.join("wanda")
    await run.publish(0)
    for hour in (HOUR, HOUR + 23, HOUR + 24):
        index = await run.commit("wanda", hour=hour)
        await run.upload("wanda", index)
        await run.judge("vera", "wanda", index, "wrong_reward" if index == 1 else None)
    yield run
    await database.close()


def sweeper(run: ServedSample, tmp_path: Path, *, days: bool = True) -> Retention:
    follower: Any = SimpleNamespace(queries=run.queries)
    return Retention(HERE, KEY, follower, run.database, unbonding=WEEK, storage_url=f"file:{tmp_path}", days=days)


async def rows(run: ServedSample, *columns: Any) -> list[tuple[Any, ...]]:
    found = await run.database.read(lambda connection: connection.execute(select(*columns)).all())
    return sorted(tuple(row) for row in found)


async def held(run: ServedSample, kind: str) -> set[str]:
    """Return the names of files that somebody posted."""
    return {
        name for kept, holder, name in await rows(run, *files.c["kind", "holder", "name"]) if holder and kept == kind
    }


async def test_a_day_goes_a_second_after_its_last_hours_deadline(run: ServedSample, tmp_path: Path) -> None:
    retention = sweeper(run, tmp_path)
    deadline = end_of(HOUR + 23) + WEEK
    run.at(deadline)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(0,), (1,), (2,)]
    run.at(deadline + 1)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(2,)]
    assert await rows(run, verdicts.c.index) == [(2,)]
    assert await rows(run, outcomes.c["first", "last", "day", "status", "reason", "swept"]) == [
        (0, 0, DAY, "accepted", None, True),
        (1, 1, DAY, "rejected", "wrong_reward", True),
    ]


async def test_an_open_case_keeps_its_day(run: ServedSample, tmp_path: Path) -> None:
    retention = sweeper(run, tmp_path)
    run.at(end_of(HOUR + 23) + 100)
    await run.open_case(1, address("vera"), "wanda", 1)
    run.at(end_of(HOUR + 23) + 2 * WEEK)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == [(0,), (1,)]
    await run.resolve(1, "wanda", Outcome.NOT_GUILTY)
    await retention.sweep()
    assert await rows(run, uploads.c.index) == []


async def test_what_the_trainer_shows_goes_by_its_hour_but_the_latest_list(run: ServedSample, tmp_path: Path) -> None:
    shown = ShownDocuments(run.queries, run.database, run.log, storage_url=f"file:{tmp_path}")
    run.at(HOUR * HOUR_SECONDS)
    await shown.take_grades(content_hash(b"grades"), b"grades")
    said: list[tuple[str, Message]] = [("master", ShownMaster(run=1, epoch=1, master=hash_of("master")))]
    hours = (HOUR, HOUR + 1, HOUR + 24, HOUR + 25)
    said += [("looks", LookList(run=1, hour=hour, looks=[], checks=[], totals=[])) for hour in hours]
    for kind, document in said:
        place = await run.database.read(head_of)
        await run.database.write(partial(run.record, kind=kind, document=document, signer="", received=0.0))
        assert await run.log.segments.create(place, [b"{}"])
    run.at(end_of(HOUR + 23) + WEEK + 1)
    await sweeper(run, tmp_path).sweep()
    kept = await rows(run, *entries.c["kind", "number", "place"])
    assert [(kind, number) for kind, number, _ in kept] == [
        ("looks", HOUR + 24), ("looks", HOUR + 25), ("master", 1), ("verdict", 2)
    ]  # fmt: skip
    assert {*(place for kind, _, place in kept if kind != "verdict")} == {*await run.log.segments.firsts()}
    run.at(end_of(HOUR + 47) + WEEK + 1)
    await sweeper(run, tmp_path).sweep()
    kept = await rows(run, *entries.c["kind", "number"])
    assert kept == [("looks", HOUR + 25), ("master", 1)], "the latest list stays"
    assert await held(run, "grades") == set()
    assert [name async for name in shown.grades.names()] == []


async def test_statuses_of_a_day_that_went_stay_but_for_a_conviction(run: ServedSample, tmp_path: Path) -> None:
    run.at(end_of(HOUR + 23) + WEEK + 1)
    before = await rows(run, *tally.c)
    await sweeper(run, tmp_path).sweep()
    await run.database.write(lambda c: run.queries.update_statuses(c, OF_NODE, node=address("wanda")))
    assert await rows(run, *tally.c) == before
    await run.convict("wanda")
    assert await rows(run, *commitments.c["index", "status"]) == [(0, "void"), (1, "rejected"), (2, "void")]


async def test_evidence_goes_by_when_the_sweep_saw_it_first(run: ServedSample, tmp_path: Path) -> None:
    retention, stored = sweeper(run, tmp_path), ContentStore(f"file:{tmp_path}", "evidence")
    names = [await stored.put(text) for text in (b"one", b"of an open case")]
    posted = [{"kind": "evidence", "holder": address("vera"), "name": name, "size": 3, "hour": 0} for name in names]
    await run.database.write(lambda c: c.execute(insert(files), posted))
    run.at((HOUR + 1) * HOUR_SECONDS)
    await retention.sweep()
    asked = ContentStore(f"file:{tmp_path}", "evidence")
    await run.open_case(1, address("vera"), "wanda", 2)
    run.at(end_of(HOUR + 1) + WEEK)
    await retention.sweep()
    assert len([name async for name in asked.names()]) == 2
    run.at(end_of(HOUR + 1) + WEEK + 1)
    await retention.sweep()
    assert [name async for name in asked.names()] == []
    assert await held(run, "evidence") == set()


# Summaries


async def test_a_summary_counts_what_the_rows_of_its_day_count(run: ServedSample) -> None:
    await run.report(1, {}, batch=[hash_of("file 0 of wanda")])
    work = await run.database.read(lambda connection: summarise(connection, 1, DAY))
    assert work.nodes == {address("wanda"): [(0, 0, "accepted", None, True), (1, 1, "rejected", "wrong_reward", False)]}
    assert work.counts == {address("vera"): {"accepts": 1, "rejections": 1}, address("wanda"): {"files": 1}}


async def test_a_summary_takes_the_place_of_what_an_older_database_has(run: ServedSample, tmp_path: Path) -> None:
    """The copy was made before the last verdict about a day that has gone since."""
    await run.report(1, {}, batch=[hash_of("file 0 of wanda")])
    known = await run.database.read(lambda connection: summarise(connection, 1, DAY))
    later = replace(known, counts={**known.counts, address("vera"): {"accepts": 1, "rejections": 4}})
    before = await rows(run, *deeds.c)
    assert await run.database.write(lambda c: sweeper(run, tmp_path).restore(c, known, hash_of("summary")))
    assert await rows(run, *deeds.c) == before
    assert await rows(run, uploads.c.index) == await rows(run, verdicts.c.index) == [(2,)]
    assert await rows(run, *outcomes.c["first", "last", "swept"]) == [(0, 0, True), (1, 1, True)]
    await run.database.write(lambda c: c.execute(delete(summaries)))
    assert await run.database.write(lambda c: sweeper(run, tmp_path).restore(c, later, hash_of("later")))
    assert (address("vera"), "rejections", 1 + 4) in await rows(run, *deeds.c)


# What nothing names


class Unnamed:
    """Files without a commitment, and evidence, of a run whose days stay."""

    def __init__(self, run: ServedSample, folder: Path) -> None:
        self.run, self.url = run, f"file:{folder}"
        self.retention = sweeper(run, folder, days=False)

    async def upload(self, index: int, root: str, text: bytes, stored_at: int) -> None:
        name = await ContentStore(self.url).put(text)
        about = {"node": address("wanda"), "index": index, "root": root, "file_hash": name, "stored_at": stored_at}
        upload = Upload(receipt=receipt_of(**about), request=request_of(name))
        await ContentStore(self.url, "uploads").put(upload.model_dump_json().encode())
        row = row_of(uploads, upload.receipt, document=upload.model_dump_json(), received=0.0)
        await self.run.database.write(lambda c: insert_once(c, uploads, row))

    async def bundle(self, text: bytes, expiry: float) -> str:
        name = await ContentStore(self.url, "evidence").put(text)
        await self.post(name, expiry)
        return name

    async def post(self, name: str, expiry: float) -> None:
        row = {"kind": "evidence", "holder": address("vera"), "name": name, "expiry": expiry, "size": 9, "hour": 0}
        await self.run.database.write(lambda c: insert_once(c, files, row))

    async def files(self, kind: str = "files") -> set[str]:
        return {name async for name in ContentStore(self.url, kind).names()}


async def test_files_without_a_commitment_go_after_a_day(run: ServedSample, tmp_path: Path) -> None:
    unnamed, now = Unnamed(run, tmp_path), (HOUR + 40) * HOUR_SECONDS
    run.at(now)
    old, day_ago = now - UNNAMED_SECONDS - 1, now - UNNAMED_SECONDS
    await unnamed.upload(3, hash_of("old"), b"old", old)
    await unnamed.upload(3, hash_of("young"), b"young", day_ago)
    await unnamed.upload(1, hash_of("another root"), b"beside a commitment", old)
    await unnamed.upload(4, hash_of("shared"), b"young", old)
    await unnamed.retention.sweep()
    assert await unnamed.files() == {content_hash(b"young")}
    assert len(await unnamed.files("uploads")) == 1
    assert await rows(run, *uploads.c["index", "root"]) == sorted(
        [*((i, run.root("wanda", i)) for i in range(3)), (3, hash_of("young"))]
    )
    gone = await run.database.read(lambda c: gone_file(c, "files", content_hash(b"old")))
    assert str(gone).endswith("nothing names it")


async def test_nothing_goes_while_the_chain_is_read_again(run: ServedSample, tmp_path: Path) -> None:
    unnamed, now = Unnamed(run, tmp_path), (HOUR + 40) * HOUR_SECONDS
    run.at(now)
    await unnamed.upload(3, hash_of("old"), b"old", now - UNNAMED_SECONDS - 1)
    await run.database.write(lambda c: insert_once(c, meta, {"key": "rereading", "value": "yes"}))
    await unnamed.retention.sweep()
    assert await unnamed.files() == {content_hash(b"old")}


async def test_a_commitment_that_was_read_meanwhile_keeps_its_file(run: ServedSample, tmp_path: Path) -> None:
    unnamed, now = Unnamed(run, tmp_path), (HOUR + 40) * HOUR_SECONDS
    run.at(now)
    await unnamed.upload(3, run.root("wanda", 3), b"late", now - UNNAMED_SECONDS - 1)
    found = await run.database.read(unnamed.retention.unnamed)
    assert len(found) == 1
    await run.commit("wanda")
    await run.database.write(partial(forget_uploads, rows=found))
    assert (3,) in await rows(run, uploads.c.index)


async def test_evidence_that_nothing_names_goes_after_a_day(run: ServedSample, tmp_path: Path) -> None:
    unnamed = Unnamed(run, tmp_path)
    run.at((HOUR + 40) * HOUR_SECONDS)
    now = time.time()
    await unnamed.bundle(b"old", now - 1)
    kept = [await unnamed.bundle(text, expiry) for text, expiry in ((b"young", now + 3600), (b"named", 0))]
    await unnamed.post(hash_of("evidence"), now - 1)
    await run.open_case(1, address("vera"), "wanda", 2)  # which names that
    await unnamed.retention.sweep()
    assert await unnamed.files("evidence") == set(kept)
    assert await held(run, "evidence") == {*kept, hash_of("evidence")}
