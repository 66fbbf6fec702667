"""A difference between two steps, as a version that travels like any other.

Two kinds make the same promise: `muster.shardcast.delta.frames`, what changed since the step before, and
`muster.shardcast.delta.adapter`, the low-rank adapter that a run trains. Either holds

    step.json    the manifest of the step that it makes, the one whose root is on chain

and its own manifest names the base step. Its own root is not on chain and need not be: a difference only proposes
bytes, and what it makes counts when it hashes to what the anchored manifest says.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from blake3 import blake3

from muster.errors import MalformedError
from muster.models.safetensors import Tensor, tensors_of
from muster.runtime.failpoints import failpoint
from muster.shardcast.format.manifest import MAX_MANIFEST_BYTES, TARGET_NAME, Manifest, Shard, parse_manifest
from muster.shardcast.format.partial import PartialVersion
from muster.shardcast.format.store import disk_errors

TIMES_SMALLER: Final = 2
"""A difference is at least so many times smaller than the step it makes; a larger one is neither published nor
fetched."""

MAX_BAD_SHARDS: Final = 4
"""A difference of which so many shards came out wrong, and more than came out right, is applied no further."""


@dataclass(frozen=True)
class TargetStep:
    """A version on disk that is no difference."""

    path: Path
    manifest: Manifest

    def read(self, shard: Shard) -> bytearray:
        """Read the bytes that are there now; zeros where a file is damaged, or lost."""
        data, got = bytearray(shard.size), 0
        path = self.path / self.manifest.files[shard.file].name
        with suppress(OSError), path.open("rb", buffering=0) as file:
            file.seek(shard.offset)
            while got < shard.size and (count := file.readinto(memoryview(data)[got:])):
                got += count
        return data

    @cached_property
    def tensors(self) -> list[list[Tensor]]:
        """Return the tensors of each file, in the manifest's order."""
        return [tensors_in(self.path / file.name) for file in self.manifest.files]


def tensors_in(path: Path) -> list[Tensor]:
    """Return the tensors that a file says to hold; none where it is not safetensors, or lost."""
    with suppress(OSError, ValueError):
        return tensors_of(path) if path.suffix == ".safetensors" else []
    return []


class Difference(Protocol):
    """A difference on disk, which stays there while it is used. Everything blocks."""

    target: Manifest
    """Of the step that it says it makes."""

    def apply(self, shard: Shard, data: bytearray, layout: TargetStep) -> None:
        """Turn a shard's bytes of the base step into the target's, in place.

        layout: any step whose tensors lie where the base's do. Raises MalformedError, `data` being spoilt then, or
        StorageError.
        """
        ...


def same_tiling(one: Manifest, other: Manifest) -> bool:
    """Return whether two versions have the same files, cut in the same way, so that one can come out of the other."""
    places = [[(shard.file, shard.offset, shard.size) for shard in manifest.shards] for manifest in (one, other)]
    return one.files == other.files and places[0] == places[1]


def read_target(version: Path, root: bytes | None) -> Manifest:
    """Return the manifest of the step that a difference on disk says it makes.

    Raises as `parse_manifest`, and StorageError when there is none.
    """
    with disk_errors("cannot read", version), (version / TARGET_NAME).open("rb") as file:
        return parse_manifest(file.read(MAX_MANIFEST_BYTES + 1), root)


def made_shard(base: TargetStep, chain: Sequence[Difference], shard: Shard) -> bytearray | None:
    """Make a shard of the last difference's step, out of the base and all of them in turn; None when it is wrong.

    The only bytes ever returned are the ones that the last one's target, the anchored manifest, says. Raises
    StorageError.
    """
    data = base.read(shard)
    try:
        for difference in chain:
            difference.apply(shard, data, base)
    except MalformedError:
        return None
    return data if blake3(data).digest() == shard.digest else None


def first_wrong(base: TargetStep, chain: Sequence[Difference], shard: Shard) -> int:
    """Return the place in the chain of a difference that turns right bytes of a shard into wrong ones.

    -1: the base itself is damaged there. Call it for a shard that comes out wrong. Raises StorageError.
    """
    targets = [base.manifest, *(difference.target for difference in chain)]

    def is_wrong(count: int) -> bool:
        return made_shard(base, chain[:count], targets[count].shards[shard.index]) is None

    return bisect_left(range(len(chain)), True, key=is_wrong) - 1


@dataclass(frozen=True)
class Made:
    """What came of the shards that were missing."""

    good: int
    bad: int
    blamed: frozenset[int]
    """Which differences of the chain made bad ones, by their places; -1 for the step to begin with."""


def make_shards(
    base: TargetStep, chain: Sequence[Difference], folder: Path, verified: set[int], stop: threading.Event
) -> Made:
    """Make what `folder` lacks of the last difference's step; ends early once `stop` is set.

    verified: the shards that are on disk, hashed and right; those found there and made here are added.
    Raises StorageError, MalformedError where the steps are cut differently.
    """
    good = bad = 0
    blamed: set[int] = set()
    # 1. Lay out the files.
    target = chain[-1].target
    if not all(same_tiling(base.manifest, difference.target) for difference in chain):
        raise MalformedError("differences between steps that are cut differently")
    partial = PartialVersion.prepare(folder, target)
    if partial.fresh:
        verified.clear()
    # 2. Make each shard, hash it, and write it only if it is right.
    for shard in target.shards:
        if stop.is_set() or bad >= max(MAX_BAD_SHARDS, good + 1):
            break
        if shard.index in verified:
            continue
        if not partial.fresh and partial.holds(shard):
            verified.add(shard.index)
        elif (data := made_shard(base, chain, shard)) is not None:
            partial.write(shard, memoryview(data))
            verified.add(shard.index)
            good += 1
            failpoint("shardcast.shard_made")
        else:
            bad += 1
            if bad <= MAX_BAD_SHARDS:
                blamed.add(first_wrong(base, chain, shard))
    return Made(good, bad, frozenset(blamed))
