"""The length reward: what missing the announced thinking budget costs."""

from __future__ import annotations

from typing import Final

LENGTH_ALPHA: Final = 100_000
"""Weight of the length reward, in millionths: missing the budget by its own size costs 0.1.
Changing this changes the `length_reward` column, so validators of another version reject it."""


def length_reward(budget: int, length: int) -> int:
    """Return −α·|length − budget| / budget in millionths, rounded towards zero.

    `length` counts sampled tokens, EOS included, or those of the thinking alone: see `counted_length`. What a tool said
    is not the policy's to shorten.

    Relative, because with answers of 20 tokens an absolute penalty per token would be negligible or dominate the task.
    """
    return -(LENGTH_ALPHA * abs(length - budget) // budget)
