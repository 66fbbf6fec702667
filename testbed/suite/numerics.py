"""Undo what `muster.models.numerics.pin_numerics` does, to see who pins again."""

from __future__ import annotations

import torch


def unpin() -> None:
    """Allow float32 products to be computed in less, as a library might. Whoever calls this pins again."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
