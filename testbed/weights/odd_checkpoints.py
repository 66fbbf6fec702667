"""Checkpoint folders out of which two programs could read other weights: each kind once, for all who must refuse it.

A maker changes a folder in place: one that `whole` wrote, or `in_parts`. ODD_NAMES shows in the files' names, which
relays look at too. ODD_HEADS shows only in what the files say of themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from muster.models.files import INDEX, WEIGHTS
from muster.models.weights import EMBEDDING, HEAD
from testbed.weights.checkpoints import safetensors

NORM: Final = "model.norm.weight"
PARTS: Final = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

_TENSORS: Final[Mapping[str, tuple[str, bytes]]] = MappingProxyType(
    {NORM: ("F32", bytes(range(32))), EMBEDDING: ("F32", bytes(range(64)))}
)


def whole(folder: Path) -> None:
    """Write a checkpoint whose weights are in one file."""
    _write(folder, {WEIGHTS: _TENSORS})


def in_parts(folder: Path) -> None:
    """Write the same with its weights in two files and an index."""
    norm, embedding = ({name: _TENSORS[name]} for name in (NORM, EMBEDDING))
    _write(folder, dict(zip(PARTS, (norm, embedding), strict=True)))
    _index(folder, {NORM: PARTS[0], EMBEDDING: PARTS[1]})


def _write(folder: Path, files: Mapping[str, Mapping[str, tuple[str, bytes]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": 8, "eos_token_id": 1, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        (folder / name).write_bytes(safetensors(dict(tensors)))


def _index(folder: Path, files: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(files)}))


class Odd(NamedTuple):
    begin: Callable[[Path], None]
    change: Callable[[Path], object]
    says: str
    """A pattern of why it is refused."""


def _add(name: str, data: bytes | None = None) -> Callable[[Path], object]:
    """Return what adds a file: other weights under the same names where nothing else is said."""
    others = safetensors({one: (kind, bytes(len(old))) for one, (kind, old) in _TENSORS.items()})
    return lambda folder: (folder / name).write_bytes(others if data is None else data)


def _rename(old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / old).rename(folder / new)


def _indexed(files: Mapping[str, str]) -> Callable[[Path], object]:
    return lambda folder: _index(folder, {NORM: PARTS[0], EMBEDDING: PARTS[1], **files})


def _without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _adapter(folder: Path) -> None:
    """Add an adapter, which transformers would merge into the weights."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "elsewhere"}')
    _add("adapter_model.safetensors")(folder)


def _in_both(folder: Path) -> None:
    """Put a tensor into the second file too; the index names the first."""
    second = {EMBEDDING: _TENSORS[EMBEDDING], NORM: ("F32", bytes(32))}
    (folder / PARTS[1]).write_bytes(safetensors(second))


def _twice(folder: Path) -> None:
    """Name a tensor twice in the index: the first time with a file that is not there."""
    _index(folder, {NORM: PARTS[0], "x": "x", EMBEDDING: PARTS[1]})
    (folder / INDEX).write_text((folder / INDEX).read_text().replace('"x":', f'"{EMBEDDING}":'))


def _head(change: Callable[[list[tuple[str, dict[str, Any]]]], object], more: bytes = b"") -> Callable[[Path], object]:
    """Return what changes the head of the one file: a list of names and entries, in which a name can stand twice."""

    def rewrite(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        entries = list(json.loads(data[8 : 8 + length]).items())
        change(entries)
        head = ("{" + ", ".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries) + "}").encode()
        (folder / WEIGHTS).write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :] + more)

    return rewrite


def _same_bytes(entries: list[tuple[str, dict[str, Any]]]) -> None:
    """Give the norm the first bytes of the embedding: two names for the same bytes."""
    entries[0][1]["data_offsets"] = [32, 64]


def store_head(folder: Path, data: bytes) -> None:
    """Store a head beside the embedding that it is tied to: vLLM computes with what is stored, and a replay ties it."""
    (folder / WEIGHTS).write_bytes(safetensors({**_TENSORS, HEAD: ("F32", data)}))


