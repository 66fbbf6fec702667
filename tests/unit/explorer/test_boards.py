"""The boards of a run: numbers that follow from its events, and lists that are slices of a ranking."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from explorer import boards as boards_module
from explorer import members as members_module
from explorer.boards import Boards
from explorer.current import ListedRelay
from explorer.feed import PINNED
from explorer.feed_log import PINNED_SECONDS, OverviewFeed, read_overview_feed
from explorer.leaderboard import ValidatorLine, WorkerLine
from explorer.live import read_live
from explorer.members import uptime
from explorer.overview import BenchmarkLine, MachineKind, RunIdentity
from explorer.series import SeriesPage
from explorer.source import PageSource
from muster.constants import HOUR_SECONDS, TOKEN
from muster.contracts.court import AbsenceReported, Outcome, VoteRevealed
from muster.contracts.refutations import Flaw, Refuted
from muster.contracts.registry import Fined
from muster.contracts.run_terms import Keys, Tenure
from muster.contracts.runs import Claimed, HourSealed
from muster.errors import RefusedError
from muster.ledger import tables
from muster.ledger.attribution import Attribution
from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from muster.protocol.announcements import BenchmarkScore
from muster.protocol.eip712 import UNSIGNED
from muster.protocol.keys import RunKeys
from testbed.runs.recorded_run import OPERATOR, TERMS, TRAINER, VALIDATORS, WORKERS, ToldRun, file_hash

ANNE, BERT, CLEO = WORKERS
VERA, WILL, XENA = VALIDATORS
OWNER, OTHER, ZERO = ("0x" + digit * 40 for digit in "ef0")
NOW = 101 * HOUR_SECONDS + 60
NOW_ON_CHAIN = 30 * HOUR_SECONDS
"""Block 30 is of the chain's hour 30."""
OWN, SHARED = "https://own.example", "https://shared.example"


