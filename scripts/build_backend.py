"""Build the package by setuptools, and refuse a wheel before `make setup` has built what belongs into one.

pyproject.toml names this module and no requirements: they are asked for here, once nothing is missing, so that a
refusal takes a second and no network. An editable install is never refused: set-up begins with one. With
SOURCE_DATE_EPOCH the same files make the same bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.contracts.abi import CONTRACTS

REQUIREMENTS = ["setuptools>=80"]


def missing() -> list[str]:
    """Return the paths, as patterns, that a wheel must hold and the current folder lacks."""
    packages = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    wanted = [f"{package}/{pattern}" for package, patterns in packages.items() for pattern in patterns]
    wanted += [f"muster/contracts/{module}.py" for module in CONTRACTS]
    return [pattern for pattern in wanted if not any(Path().glob(pattern))]


def settle(path: Path, epoch: int) -> None:
    """Rewrite a source distribution with one time and no owner for all entries: same content, same bytes."""
    with tarfile.open(path) as archive:
        entries = [(one, archive.extractfile(one)) for one in sorted(archive.getmembers(), key=lambda one: one.name)]
        with io.BytesIO() as buffer:
            with (
                gzip.GzipFile("", "wb", mtime=epoch, fileobj=buffer) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as settled,
            ):
                for entry, content in entries:
                    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
                    entry.mode, entry.pax_headers = 0o755 if entry.isdir() else 0o644, {}
                    settled.addfile(entry, content)
            data = buffer.getvalue()
    path.write_bytes(data)


def _hook(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if not name.endswith("editable") and (lacks := missing()):
            raise SystemExit(f"run `make setup` first: it builds {', '.join(lacks)}, which a wheel must hold")
        if name.startswith("get_requires"):
            return REQUIREMENTS
        from setuptools import build_meta

        made = getattr(build_meta, name)(*arguments, **options)
        if name == "build_sdist" and (epoch := os.environ.get("SOURCE_DATE_EPOCH")):
            settle(Path(arguments[0]) / made, int(epoch))
        return made

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
