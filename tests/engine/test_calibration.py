"""muster run calibrate, for real: engine and replay in their processes, over a grid of a small model.

`make test` measures a few cells of it, `make test-rest` the whole grid.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from muster.authoring import calibration, calibration_grid
from muster.authoring.models import variants
from muster.models import arithmetic
from muster.models.files import model_hash
from muster.models.matmul import choose_matmul
from muster.protocol.hashes import content_hash
from muster.rollouts.parquet import read_rollouts
from muster.runtime.processor import lacks_bfloat16
from muster.settings.schema import Matmul
from muster.verification.calibration import LEAST_LOOK_SHARE, parse_calibration
from muster.verification.judging import judge
from muster.verification.measured import read_cell
from muster.verification.profiles import BF16
from muster.verification.replay import Replayer
from testbed.machine import Machine
from testbed.paths import ROOT
from testbed.samples.models import DEMO, write_model

WORDS = ("--tokens", 6000, "--max-tokens", 8, "--sharpened", "", "--folder", "kept")
"""As little as gives a calibration: the processes' starts take most of the time."""
FIRST = calibration_grid.WAYS[0].name
INT4 = "int4 weights"
MAPPED = "testbed.runs.mapped_probe"


@pytest.fixture(scope="module", params=["a few cells", pytest.param("the whole grid", marks=pytest.mark.slow)])
def grid(request: pytest.FixtureRequest) -> Iterator[str]:
    """How much of the grid there is: all, or one way to run the engine, two to compute, and one cheat."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "a few cells":
            patch.setattr(calibration_grid, "WAYS", calibration_grid.WAYS[:1])
            patch.setattr(calibration_grid, "environments", dict)
            patch.setattr(arithmetic, "HONEST", {"bfloat16": ("split sums", "sums in float32")})
            patch.setattr(variants, "CHEAPER", {INT4: variants.CHEAPER[INT4]})
        yield request.param


def older() -> tuple[str, ...]:
    """Cells of the older processors that are emulated."""
    return tuple(name for old in calibration_grid.environments() for name in (f"for {old}", old, f"generated on {old}"))


@pytest.fixture(scope="module")
def machine(grid: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("machine"), "http://127.0.0.1:1")
    write_model(made.folder / "model", DEMO)
    return made


@pytest.fixture(scope="module")
def calibrated(machine: Machine) -> dict:
    """What `muster run calibrate` printed about the model, and wrote; emulated engines name the kernels they loaded."""
    real = calibration.run_probe

    async def mapped(module: str, *arguments: Path | str, environment: Mapping[str, str] | None = None) -> float:
        if module == calibration.WORKER and environment is not None:
            module, environment = MAPPED, {**environment, "PYTHONPATH": str(ROOT)}
        return await real(module, *arguments, environment=environment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "run_probe", mapped)
        return machine.json("run", "calibrate", "model", *WORDS, "--out", "new/calibration.json")


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine and no replay starts."""

    async def refuse(module: str, *_: object, **__: object) -> float:
        raise AssertionError(f"{module} was started")

    monkeypatch.setattr(calibration, "run_probe", refuse)


def cell_file(machine: Machine, name: str) -> Path:
    return machine.folder / "kept" / f"{name}.npz"