class BoardsRun:
    """A run and its boards; `happen` records at least one event of every kind."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.run = ToldRun(database, folder)
        self.database = database
        self.queries = self.run.queries
        self.queries.chain = ChainState(now=NOW, min_validators=1, free_escrow=90 * TOKEN)
        relays = [ListedRelay(url=OWN, operator=""), ListedRelay(url=SHARED, operator=OPERATOR)]
        self.current: Any = SimpleNamespace(relays=relays)
        self.follower: Any = SimpleNamespace(head_number=30, head_time=NOW, stale_since=None)
        self.reader: Any = SimpleNamespace(stale_since=None)
        known = RunIdentity(1, 31337, "Sums", "Adds numbers.", OWNER, {"runs": OTHER}, TERMS)
        attribution = Attribution(31337, OTHER, 1, TERMS, None)
        self.now = 0.0
        """The clock of the boards."""
        source = PageSource(database, self.queries, attribution)
        self.boards = Boards(known, source, self.follower, self.reader, self.current, clock=lambda: self.now)

    async def happen(self) -> None:
        run = self.run
        await run.begin()  # Anne, Bert and Cleo make two commitments each, at step 0, in hours 100 and 101
        await run.commit(ANNE, 3, 101)
        # 1. Anne's first two are accepted. Bert's first is rejected, and proven false in court.
        await run.judge(VERA, 0, None)
        await run.judge(WILL, 1, None)
        await run.judge(VERA, 2, "wrong_root")
        await run.accuse(VERA, 2)
        await run.happen(VoteRevealed, 0, WILL, True)
        await run.happen(AbsenceReported, 0, XENA, OPERATOR, False)
        await run.resolve(0, Outcome.GUILTY)
        await run.convict(BERT)
        await run.accuse(WILL, 0)
        await run.resolve(1, Outcome.NOT_GUILTY)
        await run.accuse(WILL, 4)
        await run.happen(Refuted, BERT, 1, XENA, 0, Flaw.WRONG_SEED)
        # 2. Money and hours.
        await run.happen(Claimed, 1, ANNE, 0, 2 * TOKEN)
        await run.happen(Fined, XENA, 1, 8 * TOKEN)
        await run.happen(HourSealed, 1, 100, VERA, bytes(32), bytes(32))
        # 3. Files and reports.
        await run.upload(0, 1)
        await run.upload(1, 2)
        await self.report(0, {"reward": 0.25}, [])
        await self.report(1, {"reward": 0.5, "held_out/reward": 0.75}, [file_hash(1)])
        await self.report(2, {"reward": 0.625}, [])
        await self.database.write(self._record_members)

    async def report(self, step: int, metrics: dict[str, float | None], batch: list[str]) -> None:
        await self.run.record_report(1_000.0 + 30 * step, step=step, metrics=metrics, batch=batch)

    def _record_members(self, connection: Connection) -> None:
        """Write what members announce: names, machines, scores."""
        names = [(ANNE, "Zürich #4"), (WILL, "ada")]
        for node, name in names:
            row = {"node": node, "name": name, "named": 1, "document": "{}"}
            connection.execute(insert(tables.node_names).values(row))
        long_ago = time.time() - members_module.SAID_SECONDS - 60
        machines = [
            (ANNE, "H100", 8, 900.0, None, time.time()),
            (BERT, "H100", 4, 500.0, None, time.time()),
            (CLEO, "A100", 2, 300.0, None, long_ago),
            (VERA, "A100", 1, 0.0, None, time.time()),
        ]
        columns = "node", "device", "devices", "tokens_per_second", "gas_hours", "received"
        for values in machines:
            row = dict(zip(columns, values, strict=True))
            connection.execute(insert(tables.machines).values(row))
        for step, score in ((0, 0.25), (2, 0.5)):
            said = BenchmarkScore(
                run=1, step=step, benchmark="humaneval", score=score, low=score - 0.125, high=score + 0.125,
                tasks=164, samples=1, measured=9, signature=UNSIGNED,
            )  # fmt: skip
            row = said.model_dump(include={"step", "benchmark", "score", "measured"})
            connection.execute(insert(tables.scores).values(row | {"document": said.model_dump_json()}))


@pytest.fixture(scope="module")
def run_url(new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of the whole run, which tests only read."""
    url, folder = new_database_url(), tmp_path_factory.mktemp("run")

    async def write() -> None:
        database = await Database.open(url, "a test")
        await BoardsRun(database, folder).happen()
        await database.close()

    asyncio.run(write())
    return url


@pytest.fixture
async def run(run_url: str, tmp_path: Path) -> AsyncIterator[BoardsRun]:
    database = await Database.open(run_url, "a test")
    yield BoardsRun(database, tmp_path)
    await database.close()


@pytest.fixture
async def empty(database_url: str, tmp_path: Path) -> AsyncIterator[BoardsRun]:
    database = await Database.open(database_url, "a test")
    yield BoardsRun(database, tmp_path)
    await database.close()


def worker(rank: int, address: str, **changes: Any) -> WorkerLine:
    line = {
        "rank": rank, "address": address, "name": "", "operator": OPERATOR, "status": "active", "work_class": 0,
        "since": 3_600 * int(address[2]), "accepted_groups": 0, "accepted": 0, "pending": 2, "rejected": 0, "void": 0,
        "earned": 0, "in_window": 4 * TOKEN, "day": 4 * TOKEN, "uptime": 2 / (102 - int(address[2])),
        "device": "", "devices": 0, "tokens_per_second": 0.0,
    }  # fmt: skip
    return WorkerLine(**(line | changes))


def validator(rank: int, address: str, **changes: Any) -> ValidatorLine:
    line = {
        "rank": rank, "address": address, "name": "", "operator": OPERATOR, "status": "active",
        "since": 3_600 * (int(address[2]) - 3), "inspections": 0, "accepts": 0, "rejections": 0, "won": 0, "lost": 0,
        "open": 0, "votes": 0, "absences": 0, "seals": 0, "slashed": 0, "fined": 0, "device": "",
        "wages": 0, "checked": 0, "found_false": 0, "barred_until": 0,
    }  # fmt: skip
    return ValidatorLine(**(line | changes))


