"""Versions on disk: published atomically, verified byte for byte, bounded in number and resumed."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from blake3 import blake3

from muster.errors import MalformedError, MismatchError, StorageError, UsageError
from muster.protocol.hashes import hex_hash
from muster.shardcast.format import store
from muster.shardcast.format.manifest import MAX_SHARDS, Manifest
from muster.shardcast.format.partial import PartialVersion
from muster.shardcast.format.store import (
    _lock,
    disk_errors,
    incomplete,
    lock_path,
    locked,
    parse_index,
    partial_path,
    prune,
    read_manifest,
    touch,
    used,
    verify_folder,
    version_path,
    versions,
)
from muster.shardcast.publish import publish
from testbed.weights.checkpoints import contents, flip_bit, make_checkpoint

SHARD = 30_000


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "checkpoint")


def published(checkpoint: Path, folder: Path, step: int = 3, **options: int) -> Manifest:
    return publish(checkpoint, folder, 7, step, **{"shard_bytes": SHARD, **options})


def test_published_version_equals_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    manifest = published(checkpoint, tmp_path / "out")
    version = version_path(tmp_path / "out", manifest.root)
    assert contents(version) == contents(checkpoint)
    assert (version / "manifest.json").read_bytes() == manifest.canonical
    assert (manifest.run, manifest.step, manifest.base_step) == (7, 3, None)
    assert [(file.name, file.size) for file in manifest.files] == [
        ("chat_template.jinja", 0),
        ("config.json", 23),
        ("model.safetensors", 100_000),
        ("tokenizer.json", 13),
    ]
    assert [(s.file, s.offset, s.size) for s in manifest.shards] == [
        (1, 0, 23),
        (2, 0, SHARD),
        (2, SHARD, SHARD),
        (2, 2 * SHARD, SHARD),
        (2, 3 * SHARD, 10_000),
        (3, 0, 13),
    ]
    model = (checkpoint / "model.safetensors").read_bytes()
    assert manifest.shards[2].digest == blake3(model[SHARD : 2 * SHARD]).digest()
    assert verify_folder(version, manifest.root).problems == ()


def test_publishing_again_changes_nothing_and_repairs_damage(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = published(checkpoint, out)
    version = version_path(out, manifest.root)
    inode = (version / "config.json").stat().st_ino
    assert published(checkpoint, out) == manifest
    assert (version / "config.json").stat().st_ino == inode
    flip_bit(version / "model.safetensors", 5)
    assert published(checkpoint, out) == manifest
    assert verify_folder(version, manifest.root).problems == ()
    assert sorted(path.name for path in out.iterdir()) == [manifest.id, "index.json"]


def test_step_and_contents_change_the_root(checkpoint: Path, tmp_path: Path) -> None:
    first = published(checkpoint, tmp_path / "out", 3)
    second = published(checkpoint, tmp_path / "out", 4)
    flip_bit(checkpoint / "model.safetensors", 99_999)
    third = published(checkpoint, tmp_path / "out", 4)
    assert len({first.root, second.root, third.root}) == 3


def test_only_the_newest_versions_are_kept_and_listed(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = [published(checkpoint, out, step, keep=3) for step in range(5)]
    assert [version.root for version in versions(out)] == [manifest.root for manifest in made[2:]]
    index = parse_index((out / "index.json").read_bytes())
    assert [(entry.step, entry.root) for entry in index.versions] == [(m.step, m.id) for m in reversed(made[2:])]
    assert index.versions[0].size == 100_036


def test_leftovers_of_a_killed_publisher_are_cleared(checkpoint: Path, tmp_path: Path) -> None:
    left = tmp_path / "out" / ".publishing"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_text("half")
    manifest = published(checkpoint, tmp_path / "out")
    assert not left.exists()
    assert verify_folder(version_path(tmp_path / "out", manifest.root)).problems == ()


def test_two_publishers_in_one_folder_are_an_error(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out" / ".publishing.lock") as ours:
        assert ours
        with pytest.raises(StorageError, match="another process is publishing"):
            published(checkpoint, tmp_path / "out")
    assert published(checkpoint, tmp_path / "out").step == 3


def test_a_checkpoint_with_other_things_in_it_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / ".cache").mkdir()
    assert published(checkpoint, tmp_path / "out").files
    (checkpoint / "optimizer.pt").write_text("pickle")
    with pytest.raises(UsageError, match=r"cannot be published: the file name 'optimizer\.pt' is none of a checkpoint"):
        published(checkpoint, tmp_path / "out")
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "folder.json").mkdir()
    with pytest.raises(UsageError, match="is not a file"):
        published(checkpoint, tmp_path / "out")
    with pytest.raises(UsageError, match="no checkpoint"):
        published(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no safetensors"):
        published(tmp_path / "empty", tmp_path / "out")


def test_shards_of_an_impossible_size_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    for size in (0, -1, 1 << 30):
        with pytest.raises(UsageError, match="shards of"):
            published(checkpoint, tmp_path / "out", shard_bytes=size)
    larger = make_checkpoint(tmp_path / "larger", model_bytes=MAX_SHARDS)
    with pytest.raises(UsageError, match="at most 65536 items"):
        published(larger, tmp_path / "out", shard_bytes=1)


def test_verification_names_every_damage(checkpoint: Path, tmp_path: Path) -> None:
    manifest = published(checkpoint, tmp_path / "out")
    version = version_path(tmp_path / "out", manifest.root)
    flip_bit(version / "model.safetensors", SHARD)
    (version / "config.json").unlink()
    with (version / "tokenizer.json").open("ab") as file:
        file.write(b"more")
    assert verify_folder(version).problems == (
        "config.json is missing",
        "tokenizer.json has 17 bytes instead of 13",
        "shard 0 (config.json from byte 0) is not what the manifest says",
        f"shard 2 (model.safetensors from byte {SHARD}) is not what the manifest says",
    )
    with pytest.raises(MismatchError, match="root"):
        verify_folder(version, bytes(32))
    (version / "manifest.json").write_bytes(manifest.canonical[:-1])
    with pytest.raises(MalformedError):
        verify_folder(version)
    with pytest.raises(StorageError, match="no manifest"):
        read_manifest(tmp_path)


def test_pruning_keeps_what_was_used_last_and_what_is_being_fetched(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = [published(checkpoint, out, step) for step in range(4)]
    touch(version_path(out, made[0].root))
    for root in (b"\1" * 32, b"\2" * 32, b"\3" * 32):
        partial_path(out, root).mkdir()
    (out / ".removed-0x00").mkdir()
    with locked(lock_path(out, b"\1" * 32)):
        removed = prune(out, 2, protect=[made[1].root, b"\2" * 32])
    assert removed == [made[2].root]
    assert {version.root for version in versions(out)} == {made[i].root for i in (0, 1, 3)}
    assert sorted(incomplete(out)) == [b"\1" * 32, b"\2" * 32]
    assert not (out / ".removed-0x00").exists()


def test_a_version_that_comes_into_use_while_others_are_removed_stays(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [version_path(tmp_path, published(checkpoint, tmp_path, step).root) for step in (1, 2)]
    remove = store.remove_version
    with ExitStack() as using:

        def removing(path: Path) -> None:
            using.enter_context(used(second))
            remove(path)

        monkeypatch.setattr(store, "remove_version", removing)
        assert [hex_hash(root) for root in prune(tmp_path, 0)] == [first.name]
    assert (first.exists(), second.exists()) == (False, True)


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as first, locked(path) as second:
        assert (first, second) == (True, False)
    assert not path.exists()
    with locked(path) as again:
        assert again
        waiting = os.open(path, os.O_RDWR)
    path.touch()  # somebody else's, after the file that was waited for has been removed
    assert not _lock(waiting, path)
    os.close(waiting)


def test_a_part_believes_what_is_on_disk_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    manifest = published(checkpoint, tmp_path / "out")
    model = (checkpoint / "model.safetensors").read_bytes()
    first = PartialVersion.prepare(tmp_path / "in", manifest)
    assert first.fresh
    shard = manifest.shards[3]
    first.write(shard, bytearray(model[shard.offset : shard.end]))
    (first.path / "surprise.py").write_text("import os")
    os.symlink("/etc/passwd", first.path / "link.json")
    second = PartialVersion.prepare(tmp_path / "in", manifest)
    assert not second.fresh
    assert [s.index for s in manifest.shards if second.holds(s)] == [3]
    assert sorted(contents(second.path)) == [file.name for file in manifest.files]
    flip_bit(second.path / "model.safetensors", shard.end - 1)
    assert not second.holds(shard)


def test_a_damaged_version_becomes_a_part_again(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = published(checkpoint, out)
    assert PartialVersion.whole(out, manifest.root) is not None
    flip_bit(version_path(out, manifest.root) / "model.safetensors", 0)
    assert PartialVersion.whole(out, manifest.root) is None
    part = PartialVersion.prepare(out, manifest)
    assert [s.index for s in manifest.shards if not part.holds(s)] == [1]
    assert versions(out) == []


def test_a_part_never_writes_through_a_link(checkpoint: Path, tmp_path: Path) -> None:
    manifest = published(checkpoint, tmp_path / "out")
    part = PartialVersion.prepare(tmp_path / "in", manifest)
    target = tmp_path / "precious"
    target.write_text("precious")
    (part.path / "config.json").unlink()
    os.symlink(target, part.path / "config.json")
    with pytest.raises(StorageError):
        part.write(manifest.shards[0], bytearray(23))
    assert target.read_text() == "precious"


def test_too_little_room_and_a_full_disk_say_so(checkpoint: Path, tmp_path: Path) -> None:
    manifest = published(checkpoint, tmp_path / "out")
    huge = tuple(file.model_copy(update={"size": 1 << 60}) for file in manifest.files)
    with pytest.raises(StorageError, match="more bytes") as caught:
        PartialVersion.prepare(tmp_path / "in", manifest.model_copy(update={"files": huge}))
    assert "df -h" in caught.value.hint
    with pytest.raises(StorageError, match="no space left"), disk_errors("cannot write", tmp_path):
        raise OSError(errno.ENOSPC, "x")


def test_a_folder_that_refuses_is_a_storage_error(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot publish"):
        published(checkpoint, tmp_path / "file" / "out")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"versions":[{"root":"0x00"}]}', b" " * 300_000])
def test_a_strange_index_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse_index(data)
