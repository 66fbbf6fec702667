"""`muster model check` passes a model on which all programs agree, and fails one whose rows depend on their length."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from muster.authoring.models import measured
from muster.authoring.models.measured import ModelCheck, measure, place_of, read_measured
from muster.models.files import model_hash
from testbed.machine import Machine
from testbed.samples.families import VARIANTS, write_family
from testbed.samples.models import write_model

pytestmark = pytest.mark.slow


def test_a_model_is_measured_and_what_was_found_is_kept_under_its_hash(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    model = write_model(tmp_path / "model")
    found = machine.json("model", "check", model, "--longest", 40)
    assert (found["fault"], found["turns"][:4], found["thinking"]) == ("", "no: ", "yes, by a budget")
    assert [row["length"] for row in found["rows"]][:4] == [2, 3, 5, 6]
    assert found["rows"][-1]["length"] == 40
    assert all(row["rejected"] == "" for row in found["rows"])
    assert max(max(row["engine"], row["neighbour"], row["trainer"]) for row in found["rows"]) < 1e-4
    kept = read_measured(model)
    assert kept is not None
    assert kept.model_hash == model_hash(model).hex() == found["model_hash"]
    write_model(model, seed=2)
    assert read_measured(model) is None, "other weights were not measured"


def test_rope_that_depends_on_a_row_s_length_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "check_checkpoint", lambda _: None)  # which refuses it
    kind, settings = VARIANTS["phi3, longrope"]
    write_family(tmp_path / "model", kind, **settings)
    found = asyncio.run(measure(tmp_path / "model", 66, lambda _: None))
    assert found.fault
    assert ModelCheck.model_validate_json(place_of(tmp_path / "model").read_bytes()) == found