async def test_worker_lines_count_outcomes_of_work(run: BoardsRun) -> None:
    page = await run.boards.workers("accepted", 0, 100)
    assert (page.run, page.order, page.offset, page.total) == (1, "accepted", 0, 3)
    assert page.workers == [
        worker(
            1, ANNE, name="Zürich #4", accepted_groups=8, accepted=2, pending=1, earned=2 * TOKEN,
            day=6 * TOKEN, device="H100", devices=8, tokens_per_second=900.0,
        ),
        worker(
            2, BERT, status="jailed", work_class=1, pending=0, rejected=1, void=1, day=0, in_window=2 * TOKEN,
            device="H100", devices=4,
        ),
        worker(3, CLEO, device="A100", devices=2),
    ]  # fmt: skip


async def test_validator_lines_count_verdicts_cases_votes_and_seals(run: BoardsRun) -> None:
    page = await run.boards.validators("inspections", 0, 100)
    assert page.total == 3
    assert page.validators == [
        validator(1, VERA, inspections=2, accepts=1, rejections=1, won=1, seals=1, device="A100"),
        validator(2, WILL, name="ada", inspections=1, accepts=1, lost=1, open=1, votes=1),
        validator(3, XENA, won=1, absences=1, fined=8 * TOKEN),
    ]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("earned", [ANNE, BERT, CLEO]),
        ("day", [ANNE, CLEO, BERT]),
        ("uptime", [CLEO, BERT, ANNE]),
        ("since", [ANNE, BERT, CLEO]),
        ("name", [ANNE, BERT, CLEO]),
    ],
)
async def test_workers_are_ranked_in_each_order(run: BoardsRun, order: Any, expected: list[str]) -> None:
    page = await run.boards.workers(order, 0, 100)
    assert [(line.rank, line.address) for line in page.workers] == list(enumerate(expected, 1))


async def test_a_page_and_a_search_are_slices_of_the_ranking(run: BoardsRun) -> None:
    """A search keeps the ranks; nodes without a name come last in the order by name."""
    second = await run.boards.workers("accepted", 1, 1)
    assert (second.total, [line.rank for line in second.workers]) == (3, [2])
    for search, found in (("ZÜRICH", [ANNE]), ("0x33333", [CLEO]), (" #4 ", [ANNE]), ("unknown", [])):
        page = await run.boards.workers("accepted", 0, 100, search)
        assert (page.total, [line.address for line in page.workers]) == (len(found), found)
    assert (await run.boards.workers("accepted", 0, 100, "0x33333")).workers[0].rank == 3
    assert (await run.boards.workers("accepted", 7, 100)).workers == []
    assert [line.address for line in (await run.boards.validators("name", 0, 9)).validators] == [WILL, VERA, XENA]
    assert [line.address for line in (await run.boards.validators("won", 0, 9)).validators] == [VERA, XENA, WILL]
    assert (await run.boards.validators("lost", 0, 9)).validators[0].address == WILL


