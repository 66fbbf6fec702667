"""What becomes of a node within a day, by cells made by hand; what the cheats of a running engine do to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.real_model_days import (
    EDITED,
    HONEST_DAY,
    SPOILED,
    STEPS,
    ProfileDays,
    day_of,
    figures,
    judge_days,
    page,
)
from muster.verification.measured import MeasuredCell
from muster.verification.profiles import CPU_FP32
from muster.verification.statistics import TokenErrors
from testbed.adversaries.live import LEARNING_RATE, edited_place, lowered, one_step_back, spoiled_at, top_k, top_p
from testbed.samples.cells import cell, errors
from testbed.samples.rollouts import rollout

PROOF = np.array([[1.0, -2.0, 2.0, -1.0], [4.0, 4.0, -4.0, 4.0]], "<f2")


def day(rows: Sequence[TokenErrors], name: str = "a cheat") -> MeasuredCell:
    return cell(rows, name)


def test_a_step_that_leans_is_a_unit_and_eleven_of_them_accuse() -> None:
    leaning, exact = errors(distance=0.0005), errors()
    found = day_of(day([leaning] * STEPS), CPU_FP32)
    assert (found.pool_rejects, found.pool_accuses, found.statistic) == (6, 11, "activation")
    assert (found.rejected, found.accused, found.caught) == (0, 0, True)
    late = day_of(day([exact] * 8 + [leaning] * 16), CPU_FP32)
    assert (late.pool_rejects, late.pool_accuses) == (14, 19), "the window begins where it leans"
    few = day_of(day([exact, leaning] * 12), CPU_FP32)
    assert (few.pool_accuses, few.caught) == (None, False)
    assert day_of(day([exact] * STEPS), CPU_FP32).statistic == ""


def test_a_unit_has_rows_until_256_tokens() -> None:
    """Of each step's two rows of 256 tokens the first is the unit: what the second one shows leans nowhere."""
    rows = [errors(), errors(distance=0.0009)] * STEPS
    assert day_of(day(rows), CPU_FP32).pool_rejects is None
    assert day_of(day([one for pair in zip(rows[1::2], rows[::2], strict=True) for one in pair]), CPU_FP32).caught


def test_rows_that_accuse_catch_by_themselves() -> None:
    """One accused row of 96 is met in 576 inspected ones; it leans in one step only."""
    gaps = errors().gaps.copy()
    gaps[0] = errors(1, gap=30.0).gaps[0]
    rows = [errors()] * 95 + [replace(errors(), gaps=gaps)]
    found = day_of(day(rows), CPU_FP32)
    assert (found.rejected, found.accused) == (1 / 96, 1 / 96)
    assert (found.pool_accuses, found.caught) == (None, True)


def test_figures_name_what_is_missed() -> None:
    exact, leaning, far = (day([one] * STEPS) for one in (errors(), errors(distance=0.0005), errors(gap=30.0)))
    days = [
        replace(day_of(measured, CPU_FP32), name=name)
        for name, measured in (
            (HONEST_DAY, exact),
            ("seen", leaning),
            ("not seen", exact),
            (EDITED, far),
            (SPOILED[0], exact),
            (SPOILED[1], far),
        )
    ]
    found = {CPU_FP32.name: ProfileDays(days, 96, 0)}
    caught, honest = figures(found)
    assert (caught["name"], caught["ours"], caught["ratio"], caught["holds"]) == ("real_fp32", 2, 0.6667, False)
    assert str(caught["unit"]).endswith("not: not seen")
    assert (honest["name"], honest["holds"]) == ("real_honest", True)
    lines = page(found).splitlines()
    assert "2 of 3 cheats are caught under cpu-fp32-projection-v3. Of 96 honest rows" in lines[0]
    assert "| seen | 0% | 0% | step 11 |" in lines
    assert "| not seen | 0% | 0% | **no** |" in lines
    assert f"| {EDITED} | 100% | 100% | step 11 |" in lines


def test_honest_rows_that_are_rejected_are_counted() -> None:
    """One of an honest day, and one of 20 that the limits come from."""
    far = errors(gap=9.0)
    found = judge_days([cell([errors()] * 19 + [far])], [cell([errors()] * 23 + [far], HONEST_DAY)], CPU_FP32)
    assert (found.honest_rows, found.honest_rejected, round(found.days[0].rejected, 4)) == (20, 1, 0.0417)
    assert [figure["ours"] for figure in figures({CPU_FP32.name: found})] == [0, 2]


# --- Cheats of a running engine


def test_truncated_sampling_forbids_what_is_beyond_its_nucleus() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert (top_p(logits, [], share=0.8) > -100).tolist() == [[True, True, False, False]]
    assert (top_p(logits, [], share=0.81) > -100).tolist() == [[True, True, True, False]]
    assert (top_k(logits, [], count=1) > -100).tolist() == [[True, False, False, False]]


def test_published_weights_of_the_step_before_differ_by_what_a_step_moves_them() -> None:
    """A unit of bfloat16 is 2^-11 between 1/16 and 1/8: a step of 4e-5 changes about one weight in twelve by a unit."""
    weights = torch.full((20_000,), 0.1, dtype=torch.bfloat16)
    moved = (one_step_back(weights) != weights).float().mean()
    assert float(moved) == pytest.approx(LEARNING_RATE / 2.0**-11, rel=0.1)
    assert (one_step_back(weights.float()) - weights.float()).abs().unique().tolist() == pytest.approx([4e-5], rel=1e-3)


def test_a_proof_is_spoiled_by_a_relative_distance() -> None:
    row = replace(rollout(0, [5, 7]), proof=PROOF.tobytes())
    one = np.frombuffer(spoiled_at(row, slice(1, 2), 0.5).proof, "<f2").reshape(2, 4)
    assert one.tolist() == [PROOF[0].tolist(), [6.0, 6.0, -2.0, 6.0]]
    both = np.frombuffer(spoiled_at(row, slice(None), 0.5).proof, "<f2").reshape(2, 4).astype(float)
    apart = np.square(both - PROOF).sum(axis=1) / np.square(PROOF.astype(float)).sum(axis=1)
    assert np.sqrt(apart) == pytest.approx([0.5, 0.5], rel=1e-3)


def test_the_token_before_the_end_is_edited() -> None:
    assert edited_place(rollout(0, [5, 7, 2]), stop_token=2) == 1
    assert edited_place(rollout(0, [5, 7, 9]), stop_token=2) == 2
    assert edited_place(rollout(0, [2]), stop_token=2) == 0


def test_all_log_probabilities_are_lowered() -> None:
    row = rollout(0, [5, 7])
    assert lowered(row, by=0.25).logprobs.tolist() == (row.logprobs - 0.25).tolist()
