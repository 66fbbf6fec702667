"""Build the package by setuptools, and refuse a wheel before `make setup` has built what belongs into one.

pyproject.toml names this module and no requirements: they are asked for here, once nothing is missing, so that a
refusal takes a second and no network. An editable install is never refused: set-up begins with one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.contracts.abi import CONTRACTS

REQUIREMENTS = ["setuptools>=80"]


def missing() -> list[str]:
    """Return what a wheel must hold and the current folder lacks, as patterns of paths."""
    packages = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    wanted = [f"{package}/{pattern}" for package, patterns in packages.items() for pattern in patterns]
    wanted += [f"muster/contracts/{module}.py" for module in CONTRACTS]
    return [pattern for pattern in wanted if not any(Path().glob(pattern))]


def _hook(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if not name.endswith("editable") and (lacks := missing()):
            raise SystemExit(f"run `make setup` first: it builds {', '.join(lacks)}, which a wheel must hold")
        if name.startswith("get_requires"):
            return REQUIREMENTS
        from setuptools import build_meta

        return getattr(build_meta, name)(*arguments, **options)

    return call


for _name in (
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
    "build_wheel",
    "get_requires_for_build_sdist",
    "build_sdist",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_editable",
    "build_editable",
):
    globals()[_name] = _hook(_name)
