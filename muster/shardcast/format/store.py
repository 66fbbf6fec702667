"""Versions on disk: one folder `0x<root>` each, holding the files and their manifest, beside an `index.json`.

The same layout is published, relayed and fetched, and is what any static web server can hand out. A folder under its
final name is complete: it is renamed there only after everything in it has been written to disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3
from pydantic import Field

from muster.errors import CheckError, StorageError
from muster.protocol.hashes import hex_hash, is_hash
from muster.protocol.messages import Hash, Message, UInt32
from muster.runtime.documents import parse_json
from muster.runtime.files import write_atomically
from muster.shardcast.format.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Shard, parse_manifest

INDEX_NAME: Final = "index.json"

MAX_INDEX_BYTES: Final = 256 * 1024
"""Longest index that is read."""

MAX_INDEX_ENTRIES: Final = 1024
PAGE_STEPS: Final = 256
"""Steps on one page of the index."""

MAX_CHAIN: Final = 64
"""Differences that are applied one after the other, at most. Lowering it puts steps that are published out of reach."""

PAGE_NAME: Final = re.compile(r"index-([0-9]{1,8})\.json")
READ_BYTES: Final = 1 << 20
_PART_NAME: Final = re.compile(r"\.0x([0-9a-f]{64})\.part")
_REMOVED: Final = ".removed-"
_in_use: Final[Counter[Path]] = Counter()
"""Versions that this process uses, by where they lie once they are complete."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class IndexEntry(Message):
    """A version, as an index names it. Untrusted: each fetch checks it against the chain."""

    root: Hash
    run: UInt32
    step: UInt32
    base_step: UInt32 | None = None
    """Of a difference, the step that it is one to."""
    size: int = Field(ge=0)
    """Bytes of all files."""


class Index(Message):
    """What a server has, newest step first, and a step before the differences that lead to it."""

    versions: list[IndexEntry] = Field(max_length=MAX_INDEX_ENTRIES)


def parse_index(data: bytes) -> Index:
    """Return the index that `data` is. Raises MalformedError."""
    return parse_json(Index, data, "an index of versions", MAX_INDEX_BYTES)


def entry_of(manifest: Manifest) -> IndexEntry:
    """Describe a version as an index does."""
    m = manifest
    return IndexEntry(root=m.id, run=m.run, step=m.step, base_step=m.base_step, size=m.total_bytes)


def index_of(entries: Collection[IndexEntry]) -> Index:
    """Return the index of some versions: as many of the newest as one may hold, and the first step."""
    ordered = sorted(entries, key=_newest_first)
    first = [entry for entry in ordered[MAX_INDEX_ENTRIES:] if (entry.step, entry.base_step) == (0, None)][:1]
    return Index(versions=ordered[: MAX_INDEX_ENTRIES - len(first)] + first)


def page_of(step: int) -> int:
    """Return the number of the page that says what a step can be made of."""
    return step // PAGE_STEPS


def page_name(number: int) -> str:
    return f"index-{number}.json"


def index_page(entries: Collection[IndexEntry], number: int) -> Index:
    """Return one page of the index: the versions of its steps, and all that these can be made of."""
    first = number * PAGE_STEPS
    listed = [e for e in entries if first - MAX_CHAIN <= e.step < first + PAGE_STEPS or e.step == 0]
    return Index(versions=sorted(listed, key=_newest_first)[:MAX_INDEX_ENTRIES])


def _newest_first(entry: IndexEntry) -> tuple[int, bool]:
    return -entry.step, entry.base_step is not None


@dataclass(frozen=True)
class Version:
    """A complete version on disk."""

    root: bytes
    path: Path
    used: int
    """When it was last asked for here, in nanoseconds since the epoch."""


def version_path(folder: Path, root: bytes) -> Path:
    """Return where the version with this root lies once it is complete."""
    return folder / hex_hash(root)


def partial_path(folder: Path, root: bytes) -> Path:
    """Return where the version with this root grows."""
    return folder / f".{hex_hash(root)}.part"


def lock_path(folder: Path, root: bytes) -> Path:
    """Return the file that a writer of a partial version locks."""
    return folder / f".{hex_hash(root)}.lock"


def incomplete(folder: Path) -> list[bytes]:
    """Return the roots of versions that are here in part."""
    matches = [_PART_NAME.fullmatch(path.name) for path in (folder.iterdir() if folder.is_dir() else ())]
    return [bytes.fromhex(match[1]) for match in matches if match]


def versions(folder: Path) -> list[Version]:
    """Return the complete versions in a folder, the one used longest ago first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_hash(path.name):
            try:
                used = (path / MANIFEST_NAME).stat().st_mtime_ns
            except FileNotFoundError:  # being removed
                continue
            found.append(Version(bytes.fromhex(path.name[2:]), path, used))
    return sorted(found, key=lambda version: version.used)


def touch(version: Path) -> None:
    """Note that a version, if it is still here, was used now, so that it is pruned last."""
    with suppress(FileNotFoundError):
        os.utime(version / MANIFEST_NAME)


@contextmanager
def used(version: Path) -> Iterator[None]:
    """Keep a version, here already or on its way, from `prune` until the block ends. Call it from one thread."""
    _in_use[version] += 1
    try:
        yield
    finally:
        _in_use[version] -= 1
        if not _in_use[version]:
            del _in_use[version]


def prune(folder: Path, keep: int, protect: Collection[bytes] = ()) -> list[bytes]:
    """Remove all versions but the `keep` used last, those in `protect` and those that this process has in use.

    What incomplete and half-removed versions left goes too, unless they are being fetched now. Return the roots of
    what was removed.
    """
    protect = {*protect, *(bytes.fromhex(path.name[2:]) for path in list(_in_use) if path.parent == folder)}
    removed: list[bytes] = []
    for version in versions(folder)[:-keep] if keep else versions(folder):
        if version.root not in protect and version.path not in _in_use:  # which may have changed since
            remove_version(version.path)
            removed.append(version.root)
    remove_leftovers(folder, protect)
    return removed


def remove_leftovers(folder: Path, protect: Collection[bytes] = ()) -> None:
    """Remove incomplete versions that are neither being fetched nor in `protect`, and half-removed ones."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)
        elif (match := _PART_NAME.fullmatch(path.name)) and (root := bytes.fromhex(match[1])) not in protect:
            with locked(lock_path(folder, root)) as ours:
                if ours:
                    shutil.rmtree(path, ignore_errors=True)


