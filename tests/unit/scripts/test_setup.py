"""Set-up: the test for a completed step, the settings for uv, and refusals with a reason."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from muster.console.uv_settings import uv_environment
from testbed.paths import ROOT
from testbed.waiting import BOUND


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """scripts/set_up.py in a temporary folder."""
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "set_up", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "STAMPS", tmp_path)
    return module


def test_a_step_is_done_while_inputs_and_product_are_the_same(set_up: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("1")
    product = tmp_path / "product"
    step = set_up.Step("x", "making x", ("input",), product, product.touch)
    assert not step.is_done()
    step.action()
    step.stamp.write_text(step.wanted)
    assert step.is_done()
    product.unlink()
    assert not step.is_done()
    product.touch()
    (tmp_path / "input").write_text("2")
    assert not step.is_done()


def test_steps_run_beside_each_other_after_what_they_need(set_up: ModuleType, tmp_path: Path) -> None:
    meet, order = threading.Barrier(2, timeout=BOUND), list[str]()

    def step(name: str, *needs: str, meets: bool = False) -> object:
        def act() -> None:
            if meets:
                meet.wait()  # raises where the two do not run at once
            order.append(name)
            (tmp_path / f"made-{name}").touch()

        return set_up.Step(name, name, (), tmp_path / f"made-{name}", act, needs=needs)

    steps = [step("a"), step("b", "a", meets=True), step("c", "a", meets=True), step("d", "b", "c")]
    set_up.run_all(steps)
    assert (order[0], sorted(order[1:3]), order[3:]) == ("a", ["b", "c"], ["d"])
    set_up.run_all(steps)
    assert len(order) == 4


def test_no_step_begins_after_a_failed_one(set_up: ModuleType, tmp_path: Path) -> None:
    begun = []

    def fail() -> None:
        raise set_up.SetupError("no", "try again")

    failing = set_up.Step("a", "a", (), tmp_path / "a", fail, needs=())
    after = set_up.Step("b", "b", (), tmp_path / "b", lambda: begun.append("b"), needs=("a",))
    with pytest.raises(set_up.SetupError):
        set_up.run_all([failing, after])
    assert begun == []
    assert not failing.is_done()


def test_every_step_can_be_reached(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "ROOT", ROOT)
    done: set[str] = set()
    for step in set_up.steps(tests=True):
        assert done.issuperset(step.needs), step.name
        done.add(step.name)


def test_uv_uses_the_settings_of_pip(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(set_up, "PYTHON", sys.executable)
    monkeypatch.setattr(set_up, "ROOT", ROOT)
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text("[global]\nfind-links = /a /b\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert set_up.uv_environment()["UV_FIND_LINKS"] == "/a,/b"
    assert uv_environment() == set_up.uv_environment()
    monkeypatch.setenv("PIP_FIND_LINKS", "/c")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    assert uv_environment()["UV_FIND_LINKS"] == "/c"
    assert uv_environment()["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    monkeypatch.setenv("UV_FIND_LINKS", "/d")
    assert uv_environment()["UV_FIND_LINKS"] == "/d"


def test_a_missing_program_is_an_error_with_a_next_step(set_up: ModuleType) -> None:
    with pytest.raises(set_up.SetupError, match="no-such-program is missing") as caught:
        set_up.call(["no-such-program"], hint="install it")
    assert caught.value.hint == "install it"
    with pytest.raises(set_up.SetupError, match="failed with status 3"):
        set_up.call([sys.executable, "-c", "raise SystemExit(3)"], hint="read above")


def test_a_command_that_takes_long_is_spoken_of_and_ends_in_any_case(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(set_up, "NEWS_SECONDS", 0.05)
    monkeypatch.setattr(set_up, "CALL_SECONDS", 0.2)
    with pytest.raises(set_up.SetupError, match=r"`sleep 600` did not end in 0 minutes") as caught:
        set_up.call(["sleep", "600"], hint="check the network")
    assert caught.value.hint == "check the network"
    said = capfd.readouterr().err.splitlines()
    assert len(said) >= 2
    assert set(said) == {"setup: still waits for `sleep 600`, 0 s so far"}


def test_node_is_asked_for_by_version(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "node_version", lambda: 18)
    with pytest.raises(set_up.SetupError, match="Node 18 is too old"):
        set_up.install_node_packages()
    monkeypatch.setattr(set_up, "node_version", lambda: 0)
    with pytest.raises(set_up.SetupError, match="Node is missing"):
        set_up.install_node_packages()


def test_the_chart_library_comes_with_its_licence(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(set_up, "ROOT", ROOT)
    monkeypatch.setattr(set_up, "CHARTS", tmp_path / "static" / "uplot")
    set_up.copy_charts()
    copied = {path.name: path.read_text() for path in set_up.CHARTS.iterdir()}
    assert sorted(copied) == ["LICENSE", "uPlot.esm.js", "uPlot.min.css"]
    assert "MIT" in copied["LICENSE"]
    assert re.search(r"^export \{ uPlot as default \}", copied["uPlot.esm.js"], re.MULTILINE)
    assert copied["uPlot.min.css"].startswith(".uplot")


# --- A browser for the page's tests


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder of programs there is, as for root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("MUSTER_BROWSER", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


CHMOD = shutil.which("chmod")


def program(path: Path, script: str = "") -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def apt_get(folder: Path, *, has_chromium: bool) -> Path:
    """An apt-get that knows packages only after an update; returns the file that it writes its arguments to."""
    log, lists = folder.parent / "apt.log", folder.parent / "lists"
    install = f"[ -e {lists} ] && : > {folder}/chromium && {CHMOD} +x {folder}/chromium"
    cases = [f"update) : > {lists};;", f"install) {install if has_chromium else 'exit 100'};;"]
    program(folder / "apt-get", f'echo "$@" >> {log}\ncase $1 in {" ".join(cases)} esac')
    return log


def test_a_browser_that_is_there_is_taken(set_up: ModuleType, programs: Path, capsys: pytest.CaptureFixture) -> None:
    log = apt_get(programs, has_chromium=True)
    program(programs / "google-chrome")
    assert set_up.browser() == programs / "google-chrome"
    program(programs / "chromium")
    assert set_up.browser() == programs / "chromium"
    set_up.install_browser()
    assert not log.exists()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("capfd")
def test_root_installs_a_browser_once_the_lists_are_new(set_up: ModuleType, programs: Path) -> None:
    log = apt_get(programs, has_chromium=True)
    set_up.install_browser()
    install = "install -y --no-install-recommends chromium"
    assert log.read_text().splitlines() == [install, "update", install]
    assert set_up.browser() == programs / "chromium"


@pytest.mark.parametrize("why", ["not root", "no apt-get", "no such package"])
def test_without_a_browser_set_up_goes_on_and_says_so(
    why: str, set_up: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    if why != "no apt-get":
        apt_get(programs, has_chromium=why == "not root")
    if why == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    set_up.install_browser()
    said = capfd.readouterr().err
    assert said == (
        "setup: no browser here runs the page's tests: they are skipped. To run them too, "
        "install one (for example: apt-get install -y --no-install-recommends chromium)\n"
    )
    monkeypatch.setenv("MUSTER_BROWSER", "required")
    with pytest.raises(set_up.SetupError, match="no browser here runs the page's tests"):
        set_up.install_browser()


def test_only_tests_need_their_contracts_a_browser_and_servers(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "ROOT", ROOT)
    everybody, tests = ([step.name for step in set_up.steps(tests=tests)] for tests in (False, True))
    assert tests == [*everybody, "contract tests", "browser", "nginx", "servers"]


# --- Refusals


def test_unknown_arguments_are_refused(set_up: ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert set_up.main(["--test"]) == 1
    assert "unknown arguments: --test" in capsys.readouterr().err


def test_other_machines_and_extras_are_refused(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "EXTRA", "tpu")
    with pytest.raises(set_up.SetupError, match="MUSTER_EXTRA is 'tpu'"):
        set_up.check_machine()
    monkeypatch.setattr(set_up.platform, "system", lambda: "Darwin")
    with pytest.raises(set_up.SetupError, match="Darwin is not supported"):
        set_up.check_machine()


def test_a_temporary_folder_that_cannot_be_written_is_not_used(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    set_up.check_machine()
    assert os.environ["TMPDIR"] != "/no/such/folder"


def test_without_a_new_enough_python_it_says_what_to_install() -> None:
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "setup"],
        env={**os.environ, "PYTHON": "no-such-python"},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 78
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "next: " in done.stderr


# --- Pinning


def test_constraints_pin_exactly_and_name_no_host() -> None:
    lines = (ROOT / "muster/console/pins/constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][a-z0-9.!]*", pin) for pin in pins)
    assert pins == sorted(pins, key=lambda pin: pin.partition("==")[0])


def test_everything_the_project_asks_for_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in ("verify", "cpu", "dev") for one in _extra(project, extra))]
    names = {re.match(r"[A-Za-z0-9_.-]+", one).group().lower().replace("_", "-") for one in asked}  # type: ignore[union-attr]
    pinned = {
        line.partition("==")[0] for line in (ROOT / "muster/console/pins/constraints.txt").read_text().splitlines()
    }
    assert names - {"muster"} <= pinned


def _extra(project: dict, name: str) -> list[str]:
    return project["optional-dependencies"][name]


def test_the_lock_file_names_no_host() -> None:
    text = (ROOT / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert "://" not in re.sub(r'"url": "[^"]*"', "", text)
