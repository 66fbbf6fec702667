"""Announcements of members: whose count, how often, and how far their numbers can drive a sum."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from muster.chain.keys import Signer
from muster.errors import CheckError, RefusedError
from muster.protocol.announcements import BenchmarkScore, MachineReport, NodeName, ReceivedBytes
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.hashes import content_hash
from muster.protocol.messages import RelayOffer
from orchestrator.auth import Caller
from orchestrator.database import Database
from orchestrator.page import announcements as room
from orchestrator.page.announcements import Announcements
from orchestrator.queries import NodeRecord
from orchestrator.relay_directory import RelayDirectory
from orchestrator.tables import checkpoints, events, machines, node_names, nodes, scores, served
from testbed.samples.messages import request_of

OPERATOR, NODE, TRAINER, OWNER, OTHER = (Signer.from_key(digit * 64) for digit in "12345")
WHERE = Domain(31337, "0x" + "0a" * 20)
HASH = "0x" + "0d" * 32
RUN, START = 7, 1_800_000_000.0
RELAY, ELSEWHERE = "https://origin.example", "https://elsewhere.example"


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, "a test")
    row = {"address": NODE.address, "operator": OPERATOR.address, "role": "worker", "work_class": 0}
    row |= {"status": "active", "block": 1, "first_step": 0}
    published = {"step": 3, "manifest_root": HASH, "batch_root": HASH, "anchor": HASH, "block": 1}
    published |= {"transaction": HASH, "entropy": HASH}

    def write(connection: Any) -> None:
        connection.execute(insert(nodes).values(row))
        connection.execute(insert(checkpoints).values(published))

    await opened.write(write)
    yield opened
    await opened.close()


@pytest.fixture
def directory(database: Database, tmp_path: Path) -> RelayDirectory:
    return RelayDirectory(RUN, "https://hub.example", [RELAY + "/"], database, storage_url=f"file:{tmp_path}")


@pytest.fixture
def said(database: Database, directory: RelayDirectory, tmp_path: Path, clock: Clock) -> Announcements:
    queries = SimpleNamespace(run=RUN, keys_now=SimpleNamespace(trainer=TRAINER.address))
    return Announcements(
        WHERE, OWNER.address, queries, database, directory, storage_url=f"file:{tmp_path}", clock=clock
    )  # type: ignore[arg-type]


def caller(body: bytes = b"", role: str = "worker", status: str = "active", address: str = NODE.address) -> Caller:
    return Caller(
        address,
        request_of(content_hash(body)),
        NodeRecord(address, OPERATOR.address, role, status),
        is_trainer=False,
    )


def name(text: str, named: float = START, key: Signer = OPERATOR, **changes: Any) -> NodeName:
    fields = {"run": RUN, "node": NODE.address, "name": text, "named": int(named), "signature": UNSIGNED} | changes
    return sign_message(key, WHERE, NodeName(**fields))


def score(value: float = 0.5, key: Signer = TRAINER, **changes: Any) -> BenchmarkScore:
    fields = {"run": RUN, "step": 3, "benchmark": "gsm8k", "score": value, "low": 0.25, "high": 0.75, "tasks": 1319}
    fields |= {"samples": 1, "measured": int(START), "signature": UNSIGNED} | changes
    return sign_message(key, WHERE, BenchmarkScore(**fields))


def report(*received: tuple[str, int], **changes: Any) -> MachineReport:
    fields = {"run": RUN, "device": "H100", "devices": 1, "tokens_per_second": 250.5} | changes
    return MachineReport(**fields, received=[ReceivedBytes(url=url, bytes=size) for url, size in received])


async def rows(database: Database, table: Any, *columns: str) -> list[tuple]:
    query = select(*table.c[columns]).order_by(*table.primary_key.columns)
    return [tuple(row) for row in await database.read(lambda connection: connection.execute(query).all())]


# Names


async def test_a_node_is_named_once_a_minute_and_by_later_names_only(
    said: Announcements, database: Database, clock: Clock
) -> None:
    first = name("first", START - 10)
    assert await said.receive_name(RUN, first) is True
    assert await said.receive_name(RUN, first) is False
    clock.now += 59
    with pytest.raises(RefusedError, match=f"^{NODE.address} was named less than a minute ago$") as caught:
        await said.receive_name(RUN, name("second", clock.now))
    assert (caught.value.status, caught.value.hint) == (409, "try again in 1 s")
    clock.now += 1
    assert await said.receive_name(RUN, name("second", clock.now, node=NODE.address.lower())) is True
    clock.now += 60
    for old in (first, name("third", clock.now - 60), name("third", START)):
        with pytest.raises(RefusedError, match=f"^a name of {NODE.address} that is as late or later is known$"):
            await said.receive_name(RUN, old)
    assert await rows(database, node_names, "node", "name", "named") == [(NODE.address, "second", int(START + 60))]
    assert await said.receive_name(RUN, name("", clock.now)) is True
    assert await rows(database, node_names, "name") == [("",)]
    recorded = [json.loads(data) for (data,) in await rows(database, events, "data")]
    assert recorded == [{"node": NODE.address, "name": text} for text in ("first", "second", "")]
    assert {kind for (kind,) in await rows(database, events, "kind")} == {"named"}


@pytest.mark.parametrize(
    ("announced", "status", "reason"),
    [
        (name("mine", key=OTHER), 403, f"the name is signed by {OTHER.address}; the operator of {NODE.address} is"),
        (name("mine", key=NODE), 403, f"the name is signed by {NODE.address}; the operator of {NODE.address} is"),
        (name("mine", node=OTHER.address), 404, f"{OTHER.address} is no node of run 7"),
        (name("mine", run=8), 404, "this orchestrator serves run 7, not 8"),
        (name("mine", START + 61), 422, "the name is of the future"),
        (name("<b>"), 422, "the name '<b>' may have letters, digits, spaces and"),
        (name("\u202e"), 422, r"the name '\\u202e' may have"),
    ],
)
async def test_names_that_are_refused(
    said: Announcements, database: Database, announced: NodeName, status: int, reason: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{reason}") as caught:
        await said.receive_name(announced.run if status != 404 else RUN, announced)
    assert caught.value.status == status
    assert await rows(database, node_names, "name") == []
    assert [one async for one in said.names.names()] == []


async def test_name_changed_after_signing_is_refused(said: Announcements) -> None:
    with pytest.raises(RefusedError, match=r"^the name is signed by") as caught:
        await said.receive_name(RUN, name("mine").model_copy(update={"name": "thine"}))
    assert caught.value.status == 403
    with pytest.raises(CheckError, match="upper s"):
        await said.receive_name(RUN, name("mine").model_copy(update={"signature": "0x" + "ff" * 64 + "1b"}))


async def test_name_dated_one_minute_ahead_is_accepted(said: Announcements) -> None:
    assert await said.receive_name(RUN, name("mine", START + 60)) is True


async def test_restore_takes_the_operators_latest_name(said: Announcements, database: Database) -> None:
    kept = [name("old", START - 2), name("new", START - 1), name("thief", START, key=OTHER)]
    kept += [name("other run", START, run=8), name("stranger", node=OTHER.address)]
    asked: list[str] = []

    async def operators(addresses: Any) -> list[str]:
        asked.extend(addresses)
        return [OPERATOR.address if address == NODE.address else "" for address in addresses]

    await said.restore_names(kept, operators)
    assert await rows(database, node_names, "node", "name") == [(NODE.address, "new")]
    assert sorted(asked) == sorted({NODE.address, OTHER.address})
    assert await rows(database, events, "kind") == []
    for wrong in (name("a  b"), name("x").model_copy(update={"signature": UNSIGNED})):
        with pytest.raises(CheckError):
            said.check_name(wrong)


# Machines


async def test_a_report_is_cleaned_and_the_last_one_counts(
    said: Announcements, database: Database, clock: Clock
) -> None:
    hostile = report(device="\x1b[31m\u202e<script>alert(1)</script>\x00")
    assert await said.receive_machine(caller(b"1"), RUN, hostile) is True
    columns = ("node", "device", "devices", "tokens_per_second", "received")
    assert await rows(database, machines, *columns) == [
        (NODE.address, "[31m <script>alert(1)</script>", 1, 250.5, START)
    ]
    clock.now += 120
    assert await said.receive_machine(caller(b"2"), RUN, report(device="", devices=8, tokens_per_second=0)) is True
    assert await rows(database, machines, *columns) == [(NODE.address, "unknown", 8, 0.0, START + 120)]
    clock.now += 120
    assert await said.receive_machine(caller(b"3", role="validator"), RUN, report()) is True
    assert await rows(database, machines, "tokens_per_second") == [(0.0,)]
    assert await rows(database, events, "kind") == []


async def test_only_active_nodes_report_a_machine(said: Announcements) -> None:
    trainer = Caller(TRAINER.address, caller().request, None, is_trainer=True)
    for one in (trainer, caller(status="retired"), caller(status="jailed")):
        with pytest.raises(RefusedError, match=f"^{one.address} is no active node of run 7$") as caught:
            await said.receive_machine(one, RUN, report())
        assert caught.value.status == 403
    with pytest.raises(RefusedError, match="serves run 7, not 8"):
        await said.receive_machine(caller(), RUN, report(run=8))


async def test_received_bytes_are_summed_by_listed_source(
    said: Announcements, database: Database, directory: RelayDirectory, clock: Clock
) -> None:
    version = await database.current_version()
    await said.receive_machine(caller(b"1"), RUN, report((RELAY, 100), (RELAY + "/", 11), (ELSEWHERE, 5)))
    assert await rows(database, served, "url", "node", "bytes") == [(RELAY, NODE.address, 111)]
    await directory.offer(caller(address=OTHER.address), RUN, RelayOffer(run=RUN, url=ELSEWHERE))
    clock.now += 120
    await said.receive_machine(caller(b"2"), RUN, report((RELAY, 9), (ELSEWHERE, 5), ("http://169.254.1.1", 7)))
    assert await rows(database, served, "url", "bytes", "received") == [
        (ELSEWHERE, 5, START + 120),
        (RELAY, 120, START + 120),
    ]
    assert await database.current_version() == version, "cached answers stay valid"


@pytest.mark.parametrize("url", ["", "a\x00b", "http://\x00", "http://a.example/\u202e", "https://", "ftp://a.example"])
async def test_sources_without_a_valid_url_are_left_out(said: Announcements, database: Database, url: str) -> None:
    """PostgreSQL accepts no zero byte in a text."""
    assert await said.receive_machine(caller(b"1"), RUN, report((url, 5), (RELAY, 7))) is True
    assert await rows(database, served, "url", "bytes") == [(RELAY, 7)]


async def test_counted_source_is_known_to_a_new_process(
    said: Announcements, database: Database, directory: RelayDirectory, clock: Clock, tmp_path: Path
) -> None:
    await directory.offer(caller(address=OTHER.address), RUN, RelayOffer(run=RUN, url=ELSEWHERE))
    await said.receive_machine(caller(b"1"), RUN, report((ELSEWHERE, 5)))
    said.directory = RelayDirectory(RUN, "https://hub.example", [], database, storage_url=f"file:{tmp_path}")
    clock.now += 120
    await said.receive_machine(caller(b"2"), RUN, report((ELSEWHERE, 6), (RELAY, 7)))
    assert await rows(database, served, "url", "bytes") == [(ELSEWHERE, 11)]


async def test_a_report_that_is_sent_again_counts_once(said: Announcements, database: Database, clock: Clock) -> None:
    one = report((RELAY, 100))
    assert await said.receive_machine(caller(b"1"), RUN, one) is True
    clock.now += 59
    assert await said.receive_machine(caller(b"1"), RUN, one) is False
    assert await rows(database, served, "bytes") == [(100,)]
    clock.now += 1
    assert await said.receive_machine(caller(b"1"), RUN, one) is True, "a minute later it reports new bytes"
    assert await said.receive_machine(caller(b"2"), RUN, one) is True
    assert await rows(database, served, "bytes") == [(200,)], "no time has passed since the last one"


async def test_bytes_count_no_faster_than_100_gbit_a_second(
    said: Announcements, database: Database, directory: RelayDirectory, clock: Clock
) -> None:
    most = (1 << 53) - 1
    await directory.offer(caller(address=OTHER.address), RUN, RelayOffer(run=RUN, url=ELSEWHERE))
    await said.receive_machine(caller(b"1"), RUN, report((RELAY, most), (ELSEWHERE, most)))
    assert await rows(database, served, "url", "bytes") == [(RELAY, 120 * 12_500_000_000)]
    clock.now += 10
    await said.receive_machine(caller(b"2"), RUN, report((ELSEWHERE, 100_000_000_000), (RELAY, most)))
    assert dict(await rows(database, served, "url", "bytes")) == {
        ELSEWHERE: 100_000_000_000,
        RELAY: 120 * 12_500_000_000 + 25_000_000_000,
    }
    clock.now -= 1_000
    await said.receive_machine(caller(b"3"), RUN, report((RELAY, most)))
    clock.now += 1_000_000
    await said.receive_machine(caller(b"4"), RUN, report((ELSEWHERE, most)))
    assert dict(await rows(database, served, "url", "bytes")) == {
        ELSEWHERE: 100_000_000_000 + 3_600 * 12_500_000_000,
        RELAY: 120 * 12_500_000_000 + 25_000_000_000,
    }


async def test_sums_stay_within_database_integers(said: Announcements, database: Database, clock: Clock) -> None:
    for number in range(8):
        clock.now += 3_600
        await said.receive_machine(caller(b"%d" % number), RUN, report((RELAY, (1 << 53) - 1)))
    assert await rows(database, served, "bytes") == [(1 << 48,)]
    others = [{"url": RELAY, "node": f"0x{number:040x}", "bytes": 1 << 48, "received": 0.0} for number in range(5_000)]
    await database.write(lambda connection: connection.execute(insert(served), others))
    total = await database.read(lambda connection: connection.execute(select(func.sum(served.c.bytes))).scalar())
    assert total == 5_001 << 48


async def test_sources_of_a_node_are_bounded(
    said: Announcements, database: Database, directory: RelayDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_SOURCES_OF_NODE", 3)
    other = {"url": RELAY, "node": OTHER.address, "bytes": 1, "received": 0.0}
    await database.write(lambda connection: connection.execute(insert(served).values(other)))
    for number in range(5):
        clock.now += 120
        url = f"https://relay-{number}.example"
        await directory.offer(caller(address=OTHER.address), RUN, RelayOffer(run=RUN, url=url))
        await said.receive_machine(caller(b"%d" % number), RUN, report((RELAY, 1), (url, 1)))
    assert await rows(database, served, "url", "node", "bytes") == [
        (RELAY, NODE.address, 5),
        (RELAY, OTHER.address, 1),
        ("https://relay-3.example", NODE.address, 1),
        ("https://relay-4.example", NODE.address, 1),
    ]


async def test_last_offered_url_of_each_member_is_listed(directory: RelayDirectory) -> None:
    a, b, c = (f"https://{name}.example" for name in "abc")

    async def offered() -> set[str]:
        return await directory.database.read(lambda connection: directory.offered(connection, [RELAY, a, b, c]))

    for address, url in ((OTHER.address, f"{a}/"), (NODE.address, a), (OTHER.address, b)):
        await directory.offer(caller(address=address), RUN, RelayOffer(run=RUN, url=url))
    assert await offered() == {RELAY, a, b}, "another member still offers the first"
    await directory.offer(caller(address=NODE.address), RUN, RelayOffer(run=RUN, url=c))
    assert await offered() == {RELAY, b, c}


# Scores


async def test_scores_of_the_trainer_and_the_owner_are_kept_the_latest_counts(
    said: Announcements, database: Database
) -> None:
    first = score(0.5)
    assert await said.receive_score(RUN, first) is True
    assert await said.receive_score(RUN, first) is False
    for old in (score(0.6), score(0.6, measured=int(START) - 1), score(0.5, key=OWNER)):
        with pytest.raises(RefusedError, match=r"^a score of step 3 on gsm8k that is as late or later is known$"):
            await said.receive_score(RUN, old)
    assert await said.receive_score(RUN, score(0.625, key=OWNER, measured=int(START) + 1)) is True
    assert await said.receive_score(RUN, score(0.25, benchmark="aime24")) is True
    columns = ("step", "benchmark", "score", "measured")
    assert await rows(database, scores, *columns) == [
        (3, "aime24", 0.25, int(START)),
        (3, "gsm8k", 0.625, int(START) + 1),
    ]
    [kind] = {kind for (kind,) in await rows(database, events, "kind")}
    recorded = [json.loads(data) for (data,) in await rows(database, events, "data")]
    assert kind == "scored"
    assert recorded[1] == {"step": 3, "benchmark": "gsm8k", "score": 0.625, "low": 0.25, "high": 0.75}


@pytest.mark.parametrize(
    ("announced", "status", "reason"),
    [
        (score(key=OTHER), 403, f"{OTHER.address} is neither the trainer of run 7, {TRAINER.address}, nor its owner"),
        (score(key=NODE), 403, f"{NODE.address} is neither the trainer"),
        (score().model_copy(update={"score": 0.75}), 403, "0x[0-9a-fA-F]{40} is neither the trainer"),
        (score(step=4), 404, "run 7 has not published step 4"),
        (score(run=8), 404, "this orchestrator serves run 7, not 8"),
        (score(0.2), 422, "a score of 0.2 is not within 0.25 to 0.75"),
        (score(0.8), 422, "a score of 0.8 is not within 0.25 to 0.75"),
        (score(tasks=0), 422, "a score of no answers"),
        (score(samples=0), 422, "a score of no answers"),
        (score(measured=int(START) + 61), 422, "the score is of the future"),
    ],
)
async def test_scores_that_are_refused(
    said: Announcements, database: Database, announced: BenchmarkScore, status: int, reason: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{reason}") as caught:
        await said.receive_score(RUN, announced)
    assert caught.value.status == status
    assert await rows(database, scores, "score") == []
    assert [one async for one in said.scores.names()] == []


async def test_benchmarks_of_a_run_are_bounded(said: Announcements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_BENCHMARKS", 2)
    for benchmark in ("a", "b"):
        await said.receive_score(RUN, score(benchmark=benchmark))
    with pytest.raises(RefusedError, match=r"^run 7 has scores on 2 benchmarks: there is no room$"):
        await said.receive_score(RUN, score(benchmark="c"))
    assert await said.receive_score(RUN, score(0.75, benchmark="a", measured=int(START) + 1)) is True


async def test_scores_in_storage_are_restored_where_trainer_or_owner_signed_them(
    said: Announcements, database: Database
) -> None:
    late, early = score(0.75, measured=int(START) + 5, key=OWNER), score(0.5)
    for one in (late, early, score(run=8, key=OTHER)):
        said.check_score(one)
    with pytest.raises(RefusedError):
        said.check_score(score(key=OTHER))
    await said.restore_scores([late, early, score(run=8, key=OTHER)])
    assert await rows(database, scores, "step", "score") == [(3, 0.75)]
    assert await rows(database, events, "kind") == []
