"""The figures of benchmarks/service.py say what was measured, and its load counts what is late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from benchmarks import service_chain, service_explorer, service_members
from benchmarks.service import Round, allowed_share, hostile_figures, largest
from benchmarks.service_load import tag_of
from benchmarks.service_members import Counts, Wakes, demand_target
from muster.clients.orchestrator import HELD_SECONDS
from orchestrator.hot_reads import wait_of


def a_round(waits: float, writes: float = 0.01, trainer: float = 0.01, **statuses: int) -> Round:
    found: Mapping[str, int] = {name.removeprefix("of_"): count for name, count in statuses.items()}
    members = {"kinds": {"waits": {"p99": waits}, "writes": {"p99": writes}}, "statuses": found}
    return Round(members, trainer=[trainer] * 100, health=[0.01])


@pytest.mark.parametrize("most", [70, 100, 101, 640, 3_700])
def test_search_ends_just_below_the_most(most: int) -> None:
    tried = []

    def passes(count: int) -> bool:
        tried.append(count)
        return count <= most

    found = largest(passes, 100)
    assert found <= most <= found * 1.15 + 2
    assert len(tried) == len(set(tried)) <= 12


def test_search_finds_nothing_where_nothing_passes() -> None:
    assert largest(lambda _: False, 64) == 0


@pytest.mark.parametrize(
    ("beside", "without", "share"),
    [([0.2], [0.01], 0.8), ([0.5], [0.2], 1.25), ([0.1, 9.0, 0.3], [0.15, 0.15, 9.0], 1.0)],
)
def test_a_p99_may_be_twice_that_without_or_a_quarter_second(
    beside: list[float], without: list[float], share: float
) -> None:
    assert allowed_share(beside, without) == pytest.approx(share)


def test_the_worse_of_members_and_trainer_counts() -> None:
    rounds = {"": [a_round(0.02)], "reads": [a_round(0.1, writes=0.2)], "heads": [a_round(0.1, trainer=0.5, of_503=3)]}
    reads, heads, full, health = hostile_figures(rounds)
    assert (reads["name"], reads["ratio"], reads["unit"]) == ("hostile_reads", 0.8, "s, p99 of the members")
    assert (heads["ratio"], heads["limit"], heads["holds"]) == (2.0, 0.01, False)
    assert (full["name"], full["ratio"], full["holds"]) == ("hostile_503", 3, False)
    assert (health["ratio"], health["runs"]) == (0.01, 3)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (a_round(0.25, writes=0.25, of_200=9), True),
        (a_round(0.26), False),
        (a_round(0.01, writes=0.26), False),
        (a_round(0.01, of_503=1), False),
        (a_round(0.01, of_0=1), False),
    ],
)
def test_members_are_served_in_time(found: Round, passes: bool) -> None:
    assert found.passes() is passes


def test_answers_count_from_the_beginning_and_late_ones_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(service_members.time, "monotonic", lambda: clock)
    counts = Counts()
    before, held, wake, lost = (counts.asked("waits", held) for held in (0.0, 25.0, 25.0, 0.0))
    counts.answered(before)
    counts.saw(200)
    clock = 1.0
    counts.begin()
    counts.asked("writes")
    clock = 4.0
    counts.answered(wake, 0.5)
    counts.lost(lost)
    counts.saw(201)
    counts.finish()
    assert counts.seconds == {"waits": [0.5], "writes": [3.0]}
    assert counts.statuses == {200: 0, 0: 1, 201: 1}
    clock = 26.5
    counts.answered(held)
    assert counts.seconds["waits"] == [0.5, 1.5]


def test_a_wake_is_late_against_the_first_of_its_burst() -> None:
    wakes = Wakes()
    assert [wakes.late("a", now) for now in (10.0, 10.6, 11.2)] == pytest.approx([0.0, 0.6, 1.2])
    assert [wakes.late("b", 11.3), wakes.late("a", 12.3)] == [0.0, 0.0]


def test_a_members_second_question_is_one_that_is_held() -> None:
    tag = tag_of(b'HTTP/1.1 200 OK\r\netag: W/"5-1-0"\r\ncontent-length: 2')
    path, _, query = demand_target(7, tag).partition("?")
    scope = {"method": "GET", "path": path, "query_string": query.encode()}
    assert wait_of(scope, 7) == (HELD_SECONDS, "5-1-0")


def test_a_chain_is_followed_from_empty_and_back_over_a_reorg() -> None:
    rate, seconds = service_chain.measure("sqlite", 100)
    assert rate > 0 < seconds


def test_an_explorer_reads_a_run_from_empty() -> None:
    rate, events = asyncio.run(service_explorer.catch_up(100))
    assert (rate > 0, events) == (True, 4 + service_chain.WORKERS + 2 * 100 + 7)
