"""Modules that libraries look for and a component lacks. What uses more of them than stands here, raises.

`ctypes` is for sympy, which asks for the size of a long. `numpy` is for four of reasoning-gym's scorers, which call at
most `isclose` on two numbers: it may be there only while they are imported, or sympy takes it for the real one.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any


def isclose(a: float, b: float, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Return what `numpy.isclose` returns for two finite numbers: |a − b| ≤ atol + rtol · |b|."""
    return abs(a - b) <= atol + rtol * abs(b)


class _Long:
    """ctypes.c_long: four bytes in WebAssembly."""


class _Array:
    """numpy.ndarray, as the type of a parameter only."""


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    return module


def put(name: str, **names: Any) -> None:
    """Put a module with these names in the place of one that is not to be imported."""
    sys.modules[name] = _module(name, **names)


@contextlib.contextmanager
def numpy() -> Iterator[None]:
    """Let `import numpy` find the stand-in within the block, and nothing afterwards."""
    put("numpy", ndarray=_Array, isclose=isclose)
    try:
        yield
    finally:
        sys.modules["numpy"] = None  # type: ignore[assignment]


def seal() -> None:
    """Make every import of what is not there yet raise ModuleNotFoundError. To be called once all is imported.

    Otherwise it would look for a file, which ends the instance.
    """
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()


sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
sys.modules.setdefault("ctypes", _module("ctypes", c_long=_Long, sizeof=lambda kind: 4))
