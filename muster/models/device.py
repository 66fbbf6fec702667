"""What an engine computes on, by the name that its maker gave it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch

from muster.runtime.processor import processor_name

DRIVER: Final = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver lists the GPUs."""


def device_name(driver: Path = DRIVER) -> str:
    """Return the name of the GPU that an engine started here computes on, or of the processor where there is none.

    CUDA is not initialised for it: that takes memory of the GPU, and an engine of several processes may not fork after
    it. Until the engine has done so, the first GPU that the driver lists stands for it.
    """
    if not torch.cuda.is_available():
        return processor_name()
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    return listed_gpu(driver) or "GPU"


def listed_gpu(driver: Path) -> str:
    """Return the model of the first GPU that the driver lists; "" where it lists none."""
    for path in sorted(driver.glob("*/information")):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if found := re.search(r"^Model:[ \t]*(\S.*)$", text, re.MULTILINE):
            return found[1].strip()
    return ""
