"""A model in training computes what the samplers compute: it drops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from muster.models.init import load_model
from testbed.samples.families import write_family
from trainer.model_replica import disable_dropout

DROPS = {
    "llama": {"attention_dropout": 0.5},
    "seed_oss": {},  # which has some without being asked
    "phi3": {"attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5},
    "starcoder2": {"attention_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5},
}


@pytest.mark.parametrize("kind", DROPS)
@torch.no_grad()
def test_nothing_is_dropped_in_training(kind: str, tmp_path: Path) -> None:
    write_family(tmp_path / "model", kind, **DROPS[kind])
    model, tokens = load_model(tmp_path / "model"), torch.arange(2, 60)[None]
    expected = model.eval()(tokens).logits
    assert not torch.equal(model.train()(tokens).logits, expected)
    disable_dropout(model)
    assert torch.equal(model(tokens).logits, expected)
