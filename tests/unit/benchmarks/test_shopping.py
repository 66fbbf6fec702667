"""The saving from picking draws: large when the step decides them, and almost none when the node's order does."""

from __future__ import annotations

from benchmarks.shopping import Draws, saved, shop_ahead, shop_by_node, shop_by_step


class Given(Draws):
    """Fixed draws: the work of each key's commitments in order, at every step."""

    def __init__(self, *keys: list[int]) -> None:
        super().__init__(0)
        self.keys = keys

    def work(self, key: int, entropy_of: int, index: int) -> int:
        return self.keys[key][index]


def test_draws_by_node_leave_a_single_key_nothing_to_pick() -> None:
    draws = Draws(0)
    all_of_them = sum(draws.work(0, 0, index) for index in range(300))
    assert shop_by_node(draws, 1, 300) == shop_ahead(draws, 1, 300) == all_of_them


def test_draws_by_step_let_a_single_key_pick_at_each_step() -> None:
    assert 0.03 < saved("by step", Draws(0), 1, 300) < 0.15


def test_eight_keys_gain_a_hundredth_at_most_where_what_was_not_picked_stays() -> None:
    draws = Draws(0)
    assert saved("by step", draws, 8, 100) > 0.15
    assert abs(saved("by node", draws, 8, 1_000)) <= 0.01


def test_unpicked_draw_stays_next_for_its_key() -> None:
    assert shop_by_node(Given([9, 1, 1, 1], [5, 6, 7, 8, 10, 2]), 2, 6) == 5 + 6 + 7 + 8 + 9 + 1


def test_looking_ahead_finds_the_least_of_all_orders() -> None:
    assert shop_ahead(Given([9, 1, 1, 1], [5, 6, 7, 8]), 2, 4) == 9 + 1 + 1 + 1
    assert shop_ahead(Given([9, 9, 9], [5, 1, 7], [2, 8, 8]), 3, 3) == 2 + 5 + 1


def test_node_still_advances_when_the_step_decides() -> None:
    class BySteps(Draws):
        """Step 0 is the shortest, and then the newest has the longest draw."""

        def work(self, key: int, entropy_of: int, index: int) -> int:
            return 1 + entropy_of

    assert shop_by_step(BySteps(0), 1, 4) == sum((1, 2, 3, 4)), "steps 0 to 3: the oldest that is open"
