"""The units of deploy/systemd: systemd takes them, and they agree with what `muster service install` writes."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from muster.console.node.service import FINAL, RESTART_SECONDS, STOP_SECONDS
from muster.settings.sources import load_settings
from muster.swarm.launch import ROLES
from testbed.paths import ROOT
from testbed.waiting import BOUND

FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
COMMON = FOLDER / "muster-.service.d" / "10-common.conf"


def role_of(unit: Path) -> str:
    return unit.stem.removeprefix("muster-").rstrip("@")


def section(path: Path, name: str = "Service") -> dict[str, str]:
    """Return the settings of a section; of those written twice the last one."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(path)
    return dict(parser[name])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "units")
    for unit in (tmp_path / "units").glob("*.service"):
        unit.write_text(unit.read_text().replace("/opt/muster/bin/python", sys.executable))
        unit.rename(unit.with_name(unit.name.replace("@", "@8601")))
    units = sorted((tmp_path / "units").glob("*.service"))
    environment = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}/units:", "XDG_RUNTIME_DIR": str(tmp_path)}

    def analyze(*words: str | Path) -> str:
        command = ["systemd-analyze", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=BOUND)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    assert len(units) == len(UNITS) == 6
    assert analyze("verify", *units) == ""
    # Ten times the exposure: 9.6 without any of this, 3 for what serves, 5 for what starts programs or uses a GPU.
    analyze("security", "--offline=yes", "--threshold=53", *units)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_agree_with_installed_services(unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role, own, common = role_of(unit), section(unit), section(COMMON)
    same = {"relay": "origin"}.get(role, role)
    command = f":/opt/muster/bin/python -P -m {ROLES[role].module} --config /etc/muster/{role}.toml"
    assert own["ExecStart"] == command, "no secret, and no variable of a shell"
    assert own["RestartPreventExitStatus"] == " ".join(map(str, FINAL[same]))
    assert (int(own["TimeoutStopSec"]), int(own.get("Nice", 0))) == (STOP_SECONDS[same], ROLES[role].nice)
    assert (common["Restart"], int(common["RestartSec"])) == ("on-failure", RESTART_SECONDS)
    assert section(unit, "Install")["WantedBy"] == "multi-user.target"
    keyless = role in ("explorer", "relay")
    assert own.get("LoadCredential") == (None if keyless else f"password:/etc/muster/{role}.password")
    for line in unit.read_text().replace("%d", "/run/credentials").replace("%i", "8601").splitlines():
        for pair in line.removeprefix("Environment=").split() if line.startswith("Environment=") else ():
            monkeypatch.setenv(*pair.split("=", 1))
    settings = load_settings(None)
    if not keyless:
        assert settings.keys.password_file == Path("/run/credentials/password")
    assert settings.orchestrator.port == (8601 if role == "orchestrator" else 8600)


def test_log_files_of_the_units_are_rotated() -> None:
    """By renaming alone: a process makes the new file itself, and a copy that is cut would lose lines."""
    text = (ROOT / "deploy" / "logrotate" / "muster").read_text()
    (pattern,) = re.findall(r"^(/\S+) {$", text, re.MULTILINE)
    files = [file for unit in UNITS for file in re.findall(r"MUSTER_LOG__FILE=(\S+)", unit.read_text())]
    assert files
    assert all(fnmatch(file, pattern) for file in files)
    assert "nocreate" in text.split()
    assert "copytruncate" not in text
