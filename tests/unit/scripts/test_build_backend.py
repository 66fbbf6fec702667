"""Packages: refused before set-up has built what belongs into them, whole afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from muster.contracts.abi import CONTRACTS
from testbed.paths import ROOT

PARTS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "scripts")
PACKAGES = ("adversary", "explorer", "muster", "orchestrator", "trainer", "validator", "worker")
DIST_INFO = f"muster-{version('muster')}.dist-info"
GENERATED = {
    *(f"muster/contracts/{module}.py" for module in CONTRACTS),
    *(f"muster/contracts/abi/{name}.json" for name in CONTRACTS.values()),
    *(f"muster/sandbox/built/{name}" for name in ("scorer.sha256", "scorer.wasm.zst")),
    *(f"explorer/static/vendor/uplot/{name}" for name in ("LICENSE", "uPlot.esm.js", "uPlot.min.css")),
}


@pytest.fixture
def clean_clone(tmp_path: Path) -> Path:
    """What a fresh clone has of the package: all but what .gitignore names."""
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}

    def left_out(folder: str, names: list[str]) -> list[str]:
        inside = Path(folder).relative_to(ROOT)
        return [name for name in names if name in ignored or str(inside / name) in ignored]

    for name in PARTS:
        (tmp_path / name).symlink_to(ROOT / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    return tmp_path


def test_a_wheel_of_a_clean_clone_is_refused_by_the_command_to_run_first(clean_clone: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-index", "--wheel-dir", "wheels", "."]
    done = subprocess.run(command, cwd=clean_clone, capture_output=True, text=True)
    assert done.returncode != 0
    (reason,) = {line.strip() for line in done.stderr.splitlines() if "make setup" in line}
    assert reason == (
        "run `make setup` first: it builds muster/contracts/abi/MusterToken.json, muster/contracts/abi/Registry.json, "
        "muster/contracts/abi/RunTerms.json, muster/contracts/abi/Runs.json, "
        "muster/contracts/abi/SlashCourt.json, muster/contracts/abi/Refutations.json, muster/contracts/abi/Wages.json, "
        "muster/sandbox/built/scorer.wasm.zst, "
        "muster/sandbox/built/scorer.sha256, explorer/static/vendor/uplot/uPlot.esm.js, "
        "explorer/static/vendor/uplot/uPlot.min.css, explorer/static/vendor/uplot/LICENSE, "
        "muster/contracts/token.py, muster/contracts/registry.py, muster/contracts/run_terms.py, "
        "muster/contracts/runs.py, muster/contracts/court.py, "
        "muster/contracts/refutations.py, muster/contracts/wages.py, which a wheel must hold"
    )
    assert not list(clean_clone.rglob("*.whl"))


def call_backend(folder: Path, expression: str) -> str:
    """Returns the text of an expression of the build backend's functions, in `folder`."""
    code = f"import sys; sys.path[:0] = ['scripts', '.']; from build_backend import *; print({expression})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_one_file_that_was_not_built_is_enough_to_refuse(clean_clone: Path) -> None:
    for name in GENERATED:
        (clean_clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clean_clone / name).touch()
    assert call_backend(clean_clone, "missing()") == "[]"
    for name in GENERATED:
        (clean_clone / name).unlink()
        assert call_backend(clean_clone, "missing()") == str([name])
        (clean_clone / name).touch()


def test_a_clean_clone_can_be_installed_as_editable(clean_clone: Path) -> None:
    answer = call_backend(clean_clone, "*get_requires_for_build_editable(), build_editable('.')")
    requirement, wheel = answer.split()
    assert requirement == "setuptools>=80"
    names = zipfile.ZipFile(clean_clone / wheel).namelist()
    assert f"__editable__.muster-{version('muster')}.pth" in names


def test_a_wheel_of_a_folder_that_is_set_up_is_whole(tmp_path: Path) -> None:
    for name in (*PARTS, *PACKAGES):
        (tmp_path / name).symlink_to(ROOT / name)
    wheel = call_backend(tmp_path, "build_wheel('.', {'--build-option': '--compression=stored'})")
    names = set(zipfile.ZipFile(tmp_path / wheel).namelist())
    assert names >= GENERATED | {"muster/proofs/native/projection.c", "explorer/templates/base.html"}
    assert {name.split("/")[0] for name in names} == {*PACKAGES, DIST_INFO}
    assert "scripts/build_backend.py" in (tmp_path / "muster.egg-info" / "SOURCES.txt").read_text().splitlines()