_NONE: Final = "is none of a checkpoint with "

ODD_NAMES: Final[Mapping[str, Odd]] = MappingProxyType(
    {
        "a consolidated file": Odd(whole, _add("consolidated.safetensors"), f"consolidated.*{_NONE}model.safetensors"),
        "one more file": Odd(whole, _add("more.safetensors"), f"more.*{_NONE}"),
        "one more file beside parts": Odd(in_parts, _add("consolidated.safetensors"), f"consolidated.*{_NONE}model-0"),
        "one file beside parts": Odd(in_parts, _add(WEIGHTS), f"model-00001.*{_NONE}model.safetensors"),
        "a part beside one file": Odd(whole, _add(PARTS[0]), f"model-00001.*{_NONE}"),
        "a part too many": Odd(in_parts, _add("model-00003-of-00002.safetensors"), f"model-00003.*{_NONE}"),
        "a part of other parts": Odd(in_parts, _add("model-00001-of-00003.safetensors"), f"of-00003.*{_NONE}"),
        "a part missing": Odd(in_parts, _without(PARTS[1]), "model-00002-of-00002.safetensors is missing"),
        "parts without an index": Odd(in_parts, _without(INDEX), "index.json is missing"),
        "an index of one file": Odd(whole, lambda folder: _index(folder, {NORM: WEIGHTS}), f"index.*{_NONE}"),
        "an index of other files": Odd(whole, _add("consolidated.safetensors.index.json", b"{}"), f"index.*{_NONE}"),
        "one file by another name": Odd(whole, _rename(WEIGHTS, "weights.safetensors"), f"weights.*{_NONE}"),
        "a name in capitals": Odd(whole, _rename(WEIGHTS, "MODEL.safetensors"), f"MODEL.*{_NONE}"),
        "an adapter": Odd(whole, _adapter, f"adapter_config.*{_NONE}"),
        "another tokenizer": Odd(whole, _add("tekken.json", b"{}"), f"tekken.*{_NONE}"),
        "a quantization": Odd(whole, _add("hf_quant_config.json", b"{}"), f"hf_quant.*{_NONE}"),
        "a difference": Odd(whole, _add("step.json", b"{}"), f"step.json.*{_NONE}"),
    }
)

ODD_HEADS: Final[Mapping[str, Odd]] = MappingProxyType(
    {
        "a tensor in both parts": Odd(in_parts, _in_both, f"{NORM} is both in {PARTS[0]} and in {PARTS[1]}"),
        "an index that lacks a tensor": Odd(in_parts, lambda folder: _index(folder, {NORM: PARTS[0]}), "does not say"),
        "an index with another file": Odd(in_parts, _indexed({NORM: PARTS[1]}), "does not say"),
        "an index with one more tensor": Odd(in_parts, _indexed({HEAD: PARTS[1]}), "does not say"),
        "an index with a key twice": Odd(in_parts, _twice, "does not say"),
        "an index that is none": Odd(in_parts, _add(INDEX, b"["), "does not say"),
        "a name twice": Odd(whole, _head(lambda entries: entries.append(entries[0])), "a key twice"),
        "two names for the same bytes": Odd(whole, _head(_same_bytes), "deserializing header"),
        "bytes of no tensor": Odd(whole, _head(lambda entries: entries.pop()), "not fully covered"),
        "bytes after all": Odd(whole, _head(lambda entries: None, bytes(64)), "not fully covered"),
        "another shape": Odd(whole, _head(lambda entries: entries[0][1].update(shape=[9])), "deserializing header"),
        "a file cut off": Odd(
            whole,
            lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1]),
            "not fully covered",
        ),
        "no head": Odd(whole, _add(WEIGHTS, bytes(64)), "is not a safetensors file"),
        "a head beside a tied embedding": Odd(
            whole, lambda folder: store_head(folder, bytes(64)), "another lm_head.weight than model.embed_tokens.weight"
        ),
    }
)
