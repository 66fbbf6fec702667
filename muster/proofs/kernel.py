"""Pass arrays and tensors to a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of a contiguous array's values.

    It holds a reference to the array: a temporary one is not freed before the call ends.
    """
    return array.ctypes.data_as(ctypes.c_void_p)


def addresses(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the address of each contiguous tensor's values: uint64 [len(tensors)]."""
    return np.array([tensor.data_ptr() for tensor in tensors], dtype=np.uint64)
