"""Make a version out of a checkpoint folder: link or copy, cut, hash, and let it appear all at once.

Publishing the same checkpoint twice gives the same root and changes nothing, so a trainer that dies between writing
and anchoring publishes again after its restart. The root is that of the whole checkpoint, whatever else is published:
with `deltas` also the difference to the step before, or the adapter that makes it out of step 0, and then older steps
are kept as such.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final

from blake3 import blake3
from pydantic import ValidationError

from muster.errors import CheckError, MalformedError, StorageError, UsageError
from muster.models.files import checkpoint_problem
from muster.models.weights import weights_in
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.files import sync, write_at
from muster.shardcast.delta.adapter import write_adapted
from muster.shardcast.delta.difference import TargetStep
from muster.shardcast.delta.frames import write_frames
from muster.shardcast.delta.kinds import open_difference
from muster.shardcast.format.manifest import MANIFEST_NAME, MAX_SHARD_BYTES, File, Manifest, Shard
from muster.shardcast.format.store import (
    READ_BYTES,
    Version,
    described,
    disk_errors,
    locked,
    prune,
    remove_leftovers,
    remove_version,
    touch,
    version_path,
    whole_manifest,
    write_index,
)
from muster.shardcast.retention import HeldVersion, StepRetention, kept

DEFAULT_SHARD_BYTES: Final = 8 * 1024 * 1024
_BUILD: Final = ".publishing"
_DRAFT: Final = ".publishing-delta"
_LOCK: Final = ".publishing.lock"
_log = telemetry.logger("shardcast")


def publish(
    checkpoint_dir: Path,
    out_dir: Path,
    run: int,
    step: int,
    *,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    keep: int = 16,
    deltas: StepRetention | None = None,
    adapter: Path | None = None,
    link: bool = False,
) -> Manifest:
    """Publish the files of `checkpoint_dir` as the weights of (run, step) in `out_dir`; blocking.

    Hidden files are left out. Keeps the `keep` newest steps, this one included, or more and not all of them whole, as
    `deltas` says; rewrites the index. adapter: the folder of a low-rank adapter that makes these weights out of step
    0's (`muster.models.lora`), which then is the difference; it counts with `deltas` only. link: the files of
    `checkpoint_dir` are final, so they are hard-linked instead of copied where the file system allows it.

    Raises UsageError when the folder holds what a checkpoint may not, StorageError when the disk refuses or another
    process is publishing there.
    """
    # 1. What is published.
    if not 1 <= shard_bytes <= MAX_SHARD_BYTES:
        raise UsageError(f"shards of {shard_bytes} bytes; 1 to {MAX_SHARD_BYTES} are possible")
    names = _files_of(checkpoint_dir)
    try:
        weights_in(checkpoint_dir)
    except MalformedError as error:
        raise UsageError(f"it cannot be published: {error}", hint=error.hint) from error
    with disk_errors(f"cannot publish step {step}", out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        with locked(out_dir / _LOCK) as ours:
            if not ours:
                raise StorageError(f"another process is publishing in {out_dir}", hint="one trainer, one folder")
            # 2. The step, whole.
            manifest = _publish_files(checkpoint_dir, names, out_dir, run, step, shard_bytes, link=link)
            # 3. Its difference, what is no longer needed, and the index.
            if deltas is None:
                prune(out_dir, max(1, keep), protect=(manifest.root,))
            else:
                failpoint("shardcast.published_whole")
                _publish_difference(out_dir, manifest, shard_bytes, adapter)
                _remove_unneeded(out_dir, run, max(1, keep), deltas, initial=adapter is not None)
            write_index(out_dir)
    return manifest


def difference_to(out_dir: Path, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the difference by which a published step travels; None where there is none. Blocking."""
    for version, other in described(out_dir, manifest.run):
        if other.step == manifest.step and other.base_step is not None:
            with suppress(StorageError, CheckError):
                open_difference(version.path, manifest.root)
                return other
    return None


def _files_of(checkpoint_dir: Path) -> list[str]:
    """Return the names of what is published, in order."""
    try:
        entries = sorted(entry for entry in checkpoint_dir.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"no checkpoint in {checkpoint_dir}: {error.strerror}") from error
    names = [entry.name for entry in entries]
    folders = [f"{entry.name} is not a file" for entry in entries if not entry.is_file()]
    if problem := next(iter(folders), checkpoint_problem(names)):
        raise UsageError(f"{checkpoint_dir} cannot be published: {problem}", hint="move it out of the checkpoint")
    return names


