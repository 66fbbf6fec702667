"""An explorer follows the log of an orchestrator that it does not trust: in order, and not ahead of the chain."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import func, select

from explorer.documents import Documents
from explorer.log_reader import DAYS_SECONDS, LogReader, place_in
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts.codec import Place
from muster.contracts.registry import Registered, Role
from muster.errors import MalformedError
from muster.ledger.database import Database
from muster.ledger.documents import KeptCall
from muster.ledger.summaries import DayOfWork, sign_day
from muster.ledger.tables import commitments, uploads, verdicts
from muster.protocol.eip712 import sign_message
from muster.protocol.messages import LogEntry, LogPage
from muster.protocol.windows import needed_until
from muster.runtime.loop import AGAIN, IDLE, Waiting
from testbed.http import Reply, serving
from testbed.runs.recorded_run import RUN, SampleRun, address
from testbed.samples.messages import HERE, KEY, OTHER, verdict_of
from testbed.samples.terms import keys_of

DAY = 20_834
HOUR = DAY * 24
UNBONDING = 3_600


class Told:
    """An orchestrator that says what a test wants it to say."""

    def __init__(self) -> None:
        self.pages: dict[int, LogPage] = {}
        self.asked: list[int] = []
        self.summary = b""

    def answer(self, request: BaseHTTPRequestHandler) -> Reply:
        url = urlsplit(request.path)
        if "/summaries/" in url.path:
            return Reply(self.summary, 200 if self.summary else 404)
        after = int(parse_qs(url.query)["after"][0])
        self.asked.append(after)
        page = self.pages.get(after, LogPage(entries=[], cursor=after))
        return Reply(page.model_dump_json().encode())


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def url(told: Told) -> Iterator[str]:
    with serving(told.answer) as url:
        yield url


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[SampleRun]:
    """A run with a validator whose key signs, and two commitments of a day: nobody has judged them."""
    database = await Database.open(f"sqlite:///{tmp_path}/explorer.db", "a test")
    run = SampleRun(database, tmp_path, accepts_required=1)
    run.queries.keys = keys_of(address("trainer"), KEY.address)
    await run.deliver(
        Registered(Place(1, bytes(32), bytes(32), 0), KEY.address, OTHER.address, RUN, Role.VALIDATOR, 0, 1, bytes(32))
    )
    run.blocks = 1
    await run.join("wanda")
    await run.publish(0)
    for _ in range(2):
        await run.commit("wanda", hour=HOUR)
    yield run
    await database.close()


@pytest.fixture
async def reader(run: SampleRun, url: str) -> AsyncIterator[LogReader]:
    follower: Any = SimpleNamespace(queries=run.queries, reasons=[])
    follower.unready = lambda: follower.reasons
    client = OrchestratorClient(url, chain_id=HERE.chain_id, registry=HERE.registry, attempts=1)
    async with client:
        documents = Documents(HERE, run.queries, OTHER.address)
        yield LogReader(HERE, client, run.database, follower, documents, UNBONDING)


def entry(run: SampleRun, place: int, index: int, came: int) -> LogEntry:
    """An accepting verdict at a place of the log."""
    made = verdict_of(
        run=RUN, node=address("wanda"), index=index, root=run.root("wanda", index), validator=KEY.address, accepted=True
    )
    text = sign_message(KEY, HERE, made).to_bytes().decode()
    call = KeptCall(block=9, hash="0x" + 64 * "0", order=json.dumps([KEY.address]), opens=came)
    beside = call.model_dump_json()
    return LogEntry(place=place, kind="verdict", came=came, received=came, text=text, beside=beside)


async def judged(run: SampleRun) -> list[int]:
    """The indices about which there is a verdict."""
    query = select(verdicts.c.index).order_by(verdicts.c.id)
    return list(await run.database.read(lambda connection: connection.execute(query).scalars()))


async def test_a_page_is_taken_and_the_next_is_read_from_its_cursor(
    run: SampleRun, reader: LogReader, told: Told
) -> None:
    run.at(1_000)
    told.pages = {
        0: LogPage(entries=[entry(run, 4, 0, came=1_000)], cursor=5),
        5: LogPage(entries=[entry(run, 5, 1, came=1_000)], cursor=6),
    }
    assert [await reader.poll(), await reader.poll(), reader.stale_since is None] == [AGAIN, AGAIN, False]
    assert [await reader.poll(), reader.stale_since] == [IDLE, None]
    assert (told.asked, await judged(run), await run.database.read(place_in)) == ([0, 5, 6], [0, 1], 6)


async def test_nothing_is_read_before_the_chain_is(run: SampleRun, reader: LogReader, told: Told) -> None:
    reader.follower.reasons = ["following the chain: still reading old blocks"]  # type: ignore[attr-defined]
    assert isinstance(await reader.poll(), Waiting)
    assert (told.asked, reader.unready()) == ([], ["following the log: not read to its end"])


@pytest.mark.parametrize(("ahead", "is_complete"), [(20, True), (3_600, False)])
async def test_a_document_waits_until_the_chain_is_read_to_its_second(
    run: SampleRun, reader: LogReader, told: Told, ahead: int, is_complete: bool
) -> None:
    """One from far in the future never comes, so the explorer does not claim to be up to date."""
    now = int(time.time())
    run.at(now)
    ones = [entry(run, 0, 0, came=now), entry(run, 1, 1, came=now + ahead)]
    told.pages = {0: LogPage(entries=ones, cursor=2), 1: LogPage(entries=ones[1:], cursor=2)}
    assert [await reader.poll(), reader.stale_since is None] == [IDLE, is_complete]
    assert (await judged(run), await run.database.read(place_in)) == ([0], 1)
    run.at(now + ahead)
    assert [await reader.poll(), await judged(run), await run.database.read(place_in)] == [AGAIN, [0, 1], 2]


@pytest.mark.parametrize(("places", "cursor"), [((1, 0), 2), ((1, 1), 2), ((0, 1), 1), ((), 0)])
async def test_documents_out_of_order_are_refused(
    run: SampleRun, reader: LogReader, told: Told, places: tuple[int, ...], cursor: int
) -> None:
    run.at(1_000)
    await reader.poll()
    told.pages = {0: LogPage(entries=[entry(run, place, 0, came=0) for place in places], cursor=cursor)}
    if not places:
        assert await reader.poll() is IDLE
        return
    with pytest.raises(MalformedError, match="not in their order"):
        await reader.poll()
    assert (await judged(run), await run.database.read(place_in)) == ([], 0)


def summary(signer: Any = KEY, **changes: Any) -> bytes:
    """What is left of the day: wanda's first commitment was accepted, the other rejected."""
    values: dict[str, Any] = {
        "run": RUN,
        "day": DAY,
        "roots": "0x" + "00" * 32,
        "nodes": {address("wanda"): [(0, 0, "accepted", None, True), (1, 1, "rejected", "wrong_reward", False)]},
        "counts": {KEY.address: {"accepts": 7}},
        "places": [],
    }
    return sign_day(signer, HERE, DayOfWork(**values | changes))


