"""A replayer's model is what it loaded, its tied head included."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.verification.profiles import PROFILES
from muster.verification.replay import Replayer


def test_a_head_is_tied_to_the_embedding_that_is_loaded(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    first, second = tmp_path / "first", tmp_path / "second"
    save_model(made := make_model(tokenizer, ModelShape(hidden=64, heads=2), seed=5), tokenizer, first)
    shutil.copytree(first, second)

    replayer = Replayer(first, PROFILES["cpu-fp32-projection-v3"], 1.0)
    replayer.model.lm_head.weight = torch.nn.Parameter(torch.randn_like(replayer.model.lm_head.weight))
    replayer.load_weights(second)
    assert replayer.model.lm_head.weight is replayer.model.get_input_embeddings().weight
    assert torch.equal(replayer.model.lm_head.weight, made.lm_head.weight)
