"""Compiled inner loops: one C file each, built at set-up where there is a compiler, done without where there is none.

    kernel = load("sampler")          # None: use the portable code instead
    kernel.noised_argmax(...)

Every kernel has a portable twin in Python that gives the same results, against which it is tested; MUSTER_NATIVE=0
turns kernels off. Libraries are named by a hash of source, flags and processor, so that one built for another machine
is never loaded. `python -m muster.proofs.native` builds what is missing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
BUILT: Final = FOLDER / "built"
FLAGS: Final = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Werror",
)
BUILD_SECONDS: Final = 120


def sources() -> list[str]:
    """Return the names of all kernels."""
    return sorted(path.stem for path in FOLDER.glob("*.c"))


@cache
def load(name: str) -> ctypes.CDLL | None:
    """Load the kernel's library; return None where it was not built for this machine or is turned off."""
    path = _library(name)
    if os.environ.get("MUSTER_NATIVE") == "0" or not path.is_file():
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # half-copied, or of another system: the portable code is right everywhere
        return None


def compiler() -> str | None:
    """Path of the C compiler ($CC, or cc), if there is one."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(name: str) -> Path:
    """Compile a kernel, unless that was done. Raises CalledProcessError with the compiler's words in `stderr`."""
    target, cc = _library(name), compiler()
    if cc is None:
        raise FileNotFoundError("no C compiler")
    if target.is_file():
        return target
    BUILT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        made = Path(folder) / target.name
        command = [cc, *FLAGS, "-shared", "-fPIC", "-o", str(made), str(FOLDER / f"{name}.c"), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
        made.replace(target)
    return target


def _library(name: str) -> Path:
    digest = hashlib.sha256((FOLDER / f"{name}.c").read_bytes())
    digest.update(repr((FLAGS, _processor())).encode())
    return BUILT / f"{name}-{digest.hexdigest()[:16]}.so"


@cache
def _processor() -> str:
    """Return the processor's features: code compiled for others could end with an illegal instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = (line for line in lines if line.startswith(("flags", "Features", "model name")))
    return "\n".join([platform.machine(), *sorted(set(told))])
