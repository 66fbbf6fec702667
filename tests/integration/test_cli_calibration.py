"""Terms that name a calibration, and runs that are not created without one: what an owner types."""

from __future__ import annotations

import json

import pytest

from muster.authoring.terms import UNCALIBRATED_PARAMETERS
from muster.models.files import model_hash
from muster.models.weights import parameter_count
from muster.protocol.hashes import content_hash
from muster.protocol.terms_file import read_terms
from muster.verification.profiles import BF16, CPU_FP32, profile_hash
from testbed.machine import Machine
from testbed.samples.cells import calibration_of
from testbed.samples.models import DEMO, write_model

NODE = "0x" + "11" * 20
OWNER = ("--operator", "./owner.key")


@pytest.fixture(scope="module")
def desk(machine: Machine) -> Machine:
    """A machine with a task set, a small model, a large one, and a calibration of each."""
    machine.json("tasks", "make", "tasks", "--seed", "0")
    write_model(machine.folder / "small", DEMO)
    write_model(machine.folder / "large", DEMO, hidden=512, heads=8, layers=7, intermediate=1_500)
    for name in ("small", "large"):
        (machine.folder / f"{name}.json").write_bytes(calibration_of(machine.folder / name).to_bytes())
    return machine


def template(desk: Machine, out: str, *words: object, status: int = 0) -> dict:
    places = ("--tasks", "tasks", "--trainer", NODE, "--storage-key", NODE)
    return desk.json("run", "template", *places, *words, "--out", out, status=status)


def create(desk: Machine, *words: object, status: int = 0) -> dict:
    """Rehearse it on the real chain."""
    return desk.json("run", "create", *words, *OWNER, "--dry-run", status=status)


def test_the_large_model_needs_a_calibration(desk: Machine) -> None:
    assert UNCALIBRATED_PARAMETERS < parameter_count(desk.folder / "large") < UNCALIBRATED_PARAMETERS * 1.3


def test_terms_name_a_calibration_by_the_hash_of_its_file(desk: Machine) -> None:
    template(desk, "named.toml", "--model", "small", "--calibration", "small.json")
    name = read_terms(desk.folder / "named.toml").terms.profile
    assert "0x" + name.hex() == content_hash((desk.folder / "small.json").read_bytes())
    template(desk, "plain.toml", "--model", "small")
    plain = read_terms(desk.folder / "plain.toml").terms
    assert plain.profile == profile_hash(CPU_FP32.name)
    assert plain.model_hash == model_hash(desk.folder / "small")


def test_a_calibration_that_does_not_fit_makes_no_terms(desk: Machine) -> None:
    refused = template(desk, "no.toml", "--model", "small", "--calibration", "large.json", status=3)
    assert refused["error"].startswith("the calibration is of model 0x")
    assert refused["hint"] == "measure the run's own model: muster run calibrate"
    cold = calibration_of(desk.folder / "small", 500_000)
    (desk.folder / "cold.json").write_bytes(cold.to_bytes())
    refused = template(desk, "no.toml", "--model", "small", "--calibration", "cold.json", status=3)
    assert "at temperature 0.5, the terms name" in refused["error"]
    pretty = json.dumps(json.loads((desk.folder / "small.json").read_bytes()), indent=2)
    (desk.folder / "pretty.json").write_text(pretty)
    refused = template(desk, "no.toml", "--model", "small", "--calibration", "pretty.json", status=3)
    assert "not in canonical form" in refused["error"]
    refused = template(desk, "no.toml", "--model", "small", "--calibration", "absent.json", status=3)
    assert "absent.json cannot be read: No such file" in refused["error"]
    assert not (desk.folder / "no.toml").exists()


def test_a_run_is_created_with_the_calibration_that_its_terms_name(desk: Machine) -> None:
    template(desk, "named.toml", "--model", "large", "--calibration", "large.json")
    words = ("named.toml", "--model", "large")
    assert create(desk, *words, "--calibration", "large.json")["dry_run"] is True
    refused = create(desk, *words, status=78)
    name = content_hash((desk.folder / "large.json").read_bytes())
    assert refused["error"] == f"the terms name the calibration {name}, or a profile that is not known here"
    assert "--calibration FILE" in refused["hint"]
    assert create(desk, *words, "--uncalibrated", status=78)["error"] == refused["error"], "nodes could not fetch it"


def test_a_calibration_that_the_terms_do_not_name_is_refused(desk: Machine) -> None:
    template(desk, "plain.toml", "--model", "small", "--profile", BF16.name)
    refused = create(desk, "plain.toml", "--model", "small", "--calibration", "small.json", status=78)
    assert refused["error"] == "the terms do not name the calibration in small.json"
    assert refused["hint"] == "write the terms again: muster run template --calibration small.json"
    refused = create(desk, "plain.toml", "--model", "small", "--calibration", "large.json", status=3)
    assert refused["error"].startswith("the calibration is of model 0x")


def test_a_large_model_is_not_trained_in_bfloat16_under_limits_of_others(desk: Machine) -> None:
    template(desk, "large.toml", "--model", "large", "--profile", BF16.name)
    refused = create(desk, "large.toml", "--model", "large", status=78)
    count = parameter_count(desk.folder / "large")
    expected = f"the limits of bf16-projection-v3 were not measured on this model of {count:,} parameters"
    assert refused["error"] == expected
    assert refused["hint"] == "muster run calibrate large, or --uncalibrated"
    assert create(desk, "large.toml", "--model", "large", "--uncalibrated")["dry_run"] is True
    assert create(desk, "large.toml", status=78)["hint"] == "pass --model FOLDER, or --uncalibrated"
    assert create(desk, "large.toml", "--uncalibrated")["dry_run"] is True


def test_small_models_and_float32_need_no_calibration(desk: Machine) -> None:
    template(desk, "small.toml", "--model", "small", "--profile", BF16.name)
    assert create(desk, "small.toml", "--model", "small")["dry_run"] is True
    template(desk, "exact.toml", "--model", "large")
    assert create(desk, "exact.toml", "--model", "large")["dry_run"] is True
    assert create(desk, "exact.toml")["dry_run"] is True
