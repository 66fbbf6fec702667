"""A replayer's model is what it loaded, its tied head included."""

from __future__ import annotations

from pathlib import Path

import torch

from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.verification.profiles import PROFILES
from validator.replay import Replayer


def test_a_head_is_tied_to_the_embedding_that_is_loaded(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    save_model(make_model(tokenizer, ModelShape(hidden=64, heads=2), seed=5), tokenizer, tmp_path)
    replayer = Replayer(tmp_path, PROFILES["cpu-fp32-projection-v3"], 1.0)
    replayer.load_weights(tmp_path)

    fresh = Replayer(tmp_path, PROFILES["cpu-fp32-projection-v3"], 1.0)
    fresh.model.lm_head.weight = torch.nn.Parameter(torch.randn_like(fresh.model.lm_head.weight))
    fresh.load_weights(tmp_path)
    assert fresh.model.lm_head.weight is fresh.model.get_input_embeddings().weight
    assert torch.equal(fresh.model.lm_head.weight, replayer.model.lm_head.weight)
