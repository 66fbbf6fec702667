"""What the contract can see wrong in a file: found row by row, by the contract's own rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.constants import MICRO
from muster.contracts.refutations import Flaw
from muster.rollouts.leaves import leaf_hash, leaf_of, rollout_tree
from muster.rollouts.schema import Rollout
from muster.verification.objective import ObjectiveFlaw, find_flaw
from testbed.samples.commitments import LIMIT, drawn, honest_rows, rules


def found(rows: list[Rollout]) -> ObjectiveFlaw | None:
    return find_flaw(rows, drawn(), rules().terms)


def test_honest_rows_show_nothing() -> None:
    assert found(honest_rows()) is None
    assert found([replace(row, task_reward=MICRO) for row in honest_rows()]) is None, "a reward that can be"


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"task": 63}, Flaw.WRONG_TASK),
        ({"seed": 1}, Flaw.WRONG_SEED),
        ({"budget": 9}, Flaw.WRONG_BUDGET),
        ({"completion_tokens": np.zeros(0, np.int32)}, Flaw.OUT_OF_BOUNDS),
        ({"completion_tokens": np.zeros(LIMIT + 1, np.int32)}, Flaw.OUT_OF_BOUNDS),
        ({"task_reward": -1}, Flaw.OUT_OF_BOUNDS),
        ({"task_reward": MICRO + 1, "seed": 1}, Flaw.OUT_OF_BOUNDS),
    ],
)
def test_a_row_is_shown_with_its_proof(changes: dict[str, Any], flaw: Flaw) -> None:
    rows = honest_rows()
    assert rows[7].task != 63
    rows[7] = replace(rows[7], **changes)
    shown = found(rows)
    assert shown is not None
    assert (shown.flaw, shown.position) == (flaw, 7)
    assert [opening.leaf for opening in shown.openings] == [leaf_of(rows[7])]
    assert shown.openings[0].proof == rollout_tree(rows).proof(7)


def test_a_position_beyond_is_shown() -> None:
    rows = honest_rows()
    rows[2] = replace(rows[2], position=len(rows))
    shown = found(rows)
    assert shown is not None
    assert (shown.flaw, shown.position, len(shown.openings)) == (Flaw.POSITION_BEYOND, 12, 1)


def test_a_position_that_is_there_twice_is_shown_by_both() -> None:
    rows = honest_rows()
    rows[3] = replace(rows[2], fuel=rows[2].fuel + 1)
    shown = found(rows)
    assert shown is not None
    assert (shown.flaw, shown.position) == (Flaw.POSITION_TWICE, 2)
    assert [leaf_hash(opening.leaf) for opening in shown.openings] == [leaf_hash(leaf_of(row)) for row in rows[2:4]]
    tree = rollout_tree(rows)
    assert [opening.proof for opening in shown.openings] == [tree.proof(2), tree.proof(3)]


def test_the_first_row_that_is_wrong_is_shown() -> None:
    rows = honest_rows()
    rows[9], rows[4] = replace(rows[9], seed=1), replace(rows[4], budget=9)
    shown = found(rows)
    assert shown is not None
    assert (shown.flaw, shown.position) == (Flaw.WRONG_BUDGET, 4)
