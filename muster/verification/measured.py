"""Measured honest work in files: all that limits follow from, of every token and row of one cell, without a model.

A file is NumPy's own format without pickled objects. Pure but for reading and writing.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from muster.errors import MalformedError
from muster.rollouts.schema import Rollout
from muster.runtime.files import write_durably
from muster.verification.look import LookSeeds
from muster.verification.statistics import TokenErrors

_ARRAYS: Final = ("gaps", "claimed", "logprobs", "states", "gap_scales", "logprob_scales", "magnitudes")
LOOK: Final = LookSeeds("0x" + bytes(20).hex(), bytes(32), bytes(32), "0x" + bytes(20).hex(), 0, bytes(32))
"""Seeds of the numbers that cells hold."""
_NAMES: Final = ("profile", "model", "cell")
_BROKEN: Final = (
    AttributeError,
    EOFError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy raises for a file that is damaged or in another format."""


@dataclass(frozen=True, eq=False)
class MeasuredCell:
    """What one way of running one model under one profile came to."""

    profile: str
    model: str
    cell: str
    large: bool
    """Whether the model counts as a large one."""
    rows: Sequence[TokenErrors]
    distinct: int
    """How many of the rows differ in prompt or completion."""
    looks: np.ndarray | None = None
    """Under LOOK's seeds, this machine's and then a perturbed one's, where computed: float32 [2, rows, 2, K]."""

    @property
    def tokens(self) -> int:
        return sum(len(row.gaps) for row in self.rows)

    def to_bytes(self) -> bytes:
        """Return the cell's file."""
        about = {name: getattr(self, name) for name in _NAMES} | {"large": self.large, "distinct": self.distinct}
        arrays = {name: np.concatenate([getattr(row, name) for row in self.rows]) for name in _ARRAYS}
        lengths = np.array([len(row.gaps) for row in self.rows], dtype=np.int64)
        file = io.BytesIO()
        parts = {"about": np.array(json.dumps(about)), "lengths": lengths, **arrays}
        if self.looks is not None:
            parts["looks"] = self.looks
        np.savez_compressed(file, **parts)  # type: ignore[arg-type]
        return file.getvalue()


def count_distinct(rollouts: Iterable[Rollout]) -> int:
    """Return how many rollouts differ in prompt or completion."""
    return len({row.prompt_tokens.tobytes() + b"|" + row.completion_tokens.tobytes() for row in rollouts})


def write_cell(cell: MeasuredCell, path: Path) -> None:
    """Write a cell; a file under this name is there as a whole or not at all."""
    write_durably(path, cell.to_bytes())


def read_cell(path: Path) -> MeasuredCell:
    """Read a cell. Raises MalformedError when the file holds none."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            lengths, looks = file["lengths"], file.get("looks")
            whole = {name: file[name] for name in _ARRAYS}
        if not len(lengths) or lengths.min() < 1:
            raise ValueError("no rows, or an empty one")
        if any(array.shape != (lengths.sum(),) for array in whole.values()):
            raise ValueError("arrays of other lengths than its rows'")
        if looks is not None and (looks.ndim != 4 or looks.shape[:3] != (2, len(lengths), 2)):
            raise ValueError("numbers of other looks than its rows'")
        parts = {name: np.split(array, np.cumsum(lengths)[:-1]) for name, array in whole.items()}
        rows = [TokenErrors(**{name: parts[name][i] for name in _ARRAYS}) for i in range(len(lengths))]
        return MeasuredCell(**about, rows=rows, looks=looks)
    except _BROKEN as error:
        raise MalformedError(f"{path} holds no measured cell: {error}", hint="remove it, and measure again") from error
