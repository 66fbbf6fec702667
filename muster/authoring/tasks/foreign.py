"""Run a small export program beside a third-party package, in a separate environment that uv makes.

The author of a task set runs this once, on their machine. A package such as `reasoning-gym` needs other versions than
Muster, so it never enters a process of ours. Its version is pinned. The program writes JSON Lines to stdout. A worker
or validator never gets here. Settings and secrets of Muster are not passed on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from muster.errors import ConfigError, MalformedError, StorageError, UnreachableError
from muster.sandbox.component import locked

EXPORTERS: Final = Path(__file__).resolve().parent / "exporters"

INSTALL_SECONDS: Final = 900
EXPORT_SECONDS: Final = 3600
_TAIL: Final = 2000

_KEPT_OUT: Final = ("MUSTER_", "PYTHON", "VIRTUAL_ENV", "UV_PROJECT")
"""Beginnings of the names of environment variables that are not passed on."""


def own_environment(requirements: Sequence[str], cache: Path) -> Path:
    """Return the Python of an environment with these requirements and nothing else; make it unless it is there.

    Raises ConfigError without uv, UnreachableError when uv fails.
    """
    # 1. One folder per list of requirements.
    key = hashlib.sha256(json.dumps([sys.version, *requirements]).encode()).hexdigest()[:20]
    folder = cache / key
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python

    # 2. uv finds links relative to a virtual environment: it is made where it stays, and marked at its end.
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise ConfigError("uv is not here, which makes the package's environment", hint="pip install uv")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{key}.lock"):
            if (folder / "ready").exists():
                return python  # another process has made it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            _uv([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], requirements)
            _uv([uv, "pip", "install", "--quiet", "--python", str(python), *requirements], requirements)
            (folder / "ready").touch()
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
    return python


def _uv(command: list[str], requirements: Sequence[str]) -> None:
    try:
        code, said = _run(command, INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"uv takes longer than {INSTALL_SECONDS} seconds", hint="try again") from error
    if code != 0:
        raise UnreachableError(
            f"uv cannot install {', '.join(requirements)}: {said}", hint="is the name right, and the index reachable?"
        )


@contextmanager
def exported(python: Path, program: str, order: Mapping[str, Any]) -> Iterator[Path]:
    """Run an export program; yield a file with the lines that it wrote, until left.

    Raises MalformedError when it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="muster-export-") as folder:
        rows = Path(folder) / "rows.jsonl"
        command = [str(python), "-I", str(EXPORTERS / program), json.dumps(order)]
        try:
            with rows.open("wb") as file:
                code, said = _run(command, EXPORT_SECONDS, file)
        except subprocess.TimeoutExpired as error:
            raise MalformedError(
                f"the export took longer than {EXPORT_SECONDS} seconds", hint="give a smaller --count"
            ) from error
        if code != 0:
            raise MalformedError(f"the export ended with {code}: {said or 'it said nothing'}")
        yield rows


def _run(command: list[str], seconds: float, output: BinaryIO | None = None) -> tuple[int, str]:
    """Run a command; return its exit status and the last bytes of stderr. Raises TimeoutExpired."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_OUT)}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=output or subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables,
        timeout=seconds,
    )  # fmt: skip
    return done.returncode, done.stderr[-_TAIL:].decode(errors="replace").strip()