async def test_the_overview_adds_up(run: BoardsRun) -> None:
    found = await run.boards.overview()
    assert (found.title, found.about, found.owner, found.keys[0].trainer) == ("Sums", "Adds numbers.", OWNER, TRAINER)
    assert (found.chain_id, found.addresses, found.block, found.block_time) == (31337, {"runs": OTHER}, 30, NOW)
    assert (found.step, found.reported, found.step_seconds) == (3, 1_060.0, 30.0)
    assert (found.finished, found.blocked, found.demand.wanted) == (False, "", True)
    assert (found.workers, found.validators) == (2, 3)
    assert (found.groups_per_commitment, found.rollouts_per_commitment) == (4, 8)
    assert found.commitments.model_dump() == {"total": 7, "accepted": 2, "pending": 3, "rejected": 1, "void": 1}
    assert found.tokens_per_second == 900.0
    assert found.machines == [
        MachineKind(device="H100", devices=8, nodes=1),
        MachineKind(device="A100", devices=3, nodes=2),
    ]
    assert found.pay == [2 * TOKEN, TOKEN]
    assert found.step_cost == 8 * TOKEN, (
        "the pay of Anne and Cleo at step 0; step 3 is under way and Bert's work is void"
    )
    assert (found.escrow_free, found.claimed, found.in_window) == (90 * TOKEN, 2 * TOKEN, 10 * TOKEN)
    assert (found.slashed, found.open_cases, found.convicted) == (50, 1, 1)
    assert (found.metrics, found.metrics_step) == ({"held_out/reward": 0.75, "reward": 0.625}, 2)
    assert found.benchmarks == [
        BenchmarkLine(
            benchmark="humaneval", step=2, score=0.5, low=0.375, high=0.625, tasks=164, first_step=0, first_score=0.25
        )
    ]


async def test_summary_gives_the_numbers_of_the_boards(run: BoardsRun) -> None:
    found = json.loads(await run.boards.summary_json())
    nodes = {line["address"]: line for line in found["nodes"]}
    assert list(nodes) == [*WORKERS, *VALIDATORS]
    columns = "operator", "status", "accepted", "pending", "void", "earned"
    for line in (await run.boards.workers("since", 0, 9)).workers:
        assert {name: nodes[line.address][name] for name in columns} == line.model_dump(
            mode="json", include=set(columns)
        )
        assert sum(nodes[line.address]["rejected"].values()) == line.rejected
    steps = [(step["step"], step["files"], step["metrics"].get("reward")) for step in found["steps"]]
    assert steps == [(0, 0, 0.25), (1, 1, 0.5), (2, 0, 0.625), (3, 0, None)], "the last is only on chain"
    assert [case["id"] for case in found["cases"]] == [0, 1, 2]
    assert (found["run"], found["chain_id"], found["block"], found["block_time"]) == (1, 31337, 30, NOW)
    events = [event["id"] for event in found["events"]]
    assert events == sorted(events)


async def test_trainer_and_relays_are_listed(run: BoardsRun) -> None:
    found = await run.boards.others()
    assert [line.model_dump() for line in found.trainers] == [
        {"address": TRAINER, "steps": 4, "updates": 1, "last": 1_060.0}
    ]
    assert [line.model_dump() for line in found.relays] == [
        {"url": OWN, "operator": ""},
        {"url": SHARED, "operator": OPERATOR},
    ]
    assert found.authors == []


async def test_a_change_of_keys_is_shown_before_it_is_in_force(run: BoardsRun) -> None:
    former = run.queries.keys.tenures[0]
    run.queries.keys = RunKeys((former, Tenure(Keys(OTHER, OWNER, OWNER), NOW + 60)))
    assert [(line.trainer, line.since) for line in (await run.boards.overview()).keys] == [
        (TRAINER, 0),
        (OTHER, NOW + 60),
    ]
    assert json.loads(await run.boards.summary_json())["keys"][1]["storage_key"] == OWNER
    assert (await run.boards.others()).trainers[0].address == TRAINER
    run.queries.chain = replace(run.queries.chain, now=NOW + 60)
    run.now += 1_000
    assert [line.trainer for line in (await run.boards.overview()).keys] == [OTHER]
    assert (await run.boards.others()).trainers[0].model_dump(include={"address", "updates"}) == {
        "address": OTHER,
        "updates": 1,
    }


