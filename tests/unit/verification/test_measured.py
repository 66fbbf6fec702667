"""Files of measured cells: valid files round-trip, and every other file is refused."""

from __future__ import annotations

import contextlib
import json
import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from muster.errors import MalformedError
from muster.rollouts.schema import Rollout
from muster.verification.measured import MeasuredCell, count_distinct, read_cell, write_cell
from muster.verification.profiles import BF16
from muster.verification.statistics import TokenErrors
from testbed.samples.rollouts import make_row

NAMES = [field.name for field in fields(TokenErrors)]


def row(seed: int, tokens: int) -> TokenErrors:
    draw = np.random.default_rng(seed)
    return TokenErrors(**{name: draw.standard_normal(tokens, dtype=np.float32) for name in NAMES})


CELL = MeasuredCell(BF16.name, "logits × 2", "four at once", True, [row(1, 3), row(2, 1), row(3, 70)], 2)


def test_a_cell_is_read_exactly_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "logits × 2, four at once.npz"
    write_cell(CELL, path)
    found = read_cell(path)
    assert (found.profile, found.model, found.cell, found.large) == (BF16.name, "logits × 2", "four at once", True)
    assert (found.distinct, found.tokens) == (2, 74)
    for mine, other in zip(CELL.rows, found.rows, strict=True):
        for name in NAMES:
            assert getattr(other, name).dtype == np.float32
            np.testing.assert_array_equal(getattr(other, name), getattr(mine, name))
    assert list(tmp_path.iterdir()) == [path]


def test_claims_that_are_no_numbers_stay_what_they_are(tmp_path: Path) -> None:
    odd = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    write_cell(replace(CELL, rows=[replace(row(1, 3), claimed=odd, states=np.abs(odd))]), tmp_path / "a.npz")
    [found] = read_cell(tmp_path / "a.npz").rows
    np.testing.assert_array_equal(found.claimed, odd)
    np.testing.assert_array_equal(found.states, np.abs(odd))


def test_an_interrupted_cell_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file, **arrays: np.ndarray) -> None:
        file.write(b"PK half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez_compressed", broken)
        with pytest.raises(KeyboardInterrupt):
            write_cell(CELL, tmp_path / "a.npz")
    assert not (tmp_path / "a.npz").exists()
    write_cell(CELL, tmp_path / "a.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def refused(path: Path) -> str:
    with pytest.raises(MalformedError) as at:
        read_cell(path)
    assert at.value.hint == "remove it, and measure again"
    assert str(at.value).startswith(f"{path} holds no measured cell: ")
    return str(at.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    refused(path)
    write_cell(CELL, path)
    whole = path.read_bytes()
    for data in (b"", b"PK", b"PK\x03\x04", b"no cell", whole[:-1], whole[: len(whole) // 2]):
        path.write_bytes(data)
        refused(path)
    for at in range(40, len(whole), 97):  # a wrong byte at any place raises a Muster error
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(MalformedError):
            read_cell(path)
    np.save(tmp_path / "plain.npy", np.zeros(3))
    refused(tmp_path / "plain.npy")


class Hostile:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_measured_file_is_never_unpickled(tmp_path: Path) -> None:
    path, touched = tmp_path / "a.npz", tmp_path / "touched"
    path.write_bytes(pickle.dumps(Hostile(touched)))
    assert "pickle" in refused(path)
    hidden = np.array([Hostile(touched)], dtype=object)
    np.savez(path, **dict.fromkeys((*NAMES, "about", "lengths"), hidden), allow_pickle=True)
    assert "allow_pickle" in refused(path)
    assert not touched.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": np.array([3, 1])},
        {"lengths": np.array([3, 1, 71])},
        {"lengths": np.array([75, -1, 0])},
        {"lengths": np.array([], dtype=np.int64)},
        {"gaps": np.zeros(73, dtype=np.float32)},
        {"gaps": np.zeros((74, 1), dtype=np.float32)},
        {"about": np.array("{")},
        {"about": np.array("[]")},
        {"about": np.array(json.dumps({"profile": "p"}))},
        {"gaps": None},
    ],
    ids=str,
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path, changes: dict[str, np.ndarray | None]) -> None:
    path = tmp_path / "a.npz"
    write_cell(CELL, path)
    with np.load(path) as file:
        parts = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in parts.items() if array is not None})
    refused(path)


def test_rows_are_counted_once_where_prompt_and_completion_are_the_same() -> None:
    first = make_row()
    prompt, completion = first.prompt_tokens, first.completion_tokens

    def made(**changes: np.ndarray) -> Rollout:
        return replace(first, **changes)

    moved = made(prompt_tokens=np.append(prompt, completion[:1]), completion_tokens=completion[1:])
    rows = [first, made(), made(completion_tokens=completion[::-1].copy()), made(prompt_tokens=prompt[1:]), moved]
    assert count_distinct(rows) == 4
    assert count_distinct([]) == 0
