"""Tests that need a GPU say so by one mark."""

from __future__ import annotations

from typing import Final

import pytest
import torch

needs_gpu: Final = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no GPU; on a machine with one: pytest tests/gpu"
)
