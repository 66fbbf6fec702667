"""What the contract asks of a run with private tests before a step: `Runs.publish`."""

from __future__ import annotations

from muster.protocol.terms import Terms


def epochs_to_publish(terms: Terms, step: int) -> int:
    """Return how many masters must be public before `step` can be published."""
    if not terms.has_private_tests:
        return 0
    return max(min(step // terms.grade_epoch_steps, terms.grade_epochs) - 1, 0)
