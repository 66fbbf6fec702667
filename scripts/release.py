"""Make a release: the same bytes each time, tried in environments that hold nothing else.

    python scripts/release.py [--out dist] [--quick]       # make release

The package is built twice, its wheel from the source distribution and from this folder: all must be equal. Then each
install that docs/use/tour.md names is made in an empty environment, and its commands are typed in a folder that holds
another project's `worker/` and `trainer.py`. `--quick` leaves out the worker, whose engine takes gigabytes. Prints at
the end the files with their hashes, and what to upload.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.set_up import PINS, PYTHON, ROOT, VENV, uv_environment

UV = VENV / "bin" / "uv"
SECONDS = 1_800
"""Longest that one command may take."""

TYPED: dict[str, tuple[tuple[Sequence[str], int], ...]] = {
    "": (
        (("muster", "--version"), 0),
        (("muster", "--help"), 0),
        (("muster", "doctor", "--json"), 3),
        (("muster", "tasks", "make", "tasks", "--train", "64", "--held-out", "16"), 0),
        (("muster", "slash", "verify", "1"), 78),
        (("muster", "wallet", "show", "missing"), 78),
    ),
    "validator": ((("muster", "setup", "validator"), 0), (("python", "-P", "-m", "validator", "--help"), 0)),
    "worker": (
        (("muster", "setup", "worker"), 0),
        (("muster", "swarm", "demo", "--steps", "2", "--report", "report.html"), 0),
    ),
}
"""By install: commands, and the status that each must end with. A doctor without a run finds something missing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--quick", action="store_true", help="leave out the worker's engine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-release-") as name:
        scratch = Path(name)
        # 1. The files, twice.
        made = build(options.out, scratch / "again")
        say(f"built {', '.join(path.name for path in made)}, twice the same bytes")

        # 2. Each install.
        wheel = next(path for path in made if path.suffix == ".whl")
        kinds = [kind for kind in TYPED if not (options.quick and kind == "worker")]
        typed = [one for kind in kinds for one in try_install(kind, wheel, scratch / (kind or "plain"))]
        typed.append(resolve_gpu(wheel, scratch / "plain" / "environment"))
        failed = [one for one in typed if not one.is_right]

    # 3. What there is.
    for path in made:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}  {path.stat().st_size:,} bytes")
    print(f"{len(zipfile.ZipFile(wheel).namelist())} files in the wheel; unzip -l {wheel.name} lists them")
    if failed:
        print("\n".join(["failed:", *map(str, failed)]), file=sys.stderr)
        return 1
    print("attach both to the tag, with their hashes: docs/change/release.md")
    return 0


def build(out: Path, again: Path) -> list[Path]:
    """Build the package into `out`, once more, and the wheel alone. Raises SystemExit where they differ."""
    commit = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    epoch = subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip()
    environment = uv_environment() | {"SOURCE_DATE_EPOCH": epoch}
    out.mkdir(parents=True, exist_ok=True)
    for folder, kind in ((out, ()), (again, ()), (again / "wheel", ("--wheel",))):
        command = [UV, "build", "--quiet", "--no-build-isolation", "--python", PYTHON, *kind, "--out-dir", folder, ROOT]
        subprocess.run([str(word) for word in command], check=True, env=environment, timeout=SECONDS)
    made = sorted(path for path in out.iterdir() if path.name.startswith("muster-"))
    for other in [path for path in again.rglob("muster-*") if path.is_file()]:
        if other.read_bytes() != (out / other.name).read_bytes():
            raise SystemExit(f"{other.relative_to(again)} differs from {out / other.name}: the build is not repeatable")
    return made


@dataclass(frozen=True)
class Tried:
    """A command that was typed, and how it ended."""

    kind: str
    command: str
    status: int
    expected: int
    said: str

    @property
    def is_right(self) -> bool:
        return self.status == self.expected and "Traceback" not in self.said

    def __str__(self) -> str:
        return f"{self.kind or 'plain'}: {self.command}: {self.status}, not {self.expected}\n{self.said[-2_000:]}"


def try_install(kind: str, wheel: Path, folder: Path) -> list[Tried]:
    """Install the wheel into an empty environment in `folder`, and type its commands.

    Raises CalledProcessError where it cannot be installed.
    """
    # 1. An environment, and a folder with another project's Python.
    environment, work = folder / "environment", folder / "work"
    (work / "worker").mkdir(parents=True)
    for name in ("worker/__init__.py", "trainer.py", "muster.py"):
        (work / name).write_text("raise ImportError('this is somebody else')\n")
    call = [UV, "venv", "--quiet", "--seed", "--python", PYTHON, environment]
    subprocess.run([str(word) for word in call], check=True, timeout=SECONDS)
    programs = environment / "bin"
    call = [UV, "pip", "install", "--quiet", "--python", programs / "python", *pinned("cpu"), wheel]
    subprocess.run([str(word) for word in call], check=True, env=uv_environment(), timeout=SECONDS)

    # 2. Its commands, in a separate home.
    places = {"HOME": str(folder / "home"), "PATH": f"{programs}:{ROOT / 'node_modules' / '.bin'}:/usr/bin:/bin"}
    own = ("HOME", "MUSTER_", "PATH", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return [_tried(kind, words, status, work, kept | places) for words, status in TYPED[kind]]


def resolve_gpu(wheel: Path, environment: Path) -> Tried:
    """Let uv resolve the engine for a GPU, without installing it."""
    python = environment / "bin" / "python"
    words = [UV, "pip", "install", "--dry-run", "--python", python, *pinned("gpu"), f"{wheel}[gpu]"]
    return _tried("gpu", [str(word) for word in words], 0, environment, uv_environment())


def pinned(engine: str) -> list[Path | str]:
    """Return uv's options for the versions and overrides of an engine."""
    pins = ROOT / PINS
    own = ["--overrides", pins / "overrides-cpu.txt"] if engine == "cpu" else []
    return ["--constraints", pins / "constraints.txt", "--overrides", pins / "overrides.txt", *own]


def _tried(kind: str, words: Sequence[str], status: int, folder: Path, environment: Mapping[str, str]) -> Tried:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    command = " ".join(Path(word).name if os.sep in word else word for word in words)
    say(f"{kind or 'plain'}: {command} ended with {done.returncode}")
    return Tried(kind, command, done.returncode, status, done.stderr)


def say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
