"""Run a small export program beside a third-party package, in a separate environment that uv makes.

The author of a task set runs this once, on their machine. A package such as `verifiers` needs other versions than
Muster, and importing a stranger's package runs it, so it never enters a process of ours. The program writes JSON Lines
to stdout, bounded in size and time and read by a schema. A worker or validator never gets here.

It is a process and no sandbox: the package can do what you can do. Settings and secrets of Muster are not passed on.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from muster.errors import ConfigError, MalformedError, StorageError, UnreachableError
from muster.runtime.files import cache_folder
from muster.sandbox.component import locked

EXPORTERS: Final = Path(__file__).resolve().parent / "exporters"

MAX_EXPORT_BYTES: Final = 4 * 1024**3
MAX_ABOUT_BYTES: Final = 1024**2
"""Of the first line."""
INSTALL_SECONDS: Final = 900
EXPORT_SECONDS: Final = 3600
_CHUNK: Final = 1 << 20
_TAIL: Final = 2000

_KEPT_OUT: Final = ("MUSTER_", "PYTHON", "VIRTUAL_ENV", "UV_PROJECT")
"""Beginnings of the names of environment variables that are not passed on."""


def environments_folder() -> Path:
    """Return where environments are kept, from one import to the next."""
    return cache_folder("environments")


def own_environment(requirements: Sequence[str], cache: Path) -> Path:
    """Return the Python of an environment with these requirements and nothing else; make it unless it is there.

    A folder among them is copied and installed as it is now. Raises ConfigError without uv, UnreachableError when uv
    fails.
    """
    # 1. One folder per list of requirements; of a local package its content counts.
    key = hashlib.sha256(json.dumps([sys.version, *map(_identity, requirements)]).encode()).hexdigest()[:20]
    folder = cache / key
    if (folder / "ready").exists():
        return folder / "bin" / "python"

    # 2. uv finds links relative to a virtual environment: it is made where it stays, and marked at its end.
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise ConfigError("uv is not here, which makes the package's environment", hint="pip install uv")
    python = folder / "bin" / "python"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{key}.lock"):
            if (folder / "ready").exists():
                return python  # another process has made it meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            _uv([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], requirements)
            with tempfile.TemporaryDirectory(prefix="muster-package-") as copies:
                install = [uv, "pip", "install", "--quiet", "--python", str(python)]
                _uv([*install, *(_copied(one, Path(copies)) for one in requirements)], requirements)
            (folder / "ready").touch()
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
    return python


def _identity(requirement: str) -> list[str]:
    folder = Path(requirement)
    if not folder.is_dir():
        return [requirement]
    with tempfile.TemporaryDirectory(prefix="muster-copies-") as copies:
        copy = Path(_copied(requirement, Path(copies)))
        files = sorted(file for file in copy.rglob("*") if file.is_file())
        return [f"{file.relative_to(copy)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def _copied(requirement: str, copies: Path) -> str:
    """Copy a folder without what was built in it, since building would write there; return other requirements."""
    if not Path(requirement).is_dir():
        return requirement
    ignored = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".*")
    return str(shutil.copytree(requirement, copies / Path(requirement).resolve().name, ignore=ignored))


def _uv(command: list[str], requirements: Sequence[str]) -> None:
    try:
        code, said = _follow(command, INSTALL_SECONDS, lambda _: None)
    except TimeoutError as error:
        raise UnreachableError(f"uv takes longer than {INSTALL_SECONDS} seconds", hint="try again") from error
    if code != 0:
        raise UnreachableError(
            f"uv cannot install {', '.join(requirements)}: {said}", hint="is the name right, and the index reachable?"
        )


@contextmanager
def exported(python: Path, program: str, order: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run an export program; yield what its first line says, and a file with the lines after it, until left.

    Raises MalformedError when it fails, says no JSON object, or more or for longer than it may.
    """
    with tempfile.TemporaryDirectory(prefix="muster-export-") as folder:
        rows = Path(folder) / "rows.jsonl"
        first = _run([str(python), "-I", str(EXPORTERS / program), json.dumps(order)], Path(folder), rows)
        try:
            about = from_json(first)
        except ValueError as error:
            raise MalformedError(f"{program} begins with a line that is no JSON: {first[:80]!r}") from error
        if not isinstance(about, dict):
            raise MalformedError(f"{program} begins with a line that is no JSON object: {first[:80]!r}")
        yield about, rows


def _run(command: list[str], folder: Path, rows: Path) -> bytes:
    """Run a command, write its stdout after the first line to `rows`, and return that line."""
    first, size = bytearray(), 0
    with rows.open("wb") as file:

        def take(chunk: bytes) -> None:
            nonlocal size
            if not first.endswith(b"\n"):
                line, mark, chunk = chunk.partition(b"\n")
                first.extend(line + mark)
                if len(first) > MAX_ABOUT_BYTES:
                    raise MalformedError(f"the first line of the export has more than {MAX_ABOUT_BYTES} bytes")
            # What reads rows knows other files by their beginning: Parquet, gzip and lists, which are for our own.
            if not size and chunk and not chunk.startswith(b"{"):
                raise MalformedError(f"the export goes on with something else than JSON objects: {chunk[:80]!r}")
            size += len(chunk)
            if size > MAX_EXPORT_BYTES:
                raise MalformedError(f"the export has more than {MAX_EXPORT_BYTES} bytes", hint="give --count")
            file.write(chunk)

        try:
            code, said = _follow(command, EXPORT_SECONDS, take, folder)
        except TimeoutError as error:
            raise MalformedError(
                f"the export took longer than {EXPORT_SECONDS} seconds", hint="give a smaller --count"
            ) from error
    if code != 0:
        raise MalformedError(f"the export ended with {code}: {said or 'it said nothing'}")
    return bytes(first)


def _follow(
    command: list[str], seconds: float, take: Callable[[bytes], None], folder: Path | None = None
) -> tuple[int, str]:
    """Run a command and hand over its output until every writer has closed it.

    Return its exit status and the last bytes of stderr. Raises TimeoutError at the deadline, even if a process that it
    started has left its session and still holds the output.
    """
    deadline, said = time.monotonic() + seconds, b""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_OUT)}
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
            env=variables, start_new_session=True, bufsize=0,
        ) as process,
        selectors.DefaultSelector() as selector,
    ):  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        try:
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if time.monotonic() >= deadline:
                    raise TimeoutError
                for key, _ in ready:
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fd == process.stdout.fileno():
                        take(chunk)
                    else:
                        said = (said + chunk)[-_TAIL:]
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise TimeoutError from error
        finally:
            _kill(process)
    return code, said.decode(errors="replace").strip()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
