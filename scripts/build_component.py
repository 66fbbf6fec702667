"""Build the component that scores: CPython, the packages of its requirements and `muster/sandbox/guest`, as one file.

    python scripts/build_component.py [FOLDER]     # into muster/sandbox/built

A second build gives a different file, since the interpreter's state is in it. So a component is named by its hash and
distributed like a model. A run's terms name the owner's build; members fetch it and never rebuild it. Takes about a
minute, and needs a package index.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow

from muster.runtime.files import write_durably
from muster.sandbox.component import BUILT, BUILT_NAME, HASH_NAME

ROOT = Path(__file__).resolve().parent.parent
GUEST = ROOT / "muster" / "sandbox" / "guest"
BUILDER = "componentize-py==0.25.1"

LEVEL = 6
"""Of zstd: a third of the size; 9 takes twice as long and saves a twentieth."""

NOT_IMPORTED = ("tests", "llama_index")
"""Folders of the packages from which nothing is imported: half of the files."""

NEWLINE = ord("\n")
SECONDS = 900
"""Longest that one step may take."""


def build(folder: Path) -> Path:
    """Build into `folder`; return the component's path. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="muster-component-") as temporary:
        environment, library, output = (Path(temporary) / name for name in ("venv", "library", "scorer.wasm"))
        # 1. The builder, in a fresh environment: it puts every installed package into the component.
        uv = Path(sys.executable).parent / "uv"
        run([uv, "venv", "--quiet", "--python", sys.executable, environment])
        run([uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", BUILDER])
        # 2. The pinned packages, without their documentation, which is half of their size.
        install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", library, "--no-deps"]
        run([*install, "--requirement", GUEST / "requirements.txt"])
        for path in library.rglob("*.py"):
            if not set(NOT_IMPORTED) & set(path.relative_to(library).parts):
                strip(path)
        # 3. Import everything once inside WebAssembly and keep the state. WASI becomes traps: nothing is imported.
        command = [environment / "bin" / "componentize-py", "--quiet", "--wit-path", GUEST, "--world", "scorer"]
        command += ["componentize", "guest", "-p", GUEST, "-p", library, "--stub-wasi", "--output", output]
        run(command)
        # 4. Pack it, and keep it with its hash beside it.
        packed = bytes(pyarrow.Codec("zstd", compression_level=LEVEL).compress(output.read_bytes(), asbytes=True))
        write_durably(folder / BUILT_NAME, packed)
        write_durably(folder / HASH_NAME, ("0x" + hashlib.sha256(packed).hexdigest() + "\n").encode())
    return folder / BUILT_NAME


def strip(path: Path) -> None:
    """Empty the docstrings of a module, where it can be parsed."""
    source = path.read_bytes()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    # Where each line begins: positions in the tree are a line and a byte in it.
    lines = [0, *(place + 1 for place, byte in enumerate(source) if byte == NEWLINE)]
    found = []
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[:1]:
                case [ast.Expr(value=ast.Constant(value=str()) as text)]:
                    assert text.end_lineno is not None
                    assert text.end_col_offset is not None
                    begin = lines[text.lineno - 1] + text.col_offset
                    found.append((begin, lines[text.end_lineno - 1] + text.end_col_offset))
    for begin, end in sorted(found, reverse=True):
        source = source[:begin] + b'""' + source[end:]
    path.unlink()  # it is a link into uv's cache, which every environment shares
    path.write_bytes(source)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it, at any depth: expressions, the most of a tree, hold none."""
    yield node
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, block, ()):
            yield from statements(inner)


def run(command: list[str | Path]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["RUST_BACKTRACE"] = "0"  # or what Python said is lost in it
    words = [str(word) for word in command]
    subprocess.run(words, check=True, stdout=sys.stderr, env=environment, timeout=SECONDS)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILT))
