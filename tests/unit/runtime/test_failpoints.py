"""Failpoints kill a real process, only once when a folder is given, and refuse unknown names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.runtime.failpoints import failpoint
from testbed.waiting import BOUND

PROGRAM = "from muster.runtime.failpoints import failpoint; failpoint('worker.uploaded'); print('survived')"


def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=BOUND)


def test_failpoint_is_inert_without_the_variable() -> None:
    assert run({}).stdout == "survived\n"


def test_another_point_does_not_fire() -> None:
    assert run({"MUSTER_FAILPOINT": "worker.committed"}).stdout == "survived\n"


def test_the_named_point_kills_and_fires_once(tmp_path: Path) -> None:
    environment = {"MUSTER_FAILPOINT": "worker.committed,worker.uploaded", "MUSTER_FAILPOINT_DIR": str(tmp_path)}
    first, second = run(environment), run(environment)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, "")
    assert (second.returncode, second.stdout) == (0, "survived\n")
    assert [path.name for path in tmp_path.iterdir()] == ["worker.uploaded"]


def test_without_a_folder_it_fires_every_time() -> None:
    environment = {"MUSTER_FAILPOINT": "worker.uploaded"}
    assert [run(environment).returncode for _ in range(2)] == [-signal.SIGKILL, -signal.SIGKILL]


def test_an_unknown_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_FAILPOINT", "worker.uplaoded")
    with pytest.raises(ConfigError, match="uplaoded"):
        failpoint("worker.uploaded")