async def test_an_address_leads_to_its_parts_and_the_nodes_it_operates(run: BoardsRun) -> None:
    found = await run.boards.address(OPERATOR)
    assert [(node.address, node.role, node.status) for node in found.nodes] == [
        *((ANNE, "worker", "active"), (BERT, "worker", "jailed"), (CLEO, "worker", "active")),
        *((node, "validator", "active") for node in VALIDATORS),
    ]
    assert [part.text for part in found.parts] == [f"Serves weights at {SHARED}"]
    assert (found.total, found.accepted_groups) == (6, 8)
    workers = (await run.boards.workers("since", 0, 9)).workers
    assert (found.day, found.earned) == (sum(line.day for line in workers), 2 * TOKEN)
    assert found.in_window == 10 * TOKEN
    parts = {one: (await run.boards.address(one)).parts for one in (TRAINER, OWNER, OTHER)}
    assert [(part.text, part.href) for part in parts[TRAINER]] == [
        ("Publishes the steps of this run: its trainer", "/steps"),
        ("Signs that files were stored, and the run's document", "/join"),
    ]
    assert [part.text for part in parts[OWNER]] == ["Owns this run and pays its escrow"]
    assert [part.text for part in parts[OTHER]] == ["Is the contract runs"]
    for unknown in (file_hash(0)[:42], ZERO):
        with pytest.raises(RefusedError, match=f"{unknown} is no node of run 1"):
            await run.boards.address(unknown)


async def test_feed_lists_notable_events_newest_first(run: BoardsRun) -> None:
    feed = await run.database.read(lambda one: read_overview_feed(one, NOW_ON_CHAIN))
    kinds = [line.kind for line in feed.lines]
    assert kinds[:5] == ["step", "fined", "claimed", "case opened", "rejected"]
    assert not {"committed", "sealed", "voted", "convicted", "refuted"} & set(kinds)
    assert {line.who for line in feed.lines if line.kind == "joined"} >= {"Zürich #4"}
    assert feed.lines[0].text == "Steps 0 to 2; the last: reward 0.625"
    on_top = ["refuted", "case opened", "case ended", "case opened", "convicted", "case ended"]
    assert [line.kind for line in feed.pinned] == on_top
    assert (await run.boards.feed()).pinned == [], "all of it was in 1970"


async def test_all_events_are_read_page_by_page_and_kind_by_kind(run: BoardsRun) -> None:
    first = await run.boards.events("", None, 5)
    rest = await run.boards.events("", first.before, 500)
    whole = await run.boards.events("", None, 500)
    assert (len(first.lines), rest.before) == (5, None)
    assert [*first.lines, *rest.lines] == whole.lines
    assert [line.id for line in whole.lines] == sorted((line.id for line in whole.lines), reverse=True)
    assert {"committed", "sealed", "voted"} <= {line.kind for line in whole.lines}
    sealed = await run.boards.events("sealed", None, 500)
    assert sealed.lines == [line for line in whole.lines if line.kind == "sealed"] != []


async def test_cases_and_convictions_stay_on_top_for_a_day_of_the_chain(run: BoardsRun) -> None:
    first, last = (block * HOUR_SECONDS + PINNED_SECONDS for block in (21, 26))
    feeds = [await run.database.read(lambda one, at=at: read_overview_feed(one, at)) for at in (first - 1, first, last)]
    assert [len(feed.pinned) for feed in feeds] == [6, 5, 0]
    assert {line.kind for line in feeds[-1].lines} >= PINNED


async def test_live_state_matches_the_boards(run: BoardsRun) -> None:
    state = await read_live(run.boards)
    notable = [line.kind for line in state.events]
    assert notable[-5:] == ["claimed", "fined", "step", "step", "step"]
    assert [line.id for line in state.events] == sorted(line.id for line in state.events)
    assert not {"committed", "sealed", "voted"} & {*notable}
    assert (state.block, state.block_time, state.step, state.workers, state.validators) == (30, NOW, 3, 2, 3)
    assert (state.accepted, state.pending, state.rejected, state.open_cases, state.convicted) == (2, 3, 1, 1, 1)
    assert (state.finished, state.blocked, state.wanted, state.waiting_groups) == (False, "", True, 4)
    assert (state.metrics, state.metrics_step, state.tokens_per_second) == ({"reward": 0.625}, 2, 900.0)
    assert state.shown == {
        "blocked": "Work continues: 4 groups wait for the trainer, and it wants more.", "step": "3",
        "held_out": "0.75", "reward": "0.625", "tokens_per_second": "900", "workers": "2", "validators": "3",
        "accepted_groups": "8", "open_cases": "1", "block": "30",
    }  # fmt: skip
    assert state.tone == "go"


