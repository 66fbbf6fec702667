"""Export programs run beside somebody's package: bounded, with nothing of ours passed on, and their failures named."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from muster.authoring.tasks import foreign
from muster.authoring.tasks.foreign import exported, own_environment
from muster.errors import MalformedError, UnreachableError
from testbed.waiting import wait_until

PYTHON = Path(sys.executable)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(foreign, "EXPORTERS", tmp_path)
    return tmp_path / "program.py"


def test_the_first_line_and_the_rows_come_back(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_ORCHESTRATOR__SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    program.write_text(
        "import json, os, sys\n"
        "secrets = sorted(name for name in os.environ if name.startswith(('MUSTER', 'PYTHON')))\n"
        "print(json.dumps({'order': json.loads(sys.argv[1]), 'secrets': secrets}))\n"
        'print(\'{"row": 1}\\n{"row": 2}\')\n'
    )
    with exported(PYTHON, "program.py", {"count": 2}) as (about, rows):
        assert about == {"order": {"count": 2}, "secrets": []}
        assert rows.read_text() == '{"row": 1}\n{"row": 2}\n'
    assert not rows.exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit('the taskset never ends')", "ended with 1: the taskset never ends"),
        ("import os; os.abort()", "ended with -6"),
        ("", "a line that is no JSON"),
        ("print('[1]')", "no JSON object"),
        ("print('{' * 100_000)", "no JSON"),
        ("print('x' * (1 << 20))", "more than 1048576 bytes"),
        ("print('{}'); print('{' * 5000)", "more than 4096 bytes"),
        ("print('{}', flush=True); import time; time.sleep(60)", "longer than 2 seconds"),
        ("import os, time; print('{}', flush=True); os.close(1); os.close(2); time.sleep(60)", "longer than 2 s"),
        ("import sys\nprint('{}')\nwhile True: sys.stderr.write('it never sleeps')", "longer than 2 seconds"),
        ("print('{}'); print('[{}]')", "something else than JSON objects: b'\\[{}]"),
        ("print('{}'); print('PAR1')", "something else than JSON objects: b'PAR1"),
        ("print('{}'); print(chr(31) + chr(139))", "something else than JSON objects"),
    ],
)
def test_what_an_export_may_not_do_is_named(
    program: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    monkeypatch.setattr(foreign, "MAX_EXPORT_BYTES", 4096)
    if "sleep" in code:
        monkeypatch.setattr(foreign, "EXPORT_SECONDS", 2)
    program.write_text(code)
    with pytest.raises(MalformedError, match=says), exported(PYTHON, "program.py", {}):
        raise AssertionError("it was read")


@pytest.mark.parametrize("session", ["setsid", "getpid"])
def test_a_process_that_stays_behind_holds_nobody_up(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, session: str
) -> None:
    """It holds the export's output; out of the session it is not ended with it."""
    left = tmp_path / "pid"

    class Clock:
        """The time is up once the process that stays has said who it is."""

        def monotonic(self) -> float:
            return time.monotonic() + left.exists() * foreign.EXPORT_SECONDS

    monkeypatch.setattr(foreign, "time", Clock())
    program.write_text(
        "import os, time\n"
        "print('{}', flush=True)\n"
        "if os.fork() == 0:\n"
        f"    os.{session}()\n"
        f"    open({str(tmp_path / 'half')!r}, 'w').write(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'half')!r}, {str(left)!r})\n"
        "    print('{}', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with pytest.raises(MalformedError, match="longer than 3600 seconds"), exported(PYTHON, "program.py", {}):
        raise AssertionError("it was read")
    stays = int(left.read_text())
    if session == "setsid":
        os.kill(stays, signal.SIGKILL)  # raises where it did not stay
    wait_until(lambda: has_ended(stays), "it has ended")


def has_ended(pid: int) -> bool:
    """Whether there is no such process, or only until its parent looks."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_an_export_says_besides_is_not_kept(program: Path) -> None:
    program.write_text(
        "import os, sys\n"
        "print('{}', flush=True)\n"
        "for _ in range(64): sys.stderr.write('x' * (1 << 20))\n"
        "sys.exit(f' {sum(os.path.getsize(name) for name in os.listdir())} bytes on disk')\n"
    )
    says = r"ended with 1: x{1900,} 0 bytes on disk$"
    with pytest.raises(MalformedError, match=says), exported(PYTHON, "program.py", {}):
        raise AssertionError("it was read")


def test_an_environment_is_made_once_and_again_when_the_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv is replaced by its commands written down: what it installs is its own affair."""
    asked: list[list[str]] = []

    def note(command: list[str], _: object) -> None:
        asked.append(command)
        if command[1] == "venv":
            Path(command[-1]).mkdir(parents=True)

    monkeypatch.setattr(foreign, "_uv", note)
    package = tmp_path / "package"
    (package / "build").mkdir(parents=True)
    (package / "a.py").write_text("1")
    first = own_environment(["verifiers==0.4.0", str(package)], tmp_path / "cache")
    (package / "build" / "left.py").write_text("by a build")
    assert own_environment(["verifiers==0.4.0", str(package)], tmp_path / "cache") == first
    assert [command[1] for command in asked] == ["venv", "pip"]
    assert str(package) not in asked[1], "a copy is installed"
    (package / "a.py").write_text("2")
    assert own_environment(["verifiers==0.4.0", str(package)], tmp_path / "cache") != first
    assert own_environment(["verifiers==0.4.0"], tmp_path / "cache") != first


def test_two_that_want_an_environment_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def slow(command: list[str], _: object) -> None:
        made.append(command[1])
        if command[1] == "venv":
            Path(command[-1]).mkdir(parents=True)
        time.sleep(0.2)

    monkeypatch.setattr(foreign, "_uv", slow)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: own_environment(["verifiers==0.4.0"], tmp_path / "cache"), range(4)))
    assert made == ["venv", "pip"]
    assert len(found) == 1


def test_a_package_that_cannot_be_installed_says_so(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(json.dumps("no toml"))
    with pytest.raises(UnreachableError, match="uv cannot install"):
        own_environment([str(package)], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/ready"))
