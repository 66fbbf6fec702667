"""muster service: keep a process running as a systemd user service, which starts again after a crash and at boot."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from muster.console.command import command
from muster.console.money.wallet import address_of
from muster.console.node import nodes
from muster.console.session import Session
from muster.errors import ConfigError, MusterError, UnreachableError, UsageError
from muster.runtime.files import write_atomically
from muster.runtime.secret_files import read_secret
from muster.swarm.launch import ROLES

app = typer.Typer()

ServiceRole = Literal["worker", "validator", "orchestrator", "trainer", "origin", "explorer"]

KEYLESS: Final = ("origin", "explorer")
"""They serve, and sign nothing: their settings name no key."""

RESTART_SECONDS: Final = 30
"""Pause before a process that failed is started again."""

STOP_SECONDS: Final = {"worker": 20, "validator": 20, "orchestrator": 30, "trainer": 60, "origin": 20, "explorer": 30}
"""Seconds from SIGTERM until a process is killed. Its journal keeps unfinished work."""

FINAL: Final = {
    **dict.fromkeys(("worker", "validator"), (3, 78)),
    **dict.fromkeys(("orchestrator", "trainer", "origin", "explorer"), (78,)),
}
"""Exit codes after which starting again changes nothing, besides 0: the key was convicted, the settings cannot work."""

LINGER_HINT: Final = (
    "to keep it running after you log out, and from boot on: loginctl enable-linger\n  log: muster logs --follow"
)

COMMAND_SECONDS: Final = 60.0
"""Longest wait for systemctl."""

RoleOption = Annotated[
    ServiceRole | None, typer.Option("--role", help="What to run; else what the key is registered as.")
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="The unit is muster-NAME.service; else `name` of the settings, or the role."),
]


class SystemctlError(UnreachableError):
    """Raised when the user's service manager does not do what it was asked."""


@command(app, "install", spends=True, of_node=True)
async def install(session: Session, role: RoleOption = None, name: NameOption = None) -> None:
    """Write a systemd user unit for the node of the settings file, and start it. --dry-run prints the unit."""
    config = config_of(session)
    _check_path(config)
    role = role or await registered_role(session)
    if role not in KEYLESS:
        check_unattended(session)
    unit = unit_name(name or session.settings.name or role)
    text = unit_text(role, unit, config, Path(sys.executable), run=session.settings.run)
    path = unit_folder() / unit
    if session.options.dry_run:
        session.result({"dry_run": True, "unit": unit, "path": path, "text": text}, text.rstrip("\n"))
        return
    check_ours(path, text)
    _systemctl_path()
    for source in sorted({one for one in session.loaded.sources.values() if one.startswith("MUSTER_")}):
        session.note(f"warning: {source} is set in this shell only: the service will not see it. Put it into {config}")
    write_atomically(path, text)
    session.note(f"wrote {path}")
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", unit)
    session.note(LINGER_HINT)
    session.result({"unit": unit, "role": role, "path": path, "config": config})


@command(app, "uninstall", spends=True, of_node=True)
def uninstall(session: Session, name: NameOption = None) -> None:
    """Stop the service of the settings file and remove its unit. Files stay."""
    unit, path = _unit_of(session, name)
    if not path.exists():
        raise ConfigError(f"no unit at {path}", hint="muster service install")
    if session.options.dry_run:
        session.result({"dry_run": True, "unit": unit, "path": path}, f"would stop {unit} and remove {path}")
        return
    stopped = True
    try:
        _systemctl("disable", "--now", unit)
    except SystemctlError as error:
        stopped = False
        session.note(f"it may still run: {error}\n  next: {error.hint}")
    path.unlink()
    with suppress(SystemctlError):
        _systemctl("daemon-reload")
    session.result({"unit": unit, "path": path, "stopped": stopped})


@command(app, "status", of_node=True)
def status(session: Session, name: NameOption = None) -> None:
    """Show whether the service of the settings file is installed, enabled and running."""
    unit, path = _unit_of(session, name)
    document: dict[str, Any] = {"unit": unit, "path": path, "installed": path.exists()}
    wanted = ("UnitFileState", "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts", "MainPID")
    found = _properties(session, unit, wanted) if path.exists() else None
    if found is not None:
        document |= {
            "enabled": found.get("UnitFileState", ""),
            "state": f"{found.get('ActiveState', '')} ({found.get('SubState', '')})",
            "result": found.get("Result", ""),
            "exit_code": _number(found, "ExecMainStatus"),
            "restarts": _number(found, "NRestarts"),
            "pid": _number(found, "MainPID"),
        }
    session.result(document)


# What is installed


def config_of(session: Session) -> Path:
    """Return the absolute path of the settings file. Raises ConfigError when there is none."""
    if session.config_path is None:
        raise session.no_settings()
    return Path(os.path.abspath(session.config_path))


async def registered_role(session: Session) -> ServiceRole:
    """Return what the key of the settings is registered as. Raises UsageError when the chain does not know."""
    hint = "add --role worker, validator, orchestrator, trainer, origin or explorer"
    try:
        address = await address_of(session, None)
        async with session.chain() as chain:
            found = (await nodes.registered(chain, address)).role.name.lower()
    except MusterError as error:
        raise UsageError(f"what to run is not known: {error}", hint=hint) from error
    return "worker" if found == "worker" else "validator"