async def test_live_state_says_since_when_chain_or_log_are_not_read(run: BoardsRun) -> None:
    for follower, reader, expected in ((7.0, None, 7.0), (None, 8.0, 8.0), (7.0, 8.0, 7.0)):
        run.follower.stale_since, run.reader.stale_since = follower, reader
        state = await read_live(run.boards)
        assert (state.stale_since, state.tone) == (expected, "wait")
        assert state.shown["blocked"] == "What the swarm does now is not known: chain or log are not read."


async def test_charts_reach_to_the_newest_step(run: BoardsRun) -> None:
    page = await run.boards.series(["reward", "nothing"], 0, None, 10)
    assert (page.first, page.last) == (0, 2)
    assert [(one.name, one.steps, one.mean) for one in page.series] == [
        ("reward", [0, 1, 2], [0.25, 0.5, 0.625]),
        ("nothing", [], []),
    ]
    assert (await run.boards.series(["reward"], 7, None, 10)).last == 7
    plain, packed = await run.boards.series_json(["reward", "nothing"], 0, None, 10)
    assert SeriesPage.model_validate_json(plain) == page
    assert gzip.decompress(packed) == plain
    metrics = await run.boards.metrics()
    assert (metrics.newest, metrics.names) == (2, ["held_out/reward", "reward", "benchmark/humaneval"])


async def test_boards_of_an_empty_run_are_complete(empty: BoardsRun) -> None:
    found = await empty.boards.overview()
    assert (found.step, found.reported, found.step_cost, found.metrics_step) == (None, None, None, None)
    assert found.blocked == "the trainer has not published the first checkpoint yet"
    assert (found.commitments.total, found.claimed, found.machines, found.benchmarks) == (0, 0, [], [])
    assert (await empty.boards.workers("accepted", 0, 100)).total == 0
    assert (await empty.boards.others()).trainers[0].last is None
    assert await empty.boards.feed() == OverviewFeed(pinned=[], lines=[])
    assert (await empty.boards.metrics()).newest is None


@pytest.mark.parametrize(("takes", "kept"), [(0.0, 1.0), (0.05, 5.0), (3.0, 10.0)])
async def test_callers_share_a_read_and_costly_reads_are_kept_longer(
    run: BoardsRun, monkeypatch: pytest.MonkeyPatch, takes: float, kept: float
) -> None:
    reads = 0

    def read_slowly(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        run.now += takes
        return members_module.read_members(*arguments)

    monkeypatch.setattr(boards_module, "read_members", read_slowly)
    pages = await asyncio.gather(*(run.boards.workers("accepted", 0, 1) for _ in range(50)))
    assert (reads, {page.total for page in pages}) == (1, {3})
    run.now = kept - 0.01
    await run.boards.workers("name", 0, 1)
    assert reads == 1
    run.now = kept + 1.01
    await run.boards.validators("won", 0, 1)
    assert reads == 2


@pytest.mark.parametrize(
    ("hours", "joined", "now", "share"),
    [
        (0, 0, 0, 0.0),
        (1, 3_599, 3_600, 0.5),
        (3, 0, 3 * 3_600 - 1, 1.0),
        (2, 7_200, 4 * 3_600 - 1, 1.0),
        (9, 7_200, 0, 1.0),
        (1, 0, 4 * 3_600, 0.2),
    ],
)
def test_uptime_is_a_share_of_the_hours_since_joining(hours: int, joined: int, now: int, share: float) -> None:
    assert uptime(hours, joined, now) == share
