"""The length reward, and what a score of several parts comes to."""

from __future__ import annotations

import pytest

from muster.environments.manifest import EnvironmentManifest, Score
from muster.environments.rewards import LENGTH_ALPHA, length_reward


@pytest.mark.parametrize(
    ("budget", "length", "reward"),
    [
        (12, 12, 0),
        (12, 6, -LENGTH_ALPHA // 2),
        (12, 18, -LENGTH_ALPHA // 2),
        (8, 32, -3 * LENGTH_ALPHA),
        (7, 8, -14285),
    ],
)
def test_length_reward_is_relative_to_the_budget(budget: int, length: int, reward: int) -> None:
    assert length_reward(budget, length) == reward


@pytest.mark.parametrize(
    ("parts", "reward"), [((1_000_000, 1_000_000), 1_000_000), ((0, 1_000_000), 700_000), ((1, 1), 1), ((1, 0), 0)]
)
def test_the_reward_is_the_weighted_sum_of_the_parts_rounded_down(parts: tuple[int, int], reward: int) -> None:
    """The parts are in the order of their names."""
    manifest = EnvironmentManifest("made", weights={"tests": 700_000, "form": 300_000})
    assert manifest.parts == ("form", "tests")
    assert Score(parts).reward(manifest) == reward
