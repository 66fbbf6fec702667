"""Export programs run beside somebody's package: bounded, with nothing of ours passed on, and their failures named."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.authoring.tasks import foreign
from muster.authoring.tasks.foreign import exported, own_environment
from muster.errors import MalformedError, UnreachableError

PYTHON = Path(sys.executable)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(foreign, "EXPORTERS", tmp_path)
    return tmp_path / "program.py"


def test_what_a_program_prints_comes_back(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ORCHESTRATOR__SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    program.write_text(
        "import json, os, sys\n"
        "secrets = sorted(name for name in os.environ if name.startswith(('MUSTER', 'PYTHON')))\n"
        "print(json.dumps({'order': json.loads(sys.argv[1]), 'secrets': secrets}))\n"
    )
    with exported(PYTHON, "program.py", {"count": 2}) as rows:
        assert json.loads(rows.read_text()) == {"order": {"count": 2}, "secrets": []}
    assert not rows.exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('the taskset never ends')", "ended with 1: the taskset never ends"),
        ("import os; os.abort()", "ended with -6"),
        ("print('{}', flush=True); import time; time.sleep(60)", "longer than 2 seconds"),
    ],
)
def test_what_an_export_may_not_do_is_named(
    program: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(foreign, "EXPORT_SECONDS", 2)
    program.write_text(code)
    with pytest.raises(MalformedError, match=says), exported(PYTHON, "program.py", {}):
        raise AssertionError("it was read")


def test_an_environment_is_made_once_for_its_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv is replaced by its commands written down: what it installs is its own affair."""
    asked: list[list[str]] = []

    def note(command: list[str], _: object) -> None:
        asked.append(command)
        if command[1] == "venv":
            Path(command[-1]).mkdir(parents=True)

    monkeypatch.setattr(foreign, "_uv", note)
    first = own_environment(["reasoning-gym==0.1.25"], tmp_path / "cache")
    assert own_environment(["reasoning-gym==0.1.25"], tmp_path / "cache") == first
    assert [command[1] for command in asked] == ["venv", "pip"]
    assert asked[1][-1] == "reasoning-gym==0.1.25"
    assert own_environment(["reasoning-gym==0.1.24"], tmp_path / "cache") != first


def test_two_that_want_an_environment_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def slow(command: list[str], _: object) -> None:
        made.append(command[1])
        if command[1] == "venv":
            Path(command[-1]).mkdir(parents=True)
        time.sleep(0.2)

    monkeypatch.setattr(foreign, "_uv", slow)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: own_environment(["reasoning-gym==0.1.25"], tmp_path / "cache"), range(4)))
    assert made == ["venv", "pip"]
    assert len(found) == 1


def test_a_package_that_cannot_be_installed_says_so(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(json.dumps("no toml"))
    with pytest.raises(UnreachableError, match="uv cannot install"):
        own_environment([str(package)], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/ready"))