def _publish_files(
    source: Path,
    names: list[str],
    out_dir: Path,
    run: int,
    step: int,
    shard_bytes: int,
    *,
    base_step: int | None = None,
    link: bool = False,
) -> Manifest:
    """Link or copy the files into a new folder, describe what is there then, and give it its final name."""
    build = out_dir / _BUILD
    shutil.rmtree(build, ignore_errors=True)  # left by a publisher that was killed
    build.mkdir()
    files: list[File] = []
    shards: list[Shard] = []
    for name in names:
        linked = link and _link(source / name, build / name)
        offset = 0
        for size, digest in _shards_of(source / name, shard_bytes, None if linked else build / name):
            hexed = "0x" + digest.hex()
            shards.append(Shard(index=len(shards), file=len(files), offset=offset, size=size, hash=hexed))
            offset += size
        files.append(File(name=name, size=offset))
    try:
        manifest = Manifest(run=run, step=step, base_step=base_step, files=tuple(files), shards=tuple(shards))
    except ValidationError as error:
        raise UsageError(
            f"{source} cannot be published: {error.errors()[0]['msg']}", hint="larger shards make fewer of them"
        ) from error
    (build / MANIFEST_NAME).write_bytes(manifest.canonical)
    sync(build / MANIFEST_NAME)
    _move_into_place(build, manifest)
    return manifest


def _link(source: Path, target: Path) -> bool:
    """Hard-link a file, with the permissions of a copy; return False if that fails."""
    if source.is_symlink():
        return False
    try:
        os.link(source, target)
        target.chmod(target.parent.stat().st_mode & 0o666)
    except OSError:  # e.g. another file system, or somebody else's file
        target.unlink(missing_ok=True)
        return False
    return True


def _shards_of(source: Path, shard_bytes: int, copy: Path | None) -> list[tuple[int, bytes]]:
    """Return (size, blake3) of each shard of a file, which is synced; first copy it, where `copy` says to."""
    shards: list[tuple[int, bytes]] = []
    buffer = memoryview(bytearray(READ_BYTES))
    with source.open("rb", buffering=0) as reader, copy.open("wb", buffering=0) if copy else nullcontext() as writer:
        offset = 0
        while True:
            hasher, size = blake3(), 0
            while size < shard_bytes and (count := reader.readinto(buffer[: shard_bytes - size])):
                piece = buffer[:count]
                hasher.update(piece)
                if writer:
                    write_at(writer.fileno(), piece, offset + size)
                size += count
            if not size:
                break
            shards.append((size, hasher.digest()))
            offset += size
        os.fsync((writer or reader).fileno())
    return shards


def _move_into_place(build: Path, manifest: Manifest) -> None:
    """Give the build its final name, unless the same version is there, whole, already."""
    final = version_path(build.parent, manifest.root)
    if whole_manifest(final, manifest.root):
        shutil.rmtree(build)
        touch(final)
        return
    remove_version(final)
    sync(build)
    build.rename(final)
    sync(final.parent)


def _publish_difference(out_dir: Path, manifest: Manifest, shard_bytes: int, adapter: Path | None) -> None:
    """Publish how a step comes out of the first one by an adapter, or else out of the one before.

    Nothing is published twice, or where it would save too little. A damaged base only makes it larger, as
    `write_frames` says.
    """
    held = described(out_dir, manifest.run)
    older = [(version, other) for version, other in held if other.base_step is None and other.step < manifest.step]
    bases = {other.step: TargetStep(version.path, other) for version, other in older}  # the one used last of each step
    for old, other in held:
        if other.step == manifest.step and other.base_step is not None:
            if _leads_to(old, manifest):
                return
            remove_version(old.path)  # damaged, or of a step that was written again
    target = TargetStep(version_path(out_dir, manifest.root), manifest)
    draft = out_dir / _DRAFT
    for base, write in _ways(bases, manifest.step, adapter):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        if write(base, target, draft):
            number, run, step = base.manifest.step, manifest.run, manifest.step
            names = sorted(path.name for path in draft.iterdir())
            _publish_files(draft, names, out_dir, run, step, shard_bytes, base_step=number, link=True)
            break
    shutil.rmtree(draft, ignore_errors=True)


def _ways(
    bases: Mapping[int, TargetStep], step: int, adapter: Path | None
) -> Iterator[tuple[TargetStep, Callable[[TargetStep, TargetStep, Path], bool]]]:
    """Yield the steps that a new one could be a difference to, and how that is written, best first."""
    if adapter is not None and 0 in bases:
        yield bases[0], partial(write_adapted, adapter=adapter)
    elif adapter is not None:
        _log.warning("an adapter is not used as a difference", why="step 0 is not in the published folder")
    if step - 1 in bases:
        yield bases[step - 1], write_frames


def _leads_to(version: Version, manifest: Manifest) -> bool:
    """Return whether a difference is whole and one to this step."""
    try:
        open_difference(version.path, manifest.root)
        return whole_manifest(version.path, version.root) is not None
    except (StorageError, CheckError):
        return False


def _remove_unneeded(out_dir: Path, run: int, newest: int, deltas: StepRetention, *, initial: bool) -> None:
    """Remove the versions of a run that are no longer needed. initial: later steps need the first one."""
    held = described(out_dir, run)
    listed = [
        HeldVersion(version.root, made.step, made.base_step, made.total_bytes, version.used / 1e9)
        for version, made in held
    ]
    needed = kept(listed, newest, deltas, time.time(), always=[0] if initial else [])
    for version, _ in held:
        if version.root not in needed:
            remove_version(version.path)
    remove_leftovers(out_dir)
