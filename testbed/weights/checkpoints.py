"""Small checkpoints: noise, and steps of a bf16 model that change little from one to the next, as training does."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
from blake3 import blake3

from muster.models.safetensors import WIDTHS
from muster.shardcast.delta.difference import TargetStep
from muster.shardcast.delta.frames import write_frames
from muster.shardcast.format.manifest import MANIFEST_NAME, TARGET_NAME, File, Manifest, Shard
from muster.shardcast.format.store import read_manifest, remove_version, version_path, versions, write_index
from muster.shardcast.publish import publish
from muster.shardcast.retention import StepRetention

RUN = 1
SHARD = 64 * 1024
NOISE_HEAD = 128
VALUES = 10 * SHARD + 77
"""bf16 values in the model: 20 shards and a bit."""


def make_checkpoint(folder: Path, *, model_bytes: int = 100_000, seed: int | str = 0) -> Path:
    """Write what looks like a checkpoint: configuration, tokenizer, and a model of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(noise(model_bytes, seed))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "chat_template.jinja").write_text("")
    return folder


def noise(size: int, seed: int | str) -> bytes:
    """Return a safetensors file of so many bytes: one tensor of noise."""
    return noise_head(size) + random.Random(seed).randbytes(size - NOISE_HEAD)


def noise_head(size: int) -> bytes:
    """Return what such a file of so many bytes begins with: NOISE_HEAD of them."""
    rest = size - NOISE_HEAD
    head = json.dumps({"noise": {"dtype": "U8", "shape": [rest], "data_offsets": [0, rest]}}).encode()
    return (NOISE_HEAD - 8).to_bytes(8, "little") + head.ljust(NOISE_HEAD - 8)


def publish_step(
    folder: Path, step: int, *, model_bytes: int = 20 * SHARD + 7, run: int = RUN, seed: int = 0
) -> Manifest:
    """Publish a checkpoint of noise, different for each step and seed, into `folder`/published."""
    checkpoint = make_checkpoint(folder / f"checkpoint-{step}", model_bytes=model_bytes, seed=f"{step}/{seed}")
    return publish(checkpoint, folder / "published", run, step, shard_bytes=SHARD)


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a flat folder by name, without the manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST_NAME}


def flip_bit(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def give(folder: Path, manifest: Manifest, dest: Path) -> Path:
    """Let a client have a step as if it had fetched it before."""
    return Path(shutil.copytree(version_path(folder / "published", manifest.root), version_path(dest, manifest.root)))


def write_step(folder: Path, step: int, *, share: float = 0.005) -> Path:
    """Write a checkpoint that differs from the step before in about `share` of its values, by one bit pattern."""
    rng = np.random.default_rng(0)
    weights = (rng.normal(0, 0.02, VALUES).astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    for number in range(1, step + 1):
        changing = np.random.default_rng(number)
        places = changing.random(VALUES) < share
        weights[places] += changing.choice(np.array([1, 0xFFFF], np.uint16), int(places.sum()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors({"weight": ("BF16", weights.tobytes())}))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


def safetensors(tensors: dict[str, tuple[str, bytes]]) -> bytes:
    """Return a safetensors file: dtype and bytes by name, in this order."""
    header, at = {}, 0
    for name, (dtype, data) in tensors.items():
        shape = [len(data) // WIDTHS.get(dtype, 1)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values())


def keeping(whole_every: int = 16, whole: int = 2, seconds: float = 0.0) -> StepRetention:
    """Return the choice by which a publisher keeps steps as differences, and drops those replaced so long ago."""
    return StepRetention(whole_every, seconds / 3600, whole)


def publish_steps(
    folder: Path, count: int, *, first: int = 0, deltas: StepRetention | None = None, keep: int = 16
) -> list[Manifest]:
    """Publish steps `first` to `count` - 1 into `folder`/published, with differences."""
    return [
        publish(
            write_step(folder / f"checkpoint-{step}", step),
            folder / "published",
            RUN,
            step,
            shard_bytes=SHARD,
            keep=keep,
            deltas=deltas or keeping(whole=100),
        )
        for step in range(first, count)
    ]


def forge_difference(folder: Path, base: Manifest, target: Manifest) -> None:
    """Put another version in place of the difference between two steps: well-formed, small, and wrong everywhere.

    It is the difference to a third step, and says that it makes `target`.
    """
    draft = folder / "draft"
    third = publish(write_step(draft / "third", 77, share=0.001), draft / "out", RUN, 77, shard_bytes=SHARD)
    forged = draft / "forged"
    forged.mkdir()
    start = TargetStep(version_path(folder, base.root), base)
    assert write_frames(start, TargetStep(version_path(draft / "out", third.root), third), forged)
    replace_difference(folder, forged, base, target)
    shutil.rmtree(draft)


def replace_difference(folder: Path, forged: Path, base: Manifest, target: Manifest) -> None:
    """Replace the difference between two steps by a version of the files in `forged` that claims to make `target`."""
    for version in versions(folder):
        if (old := read_manifest(version.path)).base_step is not None and old.step == target.step:
            remove_version(version.path)
    (forged / TARGET_NAME).write_bytes(target.canonical)
    manifest = describe(forged, target.step, base.step)
    (forged / MANIFEST_NAME).write_bytes(manifest.canonical)
    forged.rename(version_path(folder, manifest.root))
    write_index(folder)


def describe(folder: Path, step: int, base_step: int | None) -> Manifest:
    """Return a manifest of small files, each one shard."""
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    return Manifest(
        run=RUN,
        step=step,
        base_step=base_step,
        files=tuple(File(name=name, size=len(data)) for name, data in files),
        shards=tuple(
            Shard(index=i, file=i, offset=0, size=len(data), hash="0x" + blake3(data).hexdigest())
            for i, (_, data) in enumerate(files)
        ),
    )
