"""muster service: the exact unit, odd paths, refusals, and the calls of systemctl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster.console.node.service import FINAL, quoted, unit_name, unit_text
from muster.errors import UsageError
from muster.swarm.launch import ROLES
from testbed.machine import Machine
from testbed.waiting import BOUND

UNIT = """\
# muster service install, for /home/ada/.muster/nodes/worker-1/muster.toml
[Unit]
Description=Muster worker of run 3 (worker-1)
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=:/opt/muster/bin/python -P -m worker --config /home/ada/.muster/nodes/worker-1/muster.toml
Environment=PATH=/opt/muster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Nice=5
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=3 78
TimeoutStopSec=20
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def test_a_unit_to_the_letter() -> None:
    config = Path("/home/ada/.muster/nodes/worker-1/muster.toml")
    python = Path("/opt/muster/bin/python")
    assert unit_text("worker", "muster-worker-1.service", config, python, run=3) == UNIT
    trainer = unit_text("trainer", "muster-t.service", config, python, run=3)
    expected = UNIT.replace("Muster worker of run 3 (worker-1)", "Muster trainer of run 3 (t)")
    expected = expected.replace("-m worker", "-m trainer").replace("Nice=5", "Nice=0")
    expected = expected.replace("Status=3 78", "Status=78").replace("StopSec=20", "StopSec=60")
    assert trainer == expected


def test_service_never_restarts_on_a_final_code_of_the_swarm() -> None:
    for role, codes in FINAL.items():
        assert set(ROLES[role].final) - {0} <= set(codes)  # systemd itself leaves a process that ended with 0


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/plain/path-1.2_3", "/plain/path-1.2_3"),
        ("/with space", '"/with space"'),
        ("/100%/h", "/100%%/h"),
        ("/%h %n", '"/%%h %%n"'),
        ('/a"b', '"/a\\"b"'),
        ("/a\\b", '"/a\\\\b"'),
        ("/it's", '"/it\'s"'),
        ("/$HOME/${x}", '"/$HOME/${x}"'),
        ("/a;b", '"/a;b"'),
        ("/ünï", '"/ünï"'),
        ("", '""'),
    ],
)
def test_words_of_a_command(word: str, written: str) -> None:
    assert quoted(word) == written


@pytest.mark.parametrize("name", ["a\nExecStart=/bin/evil", "a\tb", "a\u202eb", "a\x1b[1m"])
def test_a_path_that_no_unit_can_hold_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="letters that a unit cannot hold"):
        unit_text("worker", "muster-x.service", Path("/home") / name, Path("/usr/bin/python3"), run=1)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("worker-1", "muster-worker-1.service"),
        ("my node/№ 1", "muster-my-node-1.service"),
        ("../../etc/x", "muster-etc-x.service"),
        ("%i@x", "muster-i-x.service"),
        ("///", "muster-node.service"),
    ],
)
def test_names_of_units(name: str, unit: str) -> None:
    assert unit_name(name) == unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("odd", ["odd %h $HOME; ünï (1)", 'odd "q" it\'s \\x20'])
def test_systemd_takes_a_unit_with_odd_paths(tmp_path: Path, odd: str) -> None:
    folder = tmp_path / odd
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    unit = tmp_path / "muster-x.service"

    def verify() -> tuple[int, str]:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, env=environment, timeout=BOUND
        )
        return done.returncode, done.stderr

    unit.write_text(unit_text("worker", unit.name, folder / "muster.toml", python, run=1))
    assert verify() == (0, "")
    if "'" in odd:  # the program is env
        return
    unit.write_text(unit_text("worker", unit.name, folder / "muster.toml", folder / "no-python", run=1))
    status, said = verify()
    assert status != 0
    assert f"{folder}/no-python is not executable" in said, "the program's path was read as it is written"


def test_a_program_whose_path_systemd_would_not_take_is_an_argument() -> None:
    text = unit_text("worker", "muster-x.service", Path("/a/muster.toml"), Path("/it's/python"), run=1)
    assert '\nExecStart=:/usr/bin/env "/it\'s/python" -P -m worker --config /a/muster.toml\n' in text


# The commands


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    made.settings(f"name = 'worker-1'\n[keys]\nkeystore = 'key.json'\npassword_file = '{made.password}'\n")
    return made


