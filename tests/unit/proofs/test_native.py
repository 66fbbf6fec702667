"""Kernels are built when a compiler exists, and skipped otherwise."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.proofs import native

needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C compiler")


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a temporary folder with one kernel."""
    (tmp_path / "twice.c").write_text("int twice(int x) { return 2 * x; }\n")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MUSTER_NATIVE", raising=False)
    native.load.cache_clear()
    yield tmp_path
    native.load.cache_clear()


@needs_compiler
def test_a_kernel_is_built_by_who_wants_it_first(room: Path) -> None:
    kernel = native.load("twice")
    assert kernel is not None
    assert kernel.twice(21) == 42
    built = native.build("twice")
    first = built.stat().st_mtime_ns
    native.load.cache_clear()
    assert native.load("twice") is not None
    assert built.stat().st_mtime_ns == first, "it is built once"
    assert {path.name for path in built.parent.iterdir()} == {built.name, "lock"}


@needs_compiler
def test_a_changed_source_is_another_library(room: Path) -> None:
    before = native.build("twice")
    (room / "twice.c").write_text("int twice(int x) { return x + x; }\n")
    assert native.build("twice") != before


@needs_compiler
def test_disabled_damaged_or_exposed_kernel_is_not_loaded(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = native.build("twice")
    monkeypatch.setenv("MUSTER_NATIVE", "0")
    assert native.load("twice") is None
    monkeypatch.delenv("MUSTER_NATIVE")
    native.load.cache_clear()
    built.parent.chmod(0o770)
    assert native.load("twice") is None, "another user could have put it there"
    built.parent.chmod(0o700)
    built.write_bytes(b"no library")
    native.load.cache_clear()
    assert native.load("twice") is None


@needs_compiler
def test_compile_error_is_reported(room: Path) -> None:
    (room / "twice.c").write_text("int twice(int x) { return y; }\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        native.build("twice")
    assert "undeclared" in caught.value.stderr
    assert [path.name for path in (room / "cache" / "muster" / "kernels").iterdir()] == ["lock"]
    assert native.load("twice") is None


def test_without_a_compiler_it_is_done_without(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(room / "none"))
    assert native.load("twice") is None
    with pytest.raises(FileNotFoundError, match="no C compiler"):
        native.build("twice")


def test_every_kernel_of_ours_is_built_here() -> None:
    assert native.sources() != []
    if native.compiler() is not None:
        assert all(native.build(name).is_file() for name in native.sources())
