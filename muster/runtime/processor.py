"""What the processor can do: what the chip has, and what torch uses of it, which is less where an emulation says so.

`read_features` is about the chip. `used_features` is about torch: it decides how models multiply, so measurements are
named by it. torch is imported late, since processes without it read the chip's name.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")

FEATURES: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Flags of /proc/cpuinfo that matter, from the oldest to the newest."""

EMULATIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {"AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
    if platform.machine() in ("x86_64", "AMD64")
    else {}
)
"""By name: variables for a process that is to compute as an older processor does. A running process cannot change."""

_OLD: Final = ("DEFAULT", "NO AVX", "AVX2")
"""What torch calls an x86 processor that it uses no AVX-512 of."""


def processor_name(path: Path = CPUINFO) -> str:
    """Return what the processor calls itself; the kind of machine where the system does not say."""
    found = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", _read(path), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def read_features(path: Path = CPUINFO) -> tuple[str, ...]:
    """Return those of FEATURES that every processor of the machine has; none where the system does not say."""
    flags = [set(line.split()) for line in re.findall(r"^flags\s*:(.*)$", _read(path), re.MULTILINE)]
    common = set.intersection(*flags) if flags else set()
    return tuple(name for name in FEATURES if name in common)


def used_features(path: Path = CPUINFO) -> tuple[str, ...]:
    """Return those of the chip's features that torch uses."""
    return tuple(name for name in read_features(path) if name == "avx2" or not lacks_bfloat16())


def lacks_bfloat16() -> bool:
    """Return whether torch multiplies bfloat16 as on x86 without AVX-512: number by number, in software."""
    import torch

    return bool(EMULATIONS) and torch.backends.cpu.get_cpu_capability() in _OLD


def limit_vllm() -> None:
    """Make vLLM use no instructions that torch does not use. Call it before anything imports vLLM.

    vLLM asks `torch.cpu`, which tells of the chip whatever is emulated.
    """
    if not lacks_bfloat16():
        return
    import torch

    newer = ("avx512", "avx10", "amx")
    known = {name: not name.startswith(newer) and has for name, has in torch.cpu.get_capabilities().items()}
    torch.cpu.get_capabilities = lambda: MappingProxyType(known)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