def test_a_model_is_measured_over_the_whole_grid(machine: Machine, calibrated: dict) -> None:
    data = (machine.folder / "new" / "calibration.json").read_bytes()
    found = parse_calibration(data)
    assert calibrated == {**json.loads(data), "hash": content_hash(data), "file": "new/calibration.json"}
    assert found.profile == BF16.name
    assert found.model_hash == "0x" + model_hash(machine.folder / "model").hex()
    assert found.temperature_micro == 1_000_000
    expected = [FIRST, *arithmetic.HONEST["bfloat16"], *older(), *(way.name for way in calibration_grid.WAYS[1:])]
    assert [one.cell for one in found.cells] == expected
    assert {one.model for one in found.cells} == {"as it is"}
    # Honest work is off by something, no row is rejected, and the margins are kept.
    assert all((one.rejected, one.accused) == (0, 0) for one in found.cells)
    kept = {one.cell: read_cell(cell_file(machine, f"as it is, {one.cell}")) for one in found.cells}
    states = {name: b"".join(row.states.tobytes() for row in cell.rows) for name, cell in kept.items()}
    same = {pair for pair in combinations(states, 2) if states[pair[0]] == states[pair[1]]}
    if lacks_bfloat16():  # what is emulated elsewhere is what this processor does
        assert (FIRST, "sums in float32") in same
        assert same <= {(FIRST, "sums in float32"), *combinations(older(), 2)}
    else:
        # Rows made for an older processor may come to the same states on it: they are few at a time.
        assert same <= {(f"for {old}", old) for old in calibration_grid.environments()}, "each was computed otherwise"
    assert all(0 < one.worst["activation"] < BF16.activation.reject for one in found.cells)
    assert 2 <= found.margin < 100
    for statistic, limit in found.pool.model_dump().items():
        assert all(one.units[statistic] * 2 <= limit * 1.000001 for one in found.cells if one.units), statistic
    assert found.pool.activation < BF16.pool.activation, "tighter than limits that hold for every model"
    # Looks of the same rows differ between machines by something, and the limits are 2.5 times the most of it.
    for name, limit in found.look.model_dump().items():
        most = max(one.looks[name] for one in found.cells)
        own = getattr(BF16.look, name)
        assert limit == pytest.approx(max(2.5 * most, LEAST_LOOK_SHARE * own), rel=0.01)
        assert 0.002 < most < own / 2.5, name
    # Of the known cheats the coarsest is beyond these limits in every unit. The others are smaller than what bfloat16
    # does to larger models, below which no calibration may set its limits.
    assert [one.name for one in found.cheats] == list(variants.CHEAPER)
    int4 = found.cheats[list(variants.CHEAPER).index(INT4)]
    assert int4.rejected > 0.9
    assert (max(int4.leaning.values()), int4.units_to_reject, int4.units_to_accuse) == (1.0, 6, 11)


def test_rows_are_all_different_also_where_prompts_are_repeated(calibrated: dict) -> None:
    assert all(one["distinct"] == one["rows"] for one in calibrated["cells"])


@pytest.mark.parametrize(
    "grid", [pytest.param("the whole grid", marks=pytest.mark.slow)], indirect=True, scope="module"
)
def test_an_emulated_engine_loads_the_older_kernels(machine: Machine, calibrated: dict) -> None:
    if not older():
        pytest.skip("no older processor is emulated here")
    kernels = cell_file(machine, "as it is, generated on AVX2").with_suffix(".kernels")
    assert kernels.read_text() == "_C_AVX2"


@pytest.mark.parametrize("matmul", ["native", "float32"])
def test_real_rows_pass_however_a_replay_multiplies(matmul: Matmul, machine: Machine, calibrated: dict) -> None:
    """Rows of this processor and of an older one. The cells that are computed so have these very bits."""
    replayer = Replayer(machine.folder / "model", BF16, 1.0, matmul=matmul)
    exact = {FIRST: matmul == choose_matmul("auto"), "sums in float32": matmul == "float32"}
    for name in (*exact, *older()):
        made = FIRST if name in exact else name if name.startswith("generated") else f"for {name.removeprefix('for ')}"
        rows = read_rollouts(cell_file(machine, f"as it is, {made}").with_suffix(".parquet").read_bytes())
        assert [judge([one], BF16) for one in replayer.replay(rows)] == [None] * len(rows)
        found = [row.errors for row in replayer.errors(rows)]
        pairs = list(zip(found, read_cell(cell_file(machine, f"as it is, {name}")).rows, strict=True))
        assert all(np.allclose(one.logprobs, other.logprobs, atol=0.1) for one, other in pairs)
        assert not exact.get(name) or all(np.array_equal(one.states, other.states) for one, other in pairs)


def test_changed_copies_of_the_model_are_gone(machine: Machine, calibrated: dict) -> None:
    kept = machine.folder / "kept"
    assert [path.name for path in kept.iterdir() if path.is_dir() or path.suffix == ".part"] == []
    assert (kept / calibration.GRID_FILE).is_file()


@pytest.mark.usefixtures("no_process")
def test_a_second_call_goes_on_from_the_folder(machine: Machine, calibrated: dict) -> None:
    """No engine starts, and the document is the same."""
    again = machine.json("run", "calibrate", "model", *WORDS, "--out", "again.json")
    assert again == calibrated | {"file": "again.json"}


