"""How every process computes float32: in float32. And on which kind of device.

PyTorch and cuDNN may multiply float32 matrices in TF32 or bfloat16, by settings that any library may change. A worker
that did would fail a float32 profile's limits, and a validator would reject honest work. So the engine, the replay and
the trainer call `pin_numerics` where they begin to compute. It covers matrix products and convolutions; attention
kernels of GPUs are beyond it, which is why profiles say on which devices they hold (`muster.verification.devices`).
"""

from __future__ import annotations

import torch

from muster.errors import MusterError


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
