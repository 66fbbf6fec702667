"""The kinds of difference; the files of one show its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster.errors import StorageError
from muster.models.lora import WEIGHTS_NAME
from muster.shardcast.delta.adapter import AdapterDifference
from muster.shardcast.delta.difference import Difference
from muster.shardcast.delta.frames import FrameDifference
from muster.shardcast.format.manifest import ADAPTER_FILES, FRAME_FILES

_KINDS: Final[Mapping[tuple[str, ...], type[FrameDifference | AdapterDifference]]] = {
    FRAME_FILES: FrameDifference,
    ADAPTER_FILES: AdapterDifference,
}
"""By the names of their files, in order."""


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