async def ends(run: SampleRun) -> list[tuple[str, str | None]]:
    query = select(commitments.c.status, commitments.c.reason).order_by(commitments.c.index)
    return [tuple(row) for row in await run.database.read(lambda connection: connection.execute(query).all())]


def deadline(run: SampleRun) -> int:
    return needed_until(HOUR + 23, run.terms.commit_phase + run.terms.reveal_phase, UNBONDING)


async def test_a_day_that_was_forgotten_is_what_its_summary_says(run: SampleRun, reader: LogReader, told: Told) -> None:
    """Its verdicts go, as in the orchestrator, and none about it is taken any more."""
    run.at(deadline(run))
    told.summary = summary()
    told.pages = {0: LogPage(entries=[entry(run, 0, 1, came=1_000)], cursor=1)}
    await reader.poll()
    assert await ends(run) == [("pending", None), ("accepted", None)], "its deadlines are not over"
    run.at(deadline(run) + 1)
    reader.clock = lambda: time.monotonic() + DAYS_SECONDS
    told.pages[1] = LogPage(entries=[entry(run, 1, 0, came=1_000)], cursor=2)
    await reader.poll()
    assert await ends(run) == [("accepted", None), ("rejected", "wrong_reward")]
    left = select(*(select(func.count()).select_from(table).scalar_subquery() for table in (verdicts, uploads)))
    assert tuple(await run.database.read(lambda connection: connection.execute(left).one())) == (0, 0)


@pytest.mark.parametrize(
    "forged",
    [
        {"signer": OTHER},
        {"day": DAY + 1},
        {"run": RUN + 1},
        {"nodes": {address("wanda"): [(0, 0, "accepted", None, True)]}},
        {"nodes": {address("wanda"): [(0, 2, "accepted", None, True)]}},
        {"nodes": {address("wanda"): [(0, 1, "accepted", None, True), (1, 1, "rejected", None, True)]}},
        {"nodes": {}},
    ],
)
async def test_a_summary_that_is_not_of_its_day_counts_for_nothing(
    run: SampleRun, reader: LogReader, told: Told, forged: dict[str, Any]
) -> None:
    run.at(deadline(run) + 1)
    told.summary = summary(**forged)
    assert await reader.poll() is IDLE
    assert await ends(run) == [("pending", None)] * 2
