"""Who fetches which shard: each once, failures again, a straggler a second time elsewhere, never a third."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.shardcast.fetch.download import SECOND_TRY_SECONDS, DownloadPlan
from muster.shardcast.fetch.sources import SourceReport

SIZE = 1000


def stream(name: str, pace: float = 0.0, received: int = 0) -> Any:
    """Return a stream of a source that delivered shards at `pace` bytes a second."""
    report = SourceReport(name, bytes=SIZE, shards=1, seconds=SIZE / pace) if pace else SourceReport(name)
    return SimpleNamespace(source=SimpleNamespace(report=report), received=received)


A, B, C = (stream(name) for name in "ABC")


def test_shards_go_out_in_order_and_once() -> None:
    plan = DownloadPlan([SIZE] * 3)
    plan.have.add(1)
    assert [plan.take(A, 0), plan.take(B, 0), plan.take(A, 0)] == [0, 2, None]


def test_a_lost_shard_goes_out_again_first() -> None:
    plan = DownloadPlan([SIZE] * 3)
    assert [plan.take(A, 0), plan.take(B, 0)] == [0, 1]
    plan.lost(0, A.source)
    assert [plan.take(B, 0), plan.take(B, 0), plan.take(B, 0)] == [0, 2, None]


def test_a_straggler_is_asked_for_once_more_and_elsewhere() -> None:
    plan = DownloadPlan([SIZE] * 2)
    assert plan.take(A, 0) == 0
    assert plan.take(B, 0) == 1
    plan.have.add(1)
    assert plan.arrived(1, 0.5)  # half a second is usual now
    late = SECOND_TRY_SECONDS + 1.5
    assert plan.take(B, late) is None
    assert plan.take(A, late + 0.1) is None, "the same source would only be slow twice"
    assert plan.take(B, late + 0.1) == 0
    assert plan.take(C, late + 9) is None, "two are enough"
    assert plan.arrived(0, 3)
    assert not plan.arrived(0, 4), "the second copy is not written"


def test_a_straggler_given_up_by_one_is_still_fetched_by_the_other() -> None:
    plan = DownloadPlan([SIZE] * 1)
    assert plan.take(A, 0) == 0
    assert plan.take(B, 10) == 0
    plan.lost(0, A.source)
    assert plan.take(C, 0) is None, "B still tries, and is not late"
    plan.lost(0, B.source)
    assert plan.take(C, 10.6) == 0


@pytest.mark.parametrize(("received", "thief"), [(100, 1), (0, 1), (900, None)], ids=["slow", "silent", "nearly done"])
def test_idle_source_takes_over_from_a_slower_one(received: int, thief: int | None) -> None:
    """Long before a second: the other source is known to need 0.01 s for a shard."""
    slow, fast = stream("slow", received=received), stream("fast", pace=100 * SIZE)
    plan = DownloadPlan([SIZE] * 2)
    assert [plan.take(fast, 0), plan.take(slow, 0)] == [0, 1]
    assert plan.take(fast, 0.004) is None, "too early to tell"
    assert plan.arrived(0, 0.01)
    plan.have.add(0)
    assert plan.take(fast, 0.01) == thief
    assert plan.take(stream("third", pace=1000 * SIZE), 0.02) != thief, "two are enough"


def test_slowest_shard_is_taken_over_first() -> None:
    slow, slower, fast = stream("slow", received=200), stream("slower", received=100), stream("fast", pace=100 * SIZE)
    plan = DownloadPlan([SIZE] * 2)
    assert [plan.take(slow, 0), plan.take(slower, 0)] == [0, 1]
    assert [plan.take(fast, 0.01), plan.take(fast, 0.01), plan.take(fast, 0.01)] == [1, 0, None]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from(["take", "arrive", "lose"]), st.sampled_from([A, B, C]))))
def test_no_shard_is_forgotten(count: int, moves: list[tuple[str, Any]]) -> None:
    plan, flying, clock = DownloadPlan([SIZE] * count), [], 0.0
    for what, source in moves:
        clock += 0.7
        if what == "take":
            index = plan.take(source, clock)
            if index is not None:
                assert index not in plan.have
                assert sum(i == index for i, _ in flying) < 2
                assert (index, source) not in flying
                flying.append((index, source))
        elif flying:
            index, owner = flying.pop(0)
            if what == "lose":
                plan.lost(index, owner.source)
            elif plan.arrived(index, clock):
                plan.have.add(index)
    for index, owner in flying:
        plan.lost(index, owner.source)
    left = set()
    while (index := plan.take(A, clock)) is not None:
        left.add(index)
    assert left == set(range(count)) - plan.have
