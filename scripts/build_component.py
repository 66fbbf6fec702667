"""Build the component that scores: CPython, the packages of its requirements and `muster/sandbox/guest`, as one file.

    python scripts/build_component.py          # into muster/sandbox/built

A second build is another file (the interpreter's state is in it), so a component is named by its hash and distributed
like a model; nobody rebuilds one to join a run. What a run's owner built is what the run's terms name. Takes about a
minute, and needs a package index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "muster" / "sandbox" / "guest"
BUILT = ROOT / "muster" / "sandbox" / "built"


def build(folder: Path) -> Path:
    """Build into `folder`; return the component's path. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muster-component-") as temporary:
        library, output = Path(temporary) / "library", Path(temporary) / "scorer.wasm"
        # 1. The packages, as they are on the index: pure Python, no dependency that is not pinned.
        command = [tool("uv"), "pip", "install", "--quiet", "--target", library, "--no-deps", "--only-binary", ":all:"]
        run([*command, "--python", sys.executable, "--requirement", GUEST / "requirements.txt"])
        # 2. Import everything once inside WebAssembly and keep the state. WASI becomes traps: nothing is imported.
        command = [tool("componentize-py"), "--quiet", "--wit-path", GUEST, "--world", "scorer", "componentize"]
        run([*command, "guest", "-p", GUEST, "-p", library, "--stub-wasi", "--output", output])
        # 3. Keep it with its hash beside it.
        with output.open("rb") as stream:
            digest = "0x" + hashlib.file_digest(stream, "sha256").hexdigest()
        path = folder / "scorer.wasm"
        shutil.move(output, path)
        (folder / "scorer.sha256").write_text(digest + "\n")
    return path


def tool(name: str) -> Path:
    """Return a program of this environment."""
    return Path(sys.executable).parent / name


def run(command: list[str | Path]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, env=environment, timeout=900)


if __name__ == "__main__":
    print(build(BUILT))
