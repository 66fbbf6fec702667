"""Build the component that scores: CPython, the packages of its requirements and `muster/sandbox/guest`, as one file.

    python scripts/build_component.py          # into muster/sandbox/built

A second build is another file (the interpreter's state is in it), so a component is named by its hash and distributed
like a model; nobody rebuilds one to join a run. What a run's owner built is what the run's terms name. Takes about a
minute, and needs a package index.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow

from muster.runtime.files import write_durably
from muster.sandbox.component import BUILT, BUILT_NAME, HASH_NAME

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "muster" / "sandbox" / "guest"

LEVEL = 9
"""Of zstd: a third of the size; more takes a minute and saves a tenth."""


def build(folder: Path) -> Path:
    """Build into `folder`; return the component's path. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muster-component-") as temporary:
        library, output = Path(temporary) / "library", Path(temporary) / "scorer.wasm"
        # 1. The packages, as they are on the index: pure Python, no dependency that is not pinned.
        command = [tool("uv"), "pip", "install", "--quiet", "--target", library, "--no-deps"]
        run([*command, "--python", sys.executable, "--requirement", GUEST / "requirements.txt"])
        # 2. Import everything once inside WebAssembly and keep the state. WASI becomes traps: nothing is imported.
        command = [tool("componentize-py"), "--quiet", "--wit-path", GUEST, "--world", "scorer", "componentize"]
        run([*command, "guest", "-p", GUEST, "-p", library, "--stub-wasi", "--output", output])
        # 3. Pack it, and keep it with its hash beside it.
        packed = bytes(pyarrow.Codec("zstd", compression_level=LEVEL).compress(output.read_bytes(), asbytes=True))
        write_durably(folder / BUILT_NAME, packed)
        write_durably(folder / HASH_NAME, ("0x" + hashlib.sha256(packed).hexdigest() + "\n").encode())
    return folder / BUILT_NAME


def tool(name: str) -> Path:
    """Return a program of this environment."""
    return Path(sys.executable).parent / name


def run(command: list[str | Path]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["RUST_BACKTRACE"] = "0"  # or what Python said is lost in it
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, env=environment, timeout=900)


if __name__ == "__main__":
    print(build(BUILT))
