"""The processor's instructions that decide how fast, and in which order, matrix products are summed."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

FEATURES: Final = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Flags of /proc/cpuinfo that matter, from the oldest to the newest."""


def read_features(path: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
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
