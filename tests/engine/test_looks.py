"""Looks at the real engine's rows: true numbers of any honest machine stay true, and lies are seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.inspection_looks import CONTEXT, DEMO, LIES, SEEDS, judged, looks_of
from muster.authoring.models.variants import save_changed, with_noise
from muster.models.arithmetic import HONEST, computing, perturbing
from muster.rollouts.schema import Rollout
from muster.verification.look import decode_look, encode_look
from muster.verification.model import check_row, replay_rows
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer

ROWS = 16


@pytest.fixture
def own(replayer: Replayer, model_dir: Path) -> Replayer:
    replayer.load_weights(model_dir)
    return replayer


def test_a_validator_s_numbers_are_true_where_it_accepts(honest: list[Rollout], own: Replayer) -> None:
    rows = honest[:ROWS]
    looks = [row.look for row in replay_rows(own, rows, SEEDS)]
    text = encode_look([look for look in looks if look is not None], CPU_FP32)
    assert len(text) == 2 + 2 * 32 * ROWS
    read = decode_look(text, ROWS, CPU_FP32)
    assert read is not None
    assert [check_row(own, *one, SEEDS, accepted=True) for one in zip(rows, read, strict=True)] == ["true"] * ROWS


@pytest.mark.parametrize("arithmetic", HONEST["float32"])
def test_another_machine_s_numbers_are_true(arithmetic: str, honest: list[Rollout], own: Replayer) -> None:
    with computing(own.model, arithmetic):
        looks = looks_of(own, honest)
    assert not np.array_equal(looks, looks_of(own, honest)), "it computes otherwise"
    assert {check_row(own, *one, SEEDS) for one in zip(honest, looks, strict=True)} == {"true"}


def test_a_perturbed_machine_s_numbers_are_never_false(honest: list[Rollout], own: Replayer) -> None:
    with perturbing(own.model, seed=1):
        looks = looks_of(own, honest)
    assert "false" not in {check_row(own, *one, SEEDS) for one in zip(honest, looks, strict=True)}


@pytest.mark.parametrize("name", [name for name in LIES if name != "the step before"])
def test_a_look_that_did_not_take_place_is_false(
    name: str, honest: list[Rollout], own: Replayer, model_dir: Path
) -> None:
    outcomes, least = judged(LIES[name], model_dir, own, honest[:ROWS], CONTEXT[DEMO])
    assert outcomes == {"false": ROWS}
    assert least > 20, "limits that the least of them is off"
    assert {check_row(own, *one, SEEDS) for one in zip(honest[:ROWS], looks_of(own, honest[:ROWS]), strict=True)} == {
        "true"
    }


def test_numbers_by_another_step_s_weights_are_false(
    honest: list[Rollout], own: Replayer, model_dir: Path, tmp_path: Path
) -> None:
    rows = honest[:ROWS]
    own.load_weights(save_changed(model_dir, tmp_path / "other", with_noise(4e-3)))
    looks = looks_of(own, rows)
    own.load_weights(model_dir)
    assert {check_row(own, *one, SEEDS) for one in zip(rows, looks, strict=True)} == {"false"}
