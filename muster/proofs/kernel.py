"""Handing arrays and tensors to a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Where a contiguous array's values are. It keeps the array: one that was only made to be handed over lives as long
    as the call."""
    return array.ctypes.data_as(ctypes.c_void_p)


def addresses(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Where each contiguous tensor's values are: uint64 [len(tensors)]."""
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.uint64)
