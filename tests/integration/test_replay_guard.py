"""A replayer whose model is not what it loaded judges nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from muster.errors import MusterError
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.verification.profiles import PROFILES
from validator.replay import Replayer


def test_a_head_that_is_not_tied_is_noticed(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    save_model(make_model(tokenizer, ModelShape(hidden=64, heads=2), seed=5), tokenizer, tmp_path)
    replayer = Replayer(tmp_path, PROFILES["cpu-fp32-projection-v2"], 1.0)
    replayer.load_weights(tmp_path)

    fresh = Replayer(tmp_path, PROFILES["cpu-fp32-projection-v2"], 1.0)
    fresh.model.lm_head.weight = torch.nn.Parameter(torch.randn_like(fresh.model.lm_head.weight))
    with pytest.raises(MusterError, match="not tied"):
        fresh.load_weights(tmp_path)
