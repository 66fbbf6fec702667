"""Who fetches which shard: each once, failures again, a straggler a second time by somebody else, never a third."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.shardcast.fetch.download import SECOND_TRY_SECONDS, DownloadPlan

A, B, C = (cast("Any", name) for name in "ABC")


def test_shards_go_out_in_order_and_once() -> None:
    plan = DownloadPlan(3)
    plan.have.add(1)
    assert [plan.take(A, 0), plan.take(B, 0), plan.take(A, 0)] == [0, 2, None]


def test_a_lost_shard_goes_out_again_first() -> None:
    plan = DownloadPlan(3)
    assert [plan.take(A, 0), plan.take(B, 0)] == [0, 1]
    plan.lost(0, A)
    assert [plan.take(B, 0), plan.take(B, 0), plan.take(B, 0)] == [0, 2, None]


def test_a_straggler_is_asked_for_once_more_and_elsewhere() -> None:
    plan = DownloadPlan(2)
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
    plan = DownloadPlan(1)
    assert plan.take(A, 0) == 0
    assert plan.take(B, 10) == 0
    plan.lost(0, A)
    assert plan.take(C, 0) is None, "B still tries, and is not late"
    plan.lost(0, B)
    assert plan.take(C, 10.6) == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from(["take", "arrive", "lose"]), st.sampled_from("ABC"))))
def test_no_shard_is_forgotten(count: int, moves: list[tuple[str, str]]) -> None:
    plan, flying, clock = DownloadPlan(count), [], 0.0
    for what, name in moves:
        source: Any = name
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
                plan.lost(index, owner)
            elif plan.arrived(index, clock):
                plan.have.add(index)
    for index, owner in flying:
        plan.lost(index, owner)
    left = set()
    while (index := plan.take(A, clock)) is not None:
        left.add(index)
    assert left == set(range(count)) - plan.have
