"""The way that costs the fewest bytes, among what strangers offer."""

from __future__ import annotations

from muster.shardcast.folder import Index, IndexEntry
from muster.shardcast.route import MAX_CHAIN, Offer, cheapest, offers_of, without

WHOLE = 1000
NO_LIMIT = 10**9


def offer(step: int, base: int | None, size: int = 10, *urls: str) -> Offer:
    return Offer(bytes([step, 255 if base is None else base]), step, base, size, urls or ("a",))


def steps(offers: list[Offer], held: set[int], step: int, limit: int = NO_LIMIT) -> tuple[int, list[int], int] | None:
    """Start, the steps passed, and the cost."""
    route = cheapest(offers, held, step, limit)
    return route and (route.start, [o.step for o in route.chain], route.cost)


CHAIN = [offer(step, step - 1) for step in range(1, 9)]


def test_the_nearest_step_that_is_here_is_where_to_begin() -> None:
    assert steps(CHAIN, {2, 5}, 8) == (5, [6, 7, 8], 30)
    assert steps(CHAIN, {7, 9}, 8) == (7, [8], 10)
    assert steps(CHAIN, {8}, 8) is None
    assert steps(CHAIN, {9}, 8) is None
    assert steps(CHAIN, set(), 8) is None
    assert steps([], {7}, 8) is None


def test_a_difference_that_leaps_is_taken_when_it_is_smaller_than_the_steps() -> None:
    assert steps([*CHAIN, offer(8, 5, 29)], {5}, 8) == (5, [8], 29)
    assert steps([*CHAIN, offer(8, 5, 31)], {5}, 8) == (5, [6, 7, 8], 30)


def test_a_joiner_begins_with_a_whole_step() -> None:
    anchors = [offer(0, None, WHOLE), offer(4, None, WHOLE)]
    assert steps([*CHAIN, *anchors], set(), 7) == (4, [5, 6, 7], WHOLE + 30)
    assert steps([*CHAIN, *anchors], {1}, 7) == (1, [2, 3, 4, 5, 6, 7], 60)
    route = cheapest([*CHAIN, *anchors], set(), 7, NO_LIMIT)
    assert route is not None
    assert route.begin_with == anchors[1]


def test_a_way_that_costs_as_much_as_the_whole_step_is_not_taken() -> None:
    assert steps(CHAIN, {5}, 8, limit=30) is None
    assert steps(CHAIN, {5}, 8, limit=31) is not None
    assert steps([*CHAIN, offer(4, None, WHOLE)], set(), 7, limit=WHOLE) is None


def test_a_chain_that_is_too_long_is_not_taken() -> None:
    chain = [offer(step, step - 1, 1) for step in range(1, MAX_CHAIN + 2)]
    assert steps(chain, {0}, MAX_CHAIN) is not None
    assert steps(chain, {0}, MAX_CHAIN + 1) is None


def test_offers_are_what_indexes_say_of_the_run() -> None:
    def entry(step: int, base: int | None, run: int = 1, size: int = 5) -> IndexEntry:
        return IndexEntry(root=f"0x{step:064x}", run=run, step=step, base_step=base, size=size)

    one = Index(versions=[entry(3, 2), entry(3, 2), entry(2, None)])
    other = Index(versions=[entry(3, 2), entry(4, 4), entry(4, 5), entry(5, 4, run=2), entry(6, 5, size=0)])
    offers = offers_of({"a": one, "b": other}, 1)
    assert {(o.step, o.base_step, o.urls) for o in offers} == {(3, 2, ("a", "b")), (2, None, ("a",))}
    assert [(o.step, o.urls) for o in without(offers, {"a"})] == [(3, ("b",))]
    assert without(offers, {"a", "b"}) == []


def test_a_base_that_later_steps_come_back_to_may_cost_half_as_much_again() -> None:
    anchor, adapters = offer(0, None, WHOLE), [offer(step, 0, 499) for step in (1, 2, 3)]
    assert steps([anchor, *adapters], set(), 3, limit=WHOLE) == (0, [3], WHOLE + 499)
    assert steps([anchor, offer(3, 0, 500)], set(), 3, limit=WHOLE) is None
    assert steps([anchor, *adapters], set(), 1, limit=WHOLE) is None, "nothing is known of later steps"
    assert steps([anchor, *adapters], {2}, 3, limit=WHOLE) == (0, [3], WHOLE + 499)
    assert steps([anchor, *adapters], {0}, 3, limit=499) is None, "what is here is not bought again"
    other = [offer(5, None, WHOLE), offer(8, 5, 1)]
    assert steps(other, set(), 8, limit=WHOLE) is None, "adapters are to the first step"
