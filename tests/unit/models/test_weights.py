"""How far a step's weights spread an error of the last state, and which steps nobody takes for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from muster.errors import MalformedError
from muster.models.init import load_model
from muster.models.weights import FINAL_NORM, SCALE_PER_NAT, check_scale, logit_scale, read_head
from testbed.samples.models import write_model

EMBEDDING, HEAD, BIAS = "model.embed_tokens.weight", "lm_head.weight", "model.norm.bias"


def folder_of(folder: Path, tensors: dict[str, list[Any]], **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": False, **config}))
    save_file({name: torch.tensor(values) for name, values in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("tensors", "config", "scale"),
    [
        ({FINAL_NORM: [0.5, -3.0], HEAD: [[3.0, 4.0], [0.0, 1.0]]}, {}, 15.0),
        ({FINAL_NORM: [0.5, 2.0], EMBEDDING: [[3.0, 4.0]]}, {"tie_word_embeddings": True}, 10.0),
        ({FINAL_NORM: [0.5, 2.0], EMBEDDING: [[3.0, 4.0]], HEAD: [[1.0, 0.0]]}, {"tie_word_embeddings": False}, 2.0),
        ({FINAL_NORM: [0.5, 2.0], HEAD: [[3.0, 4.0]]}, {"model_type": "gemma3_text"}, 15.0),
        ({FINAL_NORM: [0.5, 2.0], BIAS: [-1.0, 0.0], HEAD: [[3.0, 4.0]]}, {"model_type": "starcoder2"}, 15.0),
        ({HEAD: [[3.0, 4.0]]}, {"model_type": "olmo"}, 5.0),
    ],
    ids=["plain", "tied", "own head", "gains of 1 plus weights", "bias", "no gain"],
)
def test_scale_is_the_largest_gain_times_the_longest_row(
    tensors: dict[str, list[Any]], config: dict[str, object], scale: float, tmp_path: Path
) -> None:
    assert logit_scale(folder_of(tmp_path / "model", tensors, **config)) == pytest.approx(scale)


@torch.inference_mode()
def test_no_state_moves_a_logit_by_more_than_its_scale(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    model = load_model(folder).eval()
    states = model.base_model(input_ids=torch.arange(60)[None]).last_hidden_state[0]
    longest = read_head(folder).norm(dim=1).max()
    most = states.norm(dim=1).max() * longest / math.sqrt(states.shape[1])
    assert 0 < float(most) <= logit_scale(folder) * (1 + 1e-6)


LOUD = {
    "a gain": lambda tensors: tensors[FINAL_NORM][3:4].fill_(1e5),
    "a negative gain": lambda tensors: tensors[FINAL_NORM][3:4].fill_(-1e5),
    "a gain beyond float32's squares": lambda tensors: tensors[FINAL_NORM][3:4].fill_(1e22),
    "a gain that is no number": lambda tensors: tensors[FINAL_NORM][3:4].fill_(math.nan),
    "a row": lambda tensors: tensors[EMBEDDING][5].mul_(1e6),
    "a column": lambda tensors: tensors[EMBEDDING][:, 3].mul_(1e6),
    "a column whose channel is silent": lambda tensors: (
        tensors[FINAL_NORM][3:4].fill_(0),
        tensors[EMBEDDING][:, 3].mul_(1e6),
    ),
    "an infinite weight": lambda tensors: tensors[EMBEDDING][5, 3].fill_(math.inf),
}
"""What a trainer can do to a step, so that limits say nothing of its work."""


@pytest.mark.parametrize("kind", LOUD)
def test_a_step_whose_limits_say_nothing_is_refused(kind: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    check_scale(folder, 1.0)
    tensors = load_file(folder / "model.safetensors")
    LOUD[kind](tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MalformedError, match=r"the last norm times the head of .* comes to .*; at most 37\.2 is taken"):
        check_scale(folder, 1.0)


ODD: Mapping[str, dict[str, torch.Tensor]] = {
    "8 bits": {HEAD: torch.ones(2, 2).to(torch.float8_e4m3fn)},
    "64 bits": {HEAD: torch.ones(2, 2, dtype=torch.float64)},
    "integers": {HEAD: torch.ones(2, 2, dtype=torch.int64)},
    "no matrix": {HEAD: torch.ones(4)},
    "no rows": {HEAD: torch.ones(0, 2)},
    "no tokens": {HEAD: torch.tensor(1.0)},
    "no gains": {FINAL_NORM: torch.ones(0)},
}


@pytest.mark.parametrize("kind", ODD)
def test_a_head_or_norm_of_which_no_size_can_be_told_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    """An error of torch would end each process that fetches the step."""
    folder = folder_of(tmp_path / "model", {})
    save_file({FINAL_NORM: torch.ones(2), HEAD: torch.ones(2, 2), **ODD[kind]}, folder / "model.safetensors")
    with pytest.raises(MalformedError, match="has a head or last norm of another shape or dtype"):
        check_scale(folder, 1.0)


def test_a_lower_temperature_leaves_less_room(tmp_path: Path) -> None:
    largest = SCALE_PER_NAT * math.log(20)
    folder = folder_of(tmp_path / "model", {FINAL_NORM: [largest], HEAD: [[0.9]] * 20})
    check_scale(folder, 1.0)
    with pytest.raises(MalformedError):
        check_scale(folder, 0.8)