def test_one_cell_that_is_missing_is_all_that_is_measured_again(
    machine: Machine, calibrated: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    real = calibration.run_probe

    async def watched(module: str, *arguments: Path | str, **options: dict) -> float:
        started.append(module)
        return await real(module, *arguments, **options)

    monkeypatch.setattr(calibration, "run_probe", watched)
    gone = cell_file(machine, "as it is, split sums")
    gone.unlink()
    again = machine.json("run", "calibrate", "model", *WORDS, "--out", "again.json")
    assert started == [calibration.VALIDATOR], "its rows are there"
    assert again == calibrated | {"file": "again.json"}, "and the replay gives what it gave before"


@pytest.mark.usefixtures("no_process")
def test_machine_keeps_margins_of_its_calibration(machine: Machine, calibrated: dict) -> None:
    words = ("run", "calibrate", "model", *WORDS, "--against", "new/calibration.json")
    assert machine.json(*words) == {"calibration": "new/calibration.json", "margin": calibrated["margin"]}
    assert "this machine keeps a margin of 2." in machine.type(*words).stdout


@pytest.mark.usefixtures("no_process")
def test_limits_under_which_honest_work_would_lean_are_refused(machine: Machine, calibrated: dict) -> None:
    found = parse_calibration((machine.folder / "new" / "calibration.json").read_bytes())
    tiny = found.model_copy(update={"pool": found.pool.model_copy(update={"activation": 1e-6})})
    (machine.folder / "tiny.json").write_bytes(tiny.to_bytes())
    refused = machine.json("run", "calibrate", "model", *WORDS, "--against", "tiny.json", status=3)
    assert refused["error"] == "the calibration's pool limit activation is 1e-06; 0.03 to 0.28 are taken"
    other = found.model_copy(update={"model_hash": "0x" + "00" * 32})
    (machine.folder / "other.json").write_bytes(other.to_bytes())
    refused = machine.json("run", "calibrate", "model", *WORDS, "--against", "other.json", status=3)
    assert "the calibration is of model 0x0000" in refused["error"]
    words = ("run", "calibrate", "model", *WORDS, "--against", "new/calibration.json")
    assert "is for bf16" in machine.json(*words, "--profile", "cpu-fp32-projection-v3", status=3)["error"]
    assert "at temperature 1, the terms name" in machine.json(*words, "--temperature", 0.5, status=3)["error"]


@pytest.mark.usefixtures("no_process")
def test_cells_of_another_grid_never_count(machine: Machine, calibrated: dict) -> None:
    write_model(machine.folder / "another", DEMO, seed=2)
    words = ("--max-tokens", 8, "--sharpened", "", "--folder", "kept")
    for model, changes, named in (
        ("another", ("--tokens", 6000), "model_hash"),
        ("model", ("--tokens", 6000, "--profile", "cpu-fp32-projection-v3"), "profile"),
        ("model", ("--tokens", 6000, "--temperature", 0.5), "temperature_micro"),
        ("model", ("--tokens", 7000), "tokens"),
        ("another", ("--tokens", 7000), "model_hash, tokens"),
    ):
        refused = machine.json("run", "calibrate", model, *words, *changes, status=78)
        assert refused["error"] == f"kept holds what was measured with another {named}"
        assert refused["hint"] == "name another --folder, or remove this one"
    # Measurements without a recorded grid are refused too.
    shutil.copytree(machine.folder / "kept", machine.folder / "unsigned")
    (machine.folder / "unsigned" / calibration.GRID_FILE).unlink()
    refused = machine.json("run", "calibrate", "model", *WORDS, "--folder", "unsigned", status=78)
    assert refused["error"].startswith("unsigned holds what was measured with another model_hash, profile")


@pytest.mark.usefixtures("no_process")
def test_a_broken_cell_is_named(machine: Machine, calibrated: dict) -> None:
    path = cell_file(machine, "as it is, split sums")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    refused = machine.json("run", "calibrate", "model", *WORDS, status=3)
    path.write_bytes(whole)
    assert refused["error"].startswith("kept/as it is, split sums.npz holds no measured cell")
    assert refused["hint"] == "remove it, and measure again"
