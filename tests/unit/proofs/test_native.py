"""Kernels are built where there is a compiler, and done without where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.proofs import native
from testbed.paths import ROOT
from testbed.waiting import BOUND

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder of kernels of its own, with one in it."""
    (tmp_path / "twice.c").write_text("int twice(int x) { return 2 * x; }\n")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "BUILT", tmp_path / "built")
    monkeypatch.delenv("MUSTER_NATIVE", raising=False)
    native.load.cache_clear()
    yield tmp_path
    native.load.cache_clear()


@needs_compiler
def test_a_kernel_is_built_once_and_loaded(room: Path) -> None:
    assert native.load("twice") is None, "not built yet"
    built = native.build("twice")
    first = built.stat().st_mtime_ns
    assert native.build("twice") == built
    assert built.stat().st_mtime_ns == first
    native.load.cache_clear()
    kernel = native.load("twice")
    assert kernel is not None
    assert kernel.twice(21) == 42


@needs_compiler
def test_a_changed_source_is_another_library(room: Path) -> None:
    before = native.build("twice")
    (room / "twice.c").write_text("int twice(int x) { return x + x; }\n")
    assert native.load("twice") is None
    assert native.build("twice") != before


@needs_compiler
def test_what_is_turned_off_or_damaged_is_done_without(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = native.build("twice")
    monkeypatch.setenv("MUSTER_NATIVE", "0")
    assert native.load("twice") is None
    monkeypatch.delenv("MUSTER_NATIVE")
    built.write_bytes(b"no library")
    native.load.cache_clear()
    assert native.load("twice") is None


@needs_compiler
def test_what_does_not_compile_says_why(room: Path) -> None:
    (room / "twice.c").write_text("int twice(int x) { return y; }\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        native.build("twice")
    assert "undeclared" in caught.value.stderr
    assert list((room / "built").iterdir()) == []


def test_without_a_compiler_set_up_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "CC": str(tmp_path / "none"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "muster.proofs.native"], env=environment, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0
    assert "no C compiler" in done.stderr


def test_every_kernel_of_ours_is_built_here() -> None:
    assert native.sources() != []
    if native.compiler() is not None:
        assert all(native.build(name).is_file() for name in native.sources())