def remove_version(path: Path) -> None:
    """Remove a version. It is renamed first, so that no half-removed folder looks complete."""
    doomed = path.with_name(f"{_REMOVED}{path.name}")
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def folder_bytes(path: Path) -> int:
    """Return the bytes of the files in a flat folder; 0 when it is gone."""
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    except FileNotFoundError:
        return 0


def read_manifest(version: Path, root: bytes | None = None) -> Manifest:
    """Return the manifest in a version's folder.

    Raises StorageError when there is none, MalformedError or MismatchError as `parse_manifest`.
    """
    try:
        with (version / MANIFEST_NAME).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise StorageError(f"no manifest in {version}: {error.strerror}", hint="muster weights fetch") from error
    return parse_manifest(data, root)


def described(folder: Path, run: int | None = None) -> list[tuple[Version, Manifest]]:
    """Return the complete versions in a folder, of one run or of all, with their manifests. Blocking.

    Versions that are damaged, or removed meanwhile, are left out.
    """
    found = []
    for version in versions(folder):
        with suppress(StorageError, CheckError):
            manifest = read_manifest(version.path, version.root)
            if run in (None, manifest.run):
                found.append((version, manifest))
    return found


def write_index(folder: Path) -> Index:
    """Write the index of the complete versions in `folder` and return it. Blocking.

    Where one index cannot hold them all, its pages are written too.
    """
    entries = [entry_of(manifest) for _, manifest in described(folder)]
    index = index_of(entries)
    numbers = {page_of(entry.step) for entry in entries} if len(entries) > MAX_INDEX_ENTRIES else set()
    for path in folder.glob("index-*.json"):
        if (match := PAGE_NAME.fullmatch(path.name)) and int(match[1]) not in numbers:
            path.unlink(missing_ok=True)
    for number in numbers:
        page, path = index_page(entries, number).model_dump_json(), folder / page_name(number)
        if not path.exists() or path.read_text() != page:  # old pages stay as they are
            write_atomically(path, page)
    write_atomically(folder / INDEX_NAME, index.model_dump_json())
    return index


def shard_is_good(version: Path, manifest: Manifest, shard: Shard) -> bool:
    """Return whether the bytes of one shard are on disk and hash to what the manifest says. Blocking."""
    hasher = blake3()
    try:
        with (version / manifest.files[shard.file].name).open("rb") as file:
            file.seek(shard.offset)
            left = shard.size
            while left and (piece := file.read(min(READ_BYTES, left))):
                hasher.update(piece)
                left -= len(piece)
    except FileNotFoundError:
        return False
    return not left and hasher.digest() == shard.digest


@dataclass(frozen=True)
class Verification:
    """What `verify_folder` found; the version is what its manifest says when `problems` is empty."""

    manifest: Manifest
    problems: tuple[str, ...]


def verify_folder(
    version: Path, root: bytes | None = None, progress: Callable[[int], None] | None = None
) -> Verification:
    """Check every byte of a version against its manifest, and that against `root` where it is known. Blocking.

    progress: called with the size of each shard that was hashed. Raises as `read_manifest`.
    """
    manifest = read_manifest(version, root)
    problems = []
    for file in manifest.files:
        try:
            size = (version / file.name).stat().st_size
        except FileNotFoundError:
            problems.append(f"{file.name} is missing")
            continue
        if size != file.size:
            problems.append(f"{file.name} has {size} bytes instead of {file.size}")
    for shard in manifest.shards:
        if not shard_is_good(version, manifest, shard):
            name = manifest.files[shard.file].name
            problems.append(f"shard {shard.index} ({name} from byte {shard.offset}) is not what the manifest says")
        if progress:
            progress(shard.size)
    return Verification(manifest, tuple(problems))


def whole_manifest(version: Path, root: bytes) -> Manifest | None:
    """Return the manifest of a version that is here with every byte as it should be, else None. Blocking."""
    try:
        verification = verify_folder(version, root)
    except (StorageError, CheckError):
        return None
    return None if verification.problems else verification.manifest


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock file: True when it is ours, False when another process (or task) has it. Freed also by a crash."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    ours = False
    try:
        ours = _lock(descriptor, path)
        yield ours
    finally:
        if ours:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us removed the file: what we have locked is no longer what others will find.
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


@contextmanager
def disk_errors(what: str, path: Path) -> Iterator[None]:
    """Raise StorageError, with a hint, for a disk that refuses. what: what cannot be done, for the message."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message, hint = f"{what}: no space left for {path}", f"free space there (df -h {path.parent})"
        else:
            message, hint = f"{what}: {path}: {error.strerror}", "check the folder and its rights"
        raise StorageError(message, hint=hint) from error
