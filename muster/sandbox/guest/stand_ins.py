"""Modules that libraries look for and a component lacks. What uses more of them than stands here, raises.

`ctypes`: sympy asks for the size of a long. `numpy`: four of reasoning-gym's scorers import it and call at most
`isclose` on two numbers.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def _install(name: str, **names: Any) -> None:
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__dict__.update(names)
        sys.modules[name] = module


def isclose(a: float, b: float, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Return what `numpy.isclose` returns for two finite numbers: |a − b| ≤ atol + rtol · |b|."""
    return abs(a - b) <= atol + rtol * abs(b)


class _Long:
    """ctypes.c_long: four bytes in WebAssembly."""


class _Array:
    """numpy.ndarray, as the type of a parameter only."""


_install("ctypes", c_long=_Long, sizeof=lambda kind: 4)
_install("numpy", ndarray=_Array, isclose=isclose)
