"""Components on this machine's disk: the one built here, those of runs, and their compiled forms.

A component is a WebAssembly file packed by zstd, named by the sha256 of the packed bytes and checked wherever it comes
from. Compiled, it is native code: this machine makes
its own, in a folder that only its user can reach, and never loads another's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pyarrow

from muster.constants import MAX_FILE_BYTES
from muster.errors import CheckError, ConfigError, MalformedError, MismatchError
from muster.runtime.files import cache_folder, locked, private_folder, sha256_of, write_durably
from muster.runtime.module_command import module_command
from muster.sandbox.walls import set_limit

BUILT: Final = Path(__file__).parent / "built"
"""Where scripts/build_component.py puts the one that it builds."""

BUILT_NAME: Final = "scorer.wasm.zst"
HASH_NAME: Final = "scorer.sha256"

MAX_COMPONENT_BYTES: Final = MAX_FILE_BYTES
"""As it is stored and sent: zstd."""
MAX_UNPACKED_BYTES: Final = 512 * 1024**2
COMPILE_SECONDS: Final = 600
"""CPU time of compiling a component, over all threads; ours takes about fifteen."""
COMPILE_MEMORY: Final = 12 * 1024**3
"""Address space of compiling one."""


@dataclass(frozen=True)
class Component:
    """A component whose bytes are those that its hash names."""

    hash: str
    """sha256 of the packed file, 0x and 64 hex digits."""
    path: Path


def local_component(folder: Path = BUILT) -> Component:
    """Return the component that was built on this machine. Raises ConfigError when there is none."""
    try:
        return Component((folder / HASH_NAME).read_text().strip(), folder / BUILT_NAME)
    except OSError as error:
        hint = "python scripts/build_component.py (make setup runs it); nodes of a run fetch the run's own"
        raise ConfigError(f"no scorer component in {folder}", hint=hint) from error


def find_component(name: str, folder: Path) -> Component:
    """Return the component of that hash: this machine's own, or the one kept in `folder`.

    Raises CheckError when neither is here, MismatchError when what is here is damaged.
    """
    candidates = [folder / name]
    if (BUILT / HASH_NAME).exists() and (built := local_component()).hash == name:
        candidates.insert(0, built.path)
    present = [path for path in candidates if path.exists()]
    for path in present:
        if "0x" + sha256_of(path) == name:
            return Component(name, path)
    if present:
        raise MismatchError(f"{present[0]} is not the component {name}", hint="delete it: it will be fetched again")
    raise CheckError(f"the scorer component {name} is not on this machine", hint="fetch it from the run's storage")


def keep_component(name: str, data: bytes, folder: Path) -> Component:
    """Check bytes from elsewhere against the hash and keep them. Raises MismatchError, MalformedError, StorageError."""
    if len(data) > MAX_COMPONENT_BYTES:
        raise MalformedError(f"a component of {len(data)} bytes; at most {MAX_COMPONENT_BYTES}")
    if (actual := "0x" + hashlib.sha256(data).hexdigest()) != name:
        raise MismatchError(f"a component {actual} came instead of {name}")
    path = folder / name
    write_durably(path, data)
    return Component(name, path)


# --- Compiled


def compiled(component: Component, folder: Path | None = None) -> Path:
    """Return the component's native code for this machine, compiled in a process with limits when it is not here yet.

    Several processes that want it at once compile it once. Raises CheckError when it cannot be compiled.
    """
    folder = private_folder(folder or cache_folder("components"))
    path = folder / f"{component.hash[2:]}-{platform.machine()}-wasmtime-{version('wasmtime')}.cwasm"
    if path.exists():
        return path
    with locked(folder / "lock"):
        if path.exists():
            return path
        temporary = path.with_suffix(f".{os.getpid()}")
        command = module_command("muster.sandbox.component", component.path, temporary)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise CheckError(f"compiling component {component.hash} took over {COMPILE_SECONDS} s") from error
        if done.returncode != 0:
            temporary.unlink(missing_ok=True)
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise CheckError(f"component {component.hash} cannot be compiled: {reason[0][:300]}")
        temporary.replace(path)
    return path


def compile_component(source: Path, target: Path) -> None:
    """Compile a component in this process, which limits itself first: the bytes may be a stranger's."""
    set_limit(resource.RLIMIT_AS, COMPILE_MEMORY)
    set_limit(resource.RLIMIT_CPU, COMPILE_SECONDS)
    set_limit(resource.RLIMIT_CORE, 0)
    from wasmtime.component import Component as Compiled

    from muster.sandbox.runtime import make_engine

    # An empty file that a power failure left would be taken for the component.
    write_durably(target, bytes(Compiled(make_engine(), unpack(source.read_bytes())).serialize()))


def unpack(data: bytes) -> bytes:
    """Return the WebAssembly of a component's packed bytes. Raises MalformedError above the bound or for no zstd."""
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "zstd") as stream:
            unpacked = stream.read(MAX_UNPACKED_BYTES + 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise MalformedError(f"a component that is not packed by zstd: {error}") from error
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise MalformedError(f"a component of more than {MAX_UNPACKED_BYTES} bytes")
    return unpacked


if __name__ == "__main__":
    compile_component(Path(sys.argv[1]), Path(sys.argv[2]))
