"""Compiled inner loops: one C file each, built where there is a compiler, done without where there is none.

    kernel = load("sampler")          # None: use the portable code instead
    kernel.noised_argmax(...)

Every kernel has a portable twin in Python that gives the same results, against which it is tested; MUSTER_NATIVE=0
turns kernels off. The first process that wants one builds it, within two seconds, into the user's cache. Libraries are
named by a hash of source, flags and processor, so that one built for another machine is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from muster.errors import ConfigError
from muster.runtime.files import cache_folder, locked, private_folder

FOLDER: Final = Path(__file__).parent
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
    return sorted(path.stem for path in FOLDER.glob("*.c"))


@cache
def load(name: str) -> ctypes.CDLL | None:
    """Load the kernel's library, built first if need be; return None where it cannot be built or is turned off."""
    if os.environ.get("MUSTER_NATIVE") == "0":
        return None
    with suppress(OSError, subprocess.SubprocessError, ConfigError):  # the portable code is right everywhere
        return ctypes.CDLL(str(build(name)))
    return None


def compiler() -> str | None:
    """Path of the C compiler ($CC, or cc), if there is one."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(name: str) -> Path:
    """Compile a kernel, unless that was done; return its library.

    Raises CalledProcessError with the compiler's words in `stderr`, TimeoutExpired, FileNotFoundError without a
    compiler, and as `private_folder`.
    """
    built = private_folder(cache_folder("kernels"))
    target, cc = built / _library(name), compiler()
    if target.is_file():
        return target
    if cc is None:
        raise FileNotFoundError("no C compiler")
    with locked(built / "lock"), tempfile.TemporaryDirectory(dir=built) as folder:
        if target.is_file():
            return target
        made = Path(folder) / target.name
        command = [cc, *FLAGS, "-shared", "-fPIC", "-o", str(made), str(FOLDER / f"{name}.c"), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS)
        made.replace(target)
    return target


def _library(name: str) -> str:
    """Return the file name of a kernel's library for this machine."""
    digest = hashlib.sha256((FOLDER / f"{name}.c").read_bytes())
    digest.update(repr((FLAGS, _processor())).encode())
    return f"{name}-{digest.hexdigest()[:16]}.so"


@cache
def _processor() -> str:
    """Return the processor's features: code compiled for others could end with an illegal instruction."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = (line for line in lines if line.startswith(("flags", "Features", "model name")))
    return "\n".join([platform.machine(), *sorted(set(features))])
