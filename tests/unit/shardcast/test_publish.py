"""Publishing by link: a model is on the disk once, and nothing is ever written into a file that has two names."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from muster.shardcast.format.manifest import MANIFEST_NAME, Manifest
from muster.shardcast.format.partial import PartialVersion
from muster.shardcast.format.store import prune, verify_folder, version_path, versions
from muster.shardcast.publish import publish
from testbed.weights.checkpoints import RUN, SHARD, contents, flip_bit, keeping, make_checkpoint, write_step

MODEL = "model.safetensors"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "checkpoint")


def linked(checkpoint: Path, folder: Path, step: int = 3) -> Manifest:
    return publish(checkpoint, folder, RUN, step, shard_bytes=SHARD, link=True)


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.name != MANIFEST_NAME}


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of the last change of each file."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_a_linked_version_is_the_same_files_and_the_same_root(checkpoint: Path, tmp_path: Path) -> None:
    manifest = linked(checkpoint, tmp_path / "out")
    version = version_path(tmp_path / "out", manifest.root)
    assert inodes(version) == inodes(checkpoint)
    copied = publish(checkpoint, tmp_path / "copies", RUN, 3, shard_bytes=SHARD)
    assert copied == manifest
    copy = version_path(tmp_path / "copies", manifest.root)
    assert not set(inodes(copy).values()) & set(inodes(checkpoint).values()), "an operator may edit the original"
    assert verify_folder(version, manifest.root).problems == ()


def test_linked_file_has_the_mode_of_a_copy(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / MODEL).chmod(0o600)  # as the safetensors library leaves it
    modes = []
    for name, link in (("links", True), ("copies", False)):
        manifest = publish(checkpoint, tmp_path / name, RUN, 3, link=link)
        modes.append((version_path(tmp_path / name, manifest.root) / MODEL).stat().st_mode)
    assert modes[0] == modes[1]


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_files_are_copied_when_links_are_impossible(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(refusal, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    manifest = linked(checkpoint, tmp_path / "out")
    version = version_path(tmp_path / "out", manifest.root)
    assert contents(version) == contents(checkpoint)
    assert not set(inodes(version).values()) & set(inodes(checkpoint).values())


def test_target_of_a_symlink_is_copied(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / MODEL).rename(tmp_path / "elsewhere")
    (checkpoint / MODEL).symlink_to(tmp_path / "elsewhere")
    version = version_path(tmp_path / "out", linked(checkpoint, tmp_path / "out").root)
    assert not (version / MODEL).is_symlink()
    assert (version / MODEL).stat().st_ino != (tmp_path / "elsewhere").stat().st_ino


def test_publishing_again_pruning_and_removal_leave_the_originals_alone(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = linked(checkpoint, out)
    before = state(checkpoint)
    assert linked(checkpoint, out) == manifest
    (version_path(out, manifest.root) / "config.json").unlink()
    assert linked(checkpoint, out) == manifest
    assert verify_folder(version_path(out, manifest.root), manifest.root).problems == ()
    assert prune(out, 0) == [manifest.root]
    assert state(checkpoint) == before


def test_a_published_step_outlives_the_folder_it_came_from(checkpoint: Path, tmp_path: Path) -> None:
    manifest = linked(checkpoint, tmp_path / "out")
    for path in checkpoint.iterdir():
        path.unlink()
    make_checkpoint(checkpoint, seed=1)  # a step that is written again gets new files
    assert verify_folder(version_path(tmp_path / "out", manifest.root), manifest.root).problems == ()


def test_a_damaged_linked_version_is_repaired_in_files_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = linked(checkpoint, out)
    good = (checkpoint / MODEL).read_bytes()
    flip_bit(checkpoint / MODEL, 5)
    before = state(checkpoint)
    part = PartialVersion.prepare(out, manifest)
    for shard in manifest.shards:
        if manifest.files[shard.file].name == MODEL:
            assert not part.holds(shard)
            part.write(shard, memoryview(good)[shard.offset : shard.end])
    assert (part.path / MODEL).read_bytes() == good
    assert state(checkpoint) == before


def test_a_difference_is_written_once_and_links_leave_it_as_it_is(tmp_path: Path) -> None:
    made = [
        publish(
            write_step(tmp_path / f"{step}", step),
            tmp_path / "out",
            RUN,
            step,
            shard_bytes=SHARD,
            deltas=keeping(),
            link=True,
        )
        for step in (0, 1)
    ]
    assert len(versions(tmp_path / "out")) == 3
    for version in versions(tmp_path / "out"):
        assert verify_folder(version.path, version.root).problems == ()
        if version.root not in {manifest.root for manifest in made}:
            assert {path.stat().st_nlink for path in version.path.iterdir()} == {1}
