"""`muster run init` measures honest work if a run needs its own limits, and uses the measured limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from muster.authoring import calibration as calibrate
from muster.authoring import terms as run_terms
from muster.console.run_init import parts
from muster.models.files import model_hash
from muster.models.init import ModelShape, make_model, make_tokenizer, save_model
from muster.protocol.terms_file import read_terms
from muster.verification.calibration import parse_calibration
from muster.verification.profiles import BF16
from testbed.machine import Machine


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_large_model_in_bfloat16_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one in place of a large one, and as little as gives a calibration."""
    monkeypatch.setattr(run_terms, "UNCALIBRATED_PARAMETERS", 1_000)
    monkeypatch.setattr(parts, "CALIBRATION_TOKENS", 18_000)
    monkeypatch.setattr(parts, "CALIBRATION_LENGTH", 8)
    machine = Machine(tmp_path, "http://127.0.0.1:1")
    model = tmp_path / "model"
    save_model(make_model(make_tokenizer(), ModelShape(), seed=1).to(torch.bfloat16), make_tokenizer(), model)
    few = ("--train", "24", "--held-out", "8", "--tasks", "sort", "--port", "0")
    words = ("run", "init", "mine", "--yes", "--rpc-url", "http://127.0.0.1:1", "--model", model, *few)
    assert "no chain answers" in machine.json(*words, status=5)["error"]
    data = (tmp_path / "mine" / "run" / "calibration.json").read_bytes()
    found = parse_calibration(data)
    assert (found.profile, found.model_hash) == (BF16.name, "0x" + model_hash(model).hex())
    assert read_terms(tmp_path / "mine" / "run.toml").terms.profile == found.hash

    async def refuse(module: str, *_: object, **__: object) -> float:
        raise AssertionError(f"{module} was started")

    monkeypatch.setattr(calibrate, "run_probe", refuse)
    assert "no chain answers" in machine.json("run", "init", "mine", "--yes", status=5)["error"]
    (tmp_path / "mine" / "run" / "calibration.json").unlink()
    assert "no chain answers" in machine.json("run", "init", "mine", "--yes", status=5)["error"], "cells are kept"
    assert (tmp_path / "mine" / "run" / "calibration.json").read_bytes() == data
