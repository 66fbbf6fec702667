"""The way that costs the fewest bytes, among what strangers offer."""

from __future__ import annotations

from muster.shardcast.fetch.route import MAX_CHAIN_STEPS, Offer, offers_of, route_to
from muster.shardcast.format.store import MAX_CHAIN, Index, IndexEntry

WHOLE = 1000
ROOT = b"the step"


def offer(step: int, base: int | None, size: int = 10, *urls: str, root: bytes | None = None) -> Offer:
    return Offer(root or bytes([step % 256, 255 if base is None else base % 256]), step, base, size, urls or ("a",))


def steps(offers: list[Offer], held: set[int], step: int, whole: int = WHOLE) -> tuple[int, list[int], int] | None:
    """Start, the steps passed, and the cost."""
    route = route_to(step, ROOT, offers, held, whole)
    return route and (route.start, [o.step for o in route.chain], route.cost)


CHAIN = [offer(step, step - 1) for step in range(1, 9)]


def test_the_nearest_step_that_is_here_is_where_to_begin() -> None:
    assert steps(CHAIN, {2, 5}, 8) == (5, [6, 7, 8], 30)
    assert steps(CHAIN, {7, 9}, 8) == (7, [8], 10)
    assert steps(CHAIN, {8}, 8) is None
    assert steps(CHAIN, {9}, 8) is None
    assert steps(CHAIN, set(), 8) is None
    assert steps([], {7}, 8) is None


def test_a_difference_is_to_the_step_before_or_to_the_first_one() -> None:
    assert steps([*CHAIN, offer(8, 5, 1)], {5}, 8) == (5, [6, 7, 8], 30)
    assert steps([*CHAIN, offer(8, 0, 31)], {0, 5}, 8) == (5, [6, 7, 8], 30)
    assert steps([*CHAIN, offer(8, 0, 29)], {0, 5}, 8) == (0, [8], 29)
    assert steps([*CHAIN[4:], offer(4, 0, 29)], {0}, 8) == (0, [4, 5, 6, 7, 8], 69)


def test_of_two_offers_of_a_version_the_smaller_one_is_tried_first() -> None:
    assert steps([*CHAIN, offer(8, 7, 9, root=b"another")], {7}, 8) == (7, [8], 9)


def test_a_joiner_begins_with_a_whole_step() -> None:
    anchors = [offer(0, None, WHOLE), offer(4, None, WHOLE)]
    assert steps([*CHAIN, *anchors], set(), 7) == (4, [5, 6, 7], WHOLE + 30)
    assert steps([*CHAIN, *anchors], {1}, 7) == (1, [2, 3, 4, 5, 6, 7], 60)
    route = route_to(7, ROOT, [*CHAIN, *anchors], set(), WHOLE)
    assert route is not None
    assert route.begin_with == anchors[1]


def direct(step: int, size: int) -> Offer:
    return offer(step, None, size, root=ROOT)


def test_whole_offer_bounds_the_cost_of_a_route() -> None:
    assert steps([*CHAIN, direct(8, 30)], {5}, 8, whole=30) == (8, [], 30)
    assert steps([*CHAIN, direct(8, 31)], {5}, 8, whole=31) == (5, [6, 7, 8], 30)
    anchor = offer(4, None, WHOLE)
    assert steps([*CHAIN, anchor, direct(7, WHOLE)], set(), 7) == (7, [], WHOLE)
    assert steps([*CHAIN, anchor, offer(7, None, WHOLE)], set(), 7) == (4, [5, 6, 7], WHOLE + 30), "another step 7"


def test_old_step_without_a_whole_offer_may_cost_more() -> None:
    anchor = offer(0, None, WHOLE)
    chain = [offer(step, step - 1, WHOLE // 2) for step in range(1, 2 * MAX_CHAIN_STEPS + 2)]
    last = 2 * MAX_CHAIN_STEPS
    assert steps([anchor, *chain], {238, 239}, last) == (0, [*range(1, last + 1)], WHOLE * (1 + MAX_CHAIN_STEPS))
    assert steps([anchor, *chain], {238, 239}, last + 1) is None
    assert steps([anchor, offer(1, 0, WHOLE // 2 + 1)], set(), 1) is None, "no difference is so large"


def test_a_chain_that_is_too_long_is_not_taken() -> None:
    chain = [offer(step, step - 1, 1) for step in range(1, MAX_CHAIN + 2)]
    assert steps(chain, {0}, MAX_CHAIN) is not None
    assert steps(chain, {0}, MAX_CHAIN + 1) is None
    assert steps(chain, {1}, MAX_CHAIN + 1) == (1, [*range(2, MAX_CHAIN + 2)], MAX_CHAIN)


def test_offers_are_what_indexes_say_of_the_run() -> None:
    def entry(step: int, base: int | None, run: int = 1, size: int = 5) -> IndexEntry:
        return IndexEntry(root=f"0x{step:064x}", run=run, step=step, base_step=base, size=size)

    one = Index(versions=[entry(3, 2), entry(3, 2), entry(2, None)])
    other = Index(versions=[entry(3, 2), entry(5, 4, run=2), entry(6, 5, size=0)])
    offers = offers_of({"a": [one], "b": [other]}, 1)
    assert {(o.step, o.base_step, o.urls) for o in offers} == {(3, 2, ("a", "b")), (2, None, ("a",))}


def test_a_base_that_later_steps_come_back_to_may_cost_half_as_much_again() -> None:
    anchor, adapters = offer(0, None, WHOLE), [offer(step, 0, 499) for step in (1, 2, 3)]
    whole = [direct(step, WHOLE) for step in (1, 3, 8)]
    assert steps([anchor, *adapters, *whole], set(), 3) == (0, [3], WHOLE + 499)
    assert steps([anchor, offer(3, 0, 500), *whole], set(), 3) == (3, [], WHOLE)
    assert steps([anchor, *adapters, *whole], set(), 1) == (1, [], WHOLE), "nothing is known of later steps"
    assert steps([anchor, *adapters, *whole], {2}, 3) == (0, [3], WHOLE + 499)
    other = [offer(7, None, WHOLE), offer(8, 7, 1), *whole]
    assert steps(other, set(), 8) == (8, [], WHOLE), "adapters are to the first step"
