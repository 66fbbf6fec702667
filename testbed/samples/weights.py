"""Small checkpoints and versions for the tests of weights."""

from __future__ import annotations

import random
from pathlib import Path


def make_checkpoint(folder: Path, *, model_bytes: int = 100_000, seed: int = 0) -> Path:
    """Return a folder that looks like a checkpoint: model, configuration, tokenizer; the model is noise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(random.Random(seed).randbytes(model_bytes))
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "chat_template.jinja").write_text("")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a flat folder by name, without the manifest."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


def flip_bit(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