def check_unattended(session: Session) -> None:
    """Raise ConfigError if the process would ask for a password: a service has no terminal."""
    keys = session.settings.keys
    if keys.keystore is None and keys.raw_key_file is None:
        raise ConfigError("no key is set", hint="set keys.keystore and keys.password_file")
    if keys.keystore is not None and keys.password_file is None:
        hint = "write it to a file, chmod 600 the file, and set keys.password_file to its path"
        raise ConfigError("a service cannot ask for the password of keys.keystore", hint=hint)
    if keys.password_file is not None:
        read_secret(keys.password_file)


def unit_folder() -> Path:
    """Return where systemd looks for a user's own units."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home and Path(home).is_absolute() else Path.home() / ".config") / "systemd" / "user"


def unit_name(name: str) -> str:
    """Return the unit of a process; what a unit's name may not have becomes a hyphen."""
    return f"muster-{re.sub('[^A-Za-z0-9_.-]+', '-', name)[:100].strip('-.') or 'node'}.service"


def _unit_of(session: Session, name: str | None) -> tuple[str, Path]:
    """Return the installed unit that runs the settings file, or that of this name."""
    folder = unit_folder()
    if name is not None:
        return unit_name(name), folder / unit_name(name)
    config = config_of(session)
    found = [path for path in sorted(folder.glob("muster-*.service")) if _is_for(path, config)]
    if len(found) > 1:
        units = ", ".join(path.name for path in found)
        raise UsageError(f"several units run {config}: {units}", hint="add --name NAME, of muster-NAME.service")
    unit = found[0].name if found else unit_name(session.settings.name or "node")
    return unit, folder / unit


def _is_for(path: Path, config: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(_first_line(config) + "\n")
    except (OSError, UnicodeDecodeError):
        return False


def check_ours(path: Path, text: str) -> None:
    """Raise ConfigError when another unit is in the place of this one."""
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(text.split("\n", 1)[0]):
        hint = "choose another with --name, or set name in the settings"
        raise ConfigError(f"{path} exists and is for something else", hint=hint)


def _first_line(config: Path) -> str:
    return f"# muster service install, for {config}"


# The unit


def unit_text(role: ServiceRole, unit: str, config: Path, python: Path, *, run: int) -> str:
    """Return the unit of a process. Raises UsageError for a path that no unit can hold."""
    for path in (config, python):
        _check_path(path)
    # systemd takes no program whose path has quotes or backslashes, but anything as its argument.
    program = ["/usr/bin/env", str(python)] if set(str(python)) & set("'\"\\") else [str(python)]
    words = [*program, "-P", "-m", ROLES[role].module, "--config", str(config)]
    search = f"{python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # With ":" before it, systemd puts no variables into the command.
    return f"""{_first_line(config)}
[Unit]
Description=Muster {role} of run {run} ({unit.removeprefix("muster-").removesuffix(".service")})
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=:{" ".join(quoted(word) for word in words)}
Environment={quoted(f"PATH={search}")}
Nice={ROLES[role].nice}
Restart=on-failure
RestartSec={RESTART_SECONDS}
RestartPreventExitStatus={" ".join(map(str, FINAL[role]))}
TimeoutStopSec={STOP_SECONDS[role]}
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


def quoted(word: str) -> str:
    """Return a word of a unit's command: quoted where needed, with no specifiers."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if re.fullmatch(r"[\w@%+=:,./-]+", escaped, re.ASCII) else f'"{escaped}"'


def _check_path(path: Path) -> None:
    """Raise UsageError for a path that no unit can hold, or that looks like other letters."""
    if not str(path).isprintable():
        raise UsageError(f"{str(path)!r} has letters that a unit cannot hold", hint="move it to another folder")


# systemd


def _systemctl_path() -> str:
    """Return the program. Raises SystemctlError where there is none."""
    program = shutil.which("systemctl")
    if program is None:
        hint = "let this system's own supervisor run it: muster worker run, for example"
        raise SystemctlError("there is no systemd here, which keeps a service running", hint=hint)
    return program


def _systemctl(*words: str) -> str:
    """Let the user's service manager do something; return what it prints. Raises SystemctlError."""
    program = _systemctl_path()
    shown = shlex.join(["systemctl", "--user", *words])
    hint = f"log in as this user directly, not by su or sudo, and type: {shown}"
    try:
        done = subprocess.run(
            [program, "--user", "--no-pager", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemctlError(f"{shown}: {error}", hint=hint) from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[:300] or f"it ended with {done.returncode}"
        raise SystemctlError(f"{shown}: {reason}", hint=hint)
    return done.stdout


def _properties(session: Session, unit: str, names: Sequence[str]) -> dict[str, str] | None:
    """Return what systemd knows of a unit; None, with a note, where it cannot be asked."""
    try:
        shown = _systemctl("show", *(f"--property={name}" for name in names), unit)
    except SystemctlError as error:
        session.note(f"its state is not known: {error}")
        return None
    pairs = (line.partition("=") for line in shown.splitlines())
    return {name: value for name, _, value in pairs}


def _number(found: dict[str, str], name: str) -> int | None:
    value = found.get(name, "")
    return int(value) if value.isdigit() else None
