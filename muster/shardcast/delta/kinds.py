"""The kinds of difference; the files of one show its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster.errors import MalformedError, StorageError
from muster.models.lora import CONFIG_NAME, WEIGHTS_NAME
from muster.shardcast.delta.adapter import AdapterDifference
from muster.shardcast.delta.difference import TARGET_NAME, Difference
from muster.shardcast.delta.frames import FRAMES_NAME, FrameDifference
from muster.shardcast.format.manifest import Manifest

_KINDS: Final[Mapping[tuple[str, ...], type[FrameDifference | AdapterDifference]]] = {
    (FRAMES_NAME, TARGET_NAME): FrameDifference,
    (CONFIG_NAME, WEIGHTS_NAME, TARGET_NAME): AdapterDifference,
}
"""By the names of their files, in order."""


def check_files(manifest: Manifest) -> None:
    """Raise MalformedError for a manifest that does not name the files of a difference."""
    if tuple(file.name for file in manifest.files) not in _KINDS:
        raise MalformedError(f"{manifest.id} holds other files than a difference")


def is_adapter(version: Path) -> bool:
    """Return whether a difference on disk is one that a run's steps keep being made of, all out of the same base."""
    return (version / WEIGHTS_NAME).exists()


def open_difference(version: Path, root: bytes | None = None) -> Difference:
    """Open a difference on disk, whichever it is. root: of the step that it must make.

    Raises MismatchError when it makes another, StorageError when a file cannot be read, MalformedError when one is not
    as it should be.
    """
    for names, kind in _KINDS.items():
        if all((version / name).exists() for name in names):
            return kind(version, root)
    raise StorageError(f"{version} holds no difference")
