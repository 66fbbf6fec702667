"""Which tensors of two versions are the same, by what their manifests say: nothing is read but the files' heads."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from muster.errors import CheckError, StorageError
from muster.models.safetensors import tensors_of
from muster.shardcast.format.store import read_manifest

Fingerprint = tuple[str, int, int, tuple[tuple[int, bytes], ...]]
"""dtype, first byte and end in its file, and offset and hash of every shard it lies in: equal ones are equal bytes."""


def fingerprints(version: Path) -> dict[str, Fingerprint]:
    """Return the fingerprint of each tensor by name.

    Empty for a folder of which nothing is known: no version, or one whose files are not what they are called.
    """
    found: dict[str, Fingerprint] = {}
    try:
        manifest = read_manifest(version)
        for file in [file for file in manifest.files if file.name.endswith(".safetensors")]:
            covering = manifest.shards_of(file.name)
            starts = [shard.offset for shard in covering]
            for tensor in tensors_of(version / file.name):
                first, stop = bisect_right(starts, tensor.start) - 1, bisect_right(starts, tensor.stop - 1)
                hashes = tuple((shard.offset, shard.digest) for shard in covering[max(0, first) : stop])
                found[tensor.name] = tensor.dtype, tensor.start, tensor.stop, hashes
    except (StorageError, CheckError, ValueError, OSError):
        return {}
    return found
