"""Which tensors of two versions are the same, by what their manifests say: nothing is read but the files' heads."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from muster.errors import CheckError, StorageError
from muster.models.safetensors import tensors_of
from muster.shardcast.format.manifest import Shard
from muster.shardcast.format.store import read_manifest

Fingerprint = tuple[str, int, int, tuple[tuple[int, bytes], ...]]
"""dtype, first byte and end in its file, and offset and hash of every shard it lies in: equal ones are equal bytes."""


def fingerprints(version: Path) -> dict[str, Fingerprint]:
    """Return the fingerprint of each tensor by name.

    Empty for a folder of which nothing is known: no version, or one whose files are not what they are called.
    """
    try:
        return _fingerprints(version)
    except (StorageError, CheckError, ValueError, OSError):
        return {}


def _fingerprints(version: Path) -> dict[str, Fingerprint]:
    manifest = read_manifest(version)
    shards: list[list[Shard]] = [[] for _ in manifest.files]
    for shard in manifest.shards:
        shards[shard.file].append(shard)
    found: dict[str, Fingerprint] = {}
    for file, covering in zip(manifest.files, shards, strict=True):
        if not file.name.endswith(".safetensors"):
            continue
        starts = [shard.offset for shard in covering]
        for tensor in tensors_of(version / file.name):
            lies_in = covering[max(0, bisect_right(starts, tensor.start) - 1) : bisect_right(starts, tensor.stop - 1)]
            hashes = tuple((shard.offset, shard.digest) for shard in lies_in)
            found[tensor.name] = tensor.dtype, tensor.start, tensor.stop, hashes
    return found
