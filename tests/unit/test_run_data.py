"""What a node takes from a checkpoint before it runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commitment_samples import rules

from muster.errors import MismatchError
from muster.model_files import tokenizer_hash
from muster.models import ModelShape, make_model, make_tokenizer, save_model
from muster.run_data import check_fixed


def test_a_trainer_cannot_change_a_stop_token_between_two_steps(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    for step in (0, 1):
        model = make_model(tokenizer, ModelShape(hidden=64, layers=1, heads=2, intermediate=64), seed=step)
        save_model(model, tokenizer, tmp_path / str(step))
    terms = replace(rules().terms, tokenizer_hash=tokenizer_hash(tmp_path / "0"))
    check_fixed(tmp_path / "1", 1, terms)

    model.config.eos_token_id = 3
    model.save_pretrained(tmp_path / "1")
    with pytest.raises(MismatchError, match="step 1 has a tokenizer or configuration"):
        check_fixed(tmp_path / "1", 1, terms)
