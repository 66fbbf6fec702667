"""The processor: its name, and instructions that decide how fast, and in which order, matrix products are summed."""

from __future__ import annotations

import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")

FEATURES: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Flags of /proc/cpuinfo that matter, from the oldest to the newest."""


def processor_name(path: Path = CPUINFO) -> str:
    """Return what the processor calls itself; the kind of machine where the system does not say."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def read_features(path: Path = CPUINFO) -> tuple[str, ...]:
    """Return those of FEATURES that the processor has; none where the system does not say."""
    try:
        return features_in(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


def features_in(cpuinfo: str) -> tuple[str, ...]:
    """Return those of FEATURES that every processor in a /proc/cpuinfo has."""
    flags = [set(line.split()) for line in re.findall(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)]
    common = set.intersection(*flags) if flags else set()
    return tuple(name for name in FEATURES if name in common)


def replay_note(features: Collection[str], dtype: str) -> str:
    """Return what an operator should know about replays in a dtype on such a processor, or ""."""
    if dtype != "bfloat16" or "avx512f" in features:
        return ""
    return "bf16 replay on AVX2 takes 4 to 8 times as long"
