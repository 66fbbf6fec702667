"""muster setup: what a role needs besides the package itself, installed into this environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from packaging.requirements import Requirement

from muster.console.command import command
from muster.console.session import Session
from muster.console.uv_settings import uv_environment
from muster.errors import CheckError, ConfigError, UsageError
from muster.runtime.module_command import module_command

app = typer.Typer()

PINS: Final = Path(__file__).parent / "pins"
"""Exact versions, and what of the engines' own requirements is left out: what `make setup` installs by, too."""

Engine = Literal["cpu", "gpu"]
Role = Literal["validator", "trainer", "worker"]


@command(app, "setup")
def setup(
    session: Session,
    role: Annotated[Role, typer.Argument(help="validator, also to check a case yourself; worker; trainer.")],
    engine: Annotated[
        Engine | None, typer.Option(help="A worker's engine; else that for a GPU where nvidia-smi finds one.")
    ] = None,
) -> None:
    """Install what a role needs besides this package: torch, and 2 to 6 GB for a worker's engine.

    pip alone cannot resolve what an engine asks for. Nothing is installed by the name `muster`: an index may have
    another project of that name.
    """
    if engine and role != "worker":
        raise UsageError(f"a {role} needs no engine", hint=f"muster setup {role}")
    chosen: Engine = engine or ("gpu" if role == "worker" and shutil.which("nvidia-smi") else "cpu")
    words = [*_uv(session), "pip", "install", "--python", sys.executable]
    words += ["--constraints", str(PINS / "constraints.txt")]
    for name in ("overrides.txt", *(("overrides-cpu.txt",) if chosen == "cpu" else ())):
        words += ["--overrides", str(PINS / name)]
    session.note(f"installing what a {role} needs into {sys.prefix} …")
    _call([*words, *extra(chosen if role == "worker" else "verify")], "read uv's words above, then run this again")
    session.result({"role": role, "environment": sys.prefix}, "ready; muster up URL joins a run")


def extra(name: str) -> list[str]:
    """Return what an extra of this package requires, those that it consists of included, without markers."""
    return sorted(set(_requirements(name)))


def _requirements(extra: str) -> Iterator[str]:
    for line in requires("muster") or ():
        requirement = Requirement(line)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name != "muster":
            requirement.marker = None
            yield str(requirement)
        for inner in requirement.extras if requirement.name == "muster" else ():
            yield from _requirements(inner)


def _uv(session: Session) -> list[str]:
    """Return the command that is uv, installed first where it is not here."""
    if found := shutil.which("uv"):
        return [found]
    if find_spec("uv") is None:
        session.note("installing uv, which can leave out requirements …")
        pin = next(line for line in (PINS / "constraints.txt").read_text().splitlines() if line.startswith("uv=="))
        _call([*module_command("pip", "install", "--quiet", pin)], "install uv by other means, then try again")
    return [*module_command("uv")]


def _call(command: list[str], hint: str) -> None:
    """Run a command with its output on stderr. Raises CheckError when it fails, ConfigError when it is missing."""
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, env=uv_environment())
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is missing", hint=hint) from error
    except subprocess.CalledProcessError as error:
        raise CheckError(f"`{' '.join(command[:3])} …` failed with status {error.returncode}", hint=hint) from error