def systemctl(machine: Machine, script: str) -> str:
    """A systemctl that writes down what it was asked; the PATH to find it by."""
    folder = machine.folder / "bin"
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {machine.folder}/asked\n{script}\n')
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def asked(machine: Machine) -> list[str]:
    path = machine.folder / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_a_dry_run_prints_the_unit_and_writes_nothing(machine: Machine) -> None:
    done = machine.type("service", "install", "--role", "worker", "--dry-run")
    config = machine.folder / "muster.toml"
    text = unit_text("worker", "muster-worker-1.service", config, Path(sys.executable), run=1)
    assert (done.returncode, done.stdout) == (0, text)
    assert list(machine.home.iterdir()) == []


def test_install_status_uninstall(machine: Machine) -> None:
    show = "UnitFileState=enabled\\nActiveState=active\\nSubState=running\\nResult=success\\n"
    show += "ExecMainStatus=0\\nNRestarts=2\\nMainPID=77\\n"
    path = systemctl(machine, f'case "$*" in *show*) printf "{show}";; esac')
    unit = machine.home / ".config" / "systemd" / "user" / "muster-worker-1.service"

    def type_it(*words: str) -> dict:
        import json

        done = machine.type(*words, "--json", PATH=path, XDG_CONFIG_HOME="", MUSTER_CHAIN__POLL_SECONDS="2")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) | {"said": done.stderr}

    made = type_it("service", "install", "--role", "worker")
    assert (made["unit"], made["path"]) == ("muster-worker-1.service", str(unit))
    assert "loginctl enable-linger" in made["said"]
    assert "MUSTER_CHAIN__POLL_SECONDS is set in this shell only" in made["said"]
    assert unit.read_text().startswith(f"# muster service install, for {machine.folder / 'muster.toml'}\n")
    shown = type_it("service", "status")
    shown.pop("said")
    assert shown == {
        "unit": "muster-worker-1.service",
        "path": str(unit),
        "installed": True,
        "enabled": "enabled",
        "state": "active (running)",
        "result": "success",
        "exit_code": 0,
        "restarts": 2,
        "pid": 77,
    }
    assert type_it("service", "install", "--role", "worker")["path"] == str(unit), "installing again replaces it"
    gone = type_it("service", "uninstall")
    assert (gone["unit"], gone["stopped"], unit.exists()) == ("muster-worker-1.service", True, False)
    said = [line.removeprefix("--user --no-pager ") for line in asked(machine)]
    assert [line for line in said if not line.startswith("show")] == [
        *("daemon-reload", "enable --now muster-worker-1.service") * 2,
        "disable --now muster-worker-1.service",
        "daemon-reload",
    ]
    assert machine.type("service", "uninstall", PATH=path).returncode == 78


def test_without_systemd_nothing_is_installed(machine: Machine) -> None:
    done = machine.type("service", "install", "--role", "worker", PATH="/nowhere")
    assert done.returncode == 5
    assert "error: there is no systemd here, which keeps a service running\n" in done.stderr
    assert list(machine.home.iterdir()) == []


def test_a_manager_that_refuses_is_unreachable(machine: Machine) -> None:
    path = systemctl(machine, "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    done = machine.type("service", "install", "--role", "worker", PATH=path)
    assert done.returncode == 5
    assert "error: systemctl --user daemon-reload: Failed to connect to bus: No medium found\n" in done.stderr
    assert "  next: log in as this user directly" in done.stderr


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("keystore = 'key.json'", "a service cannot ask for the password of keys.keystore"),
        ("", "no key is set"),
        ("keystore = 'key.json'\npassword_file = 'open'", "others may read open (mode 0644)"),
    ],
)
def test_service_that_needs_a_password_is_refused(machine: Machine, keys: str, error: str) -> None:
    (machine.folder / "open").write_text("password\n")
    (machine.folder / "open").chmod(0o644)
    machine.settings(f"[keys]\n{keys}\n")
    assert machine.json("service", "install", "--role", "worker", "--dry-run", status=78)["error"] == error


def test_another_nodes_unit_is_not_replaced(machine: Machine) -> None:
    folder = machine.home / ".config" / "systemd" / "user"
    folder.mkdir(parents=True)
    (folder / "muster-worker-1.service").write_text("# muster service install, for /elsewhere/muster.toml\n")
    refused = machine.json("service", "install", "--role", "worker", status=78)
    assert refused["error"] == f"{folder / 'muster-worker-1.service'} exists and is for something else"
    assert machine.json("service", "status", "--name", "worker-1")["installed"]


def test_the_role_is_asked_for_where_the_chain_does_not_tell(machine: Machine) -> None:
    refused = machine.json("service", "install", status=2)
    assert refused["hint"] == "add --role worker, validator, orchestrator, trainer, origin or explorer"
