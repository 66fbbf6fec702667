"""How every process computes float32: in float32. And on which device.

PyTorch and cuDNN may multiply float32 matrices in TF32 or bfloat16, by settings that any library may change. A worker
that did would fail a float32 profile's limits, and a validator would reject honest work. So the engine, the replay and
the trainer call `pin_numerics` where they begin to compute. It covers matrix products and convolutions; attention
kernels of GPUs are beyond it, which is why profiles say on which devices they hold (`muster.verification.devices`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch

from muster.errors import MusterError
from muster.runtime.processor import processor_name


def pin_numerics() -> None:
    """Compute float32 products in full precision from now on, in this process. Cheap: call it before every computation.

    Raises MusterError when that is not in force afterwards.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if not numerics_pinned():
        raise MusterError(
            "torch does not compute float32 products in full precision, although it is set to",
            hint="does a plugin or sitecustomize set torch.backends…fp32_precision? remove it",
        )


def numerics_pinned() -> bool:
    """Return whether float32 products are computed in full precision in this process."""
    try:
        return (
            torch.get_float32_matmul_precision() == "highest"
            and not torch.backends.cuda.matmul.allow_tf32
            and not torch.backends.cudnn.allow_tf32
        )
    except RuntimeError:  # torch's older and newer settings contradict each other
        return False


def device_kind() -> str:
    """Return the kind of device that an engine started here computes on: `cuda` or `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


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
