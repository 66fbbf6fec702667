"""Folders of models as other programs and half-done downloads leave them, and the next step that helps with each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from muster.models.files import INDEX, LFS_POINTER, WEIGHTS
from testbed.samples.families import write_family

PARTS: Final = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Change = Callable[[Path], object]
_KEPT: Final = "kept"
"""Beside a folder: a whole copy of it, as the hub would give it again."""


class Foreign(NamedTuple):
    """How a folder is changed, why `muster model fetch` refuses it, and what its next step comes to."""

    change: Change
    says: str = ""
    """A pattern; empty where the folder is taken."""
    next: str = ""
    """A pattern of the next step."""
    mend: Callable[[Path], Path | None] = lambda folder: None
    """Take the next step; return the folder to name, where that is another."""


def write_folder(folder: Path, kind: str) -> None:
    """Write a small model in two parts, and change it to the kind."""
    from safetensors.torch import load_file, save_file

    write_family(folder, "llama")
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for part, half in zip(PARTS, halves, strict=True):
        save_file({name: tensors[name].clone() for name in half}, folder / part, metadata={"format": "pt"})
    (folder / WEIGHTS).unlink()
    _write_index(folder, {name: part for part, half in zip(PARTS, halves, strict=True) for name in half})
    shutil.copytree(folder, folder.with_name(_KEPT))
    FOLDERS[kind].change(folder)


def _write_index(folder: Path, files: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(files)}))


def _again(*names: str) -> Callable[[Path], None]:
    """Return what downloads files again."""

    def mend(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            shutil.copyfile(folder.with_name(_KEPT) / name, folder / name)

    return mend


def _without(*names: str) -> Callable[[Path], None]:
    def mend(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return mend


def _write(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def _linked(folder: Path) -> None:
    """Make links of all files, as the hub's cache has them."""
    blobs = folder.with_name("blobs")
    blobs.mkdir()
    for path in list(folder.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../blobs/{path.name}")


def _dangling(folder: Path) -> None:
    _linked(folder)
    (folder.with_name("blobs") / PARTS[1]).unlink()


def _cached(inside: str) -> Change:
    """Return what makes the folder a cache that has the model as a snapshot."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name(_KEPT), folder / inside / "snapshots" / "0123abcd")
        (folder / inside / "refs").mkdir()

    return change


def _named(inside: str) -> Callable[[Path], Path]:
    return lambda folder: folder / inside / "snapshots" / "0123abcd"


def _part_left_out(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    _write_index(folder, {name: part for name, part in index.items() if part == PARTS[0]})


def _cut(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _only(name: str) -> Change:
    """Return what puts a file of another program in place of the weights."""

    def change(folder: Path) -> None:
        _without(*PARTS, INDEX)(folder)
        (folder / name).write_bytes(b"weights")

    return change


def _adapter(folder: Path) -> None:
    _only("adapter_model.safetensors")(folder)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def _swap(folder: Path) -> None:
    """Give the files of the two parts each other's names."""
    first, second = ((folder / part).read_bytes() for part in PARTS)
    (folder / PARTS[0]).write_bytes(second)
    (folder / PARTS[1]).write_bytes(first)


_POINTER: Final = LFS_POINTER + b".github.com/spec/v1\noid sha256:00\nsize 1\n"
_AGAIN: Final = "download .* again"
_WEIGHTS_AGAIN: Final = _again(*PARTS, INDEX)

FOLDERS: Final[Mapping[str, Foreign]] = MappingProxyType(
    {
        "links into a cache": Foreign(_linked),
        "what other programs read": Foreign(_write("preprocessor_config.json", b"{}")),
        "a consolidated file beside": Foreign(_write("consolidated.safetensors", b"weights")),
        "pickles beside": Foreign(_write("pytorch_model.bin", b"weights")),
        "a link to nothing": Foreign(_dangling, "is a link to .*, where nothing is", _AGAIN, _again(PARTS[1])),
        "a model in a cache": Foreign(_cached(""), "is a cache", "^name .*snapshots/0123abcd$", _named("")),
        "a cache": Foreign(_cached("models--a--b"), "is a cache", "snapshots/0123abcd$", _named("models--a--b")),
        "a cache's home": Foreign(
            _cached("hub/models--a--b"), "is a cache", "snapshots/0123abcd$", _named("hub/models--a--b")
        ),
        "a pointer for weights": Foreign(
            _write(PARTS[1], _POINTER), "a pointer of Git LFS", "lfs pull", _WEIGHTS_AGAIN
        ),
        "a pointer for a tokenizer": Foreign(
            _write("tokenizer.json", _POINTER), "a pointer of Git LFS", "lfs pull", _again("tokenizer.json")
        ),
        "an index that leaves a part out": Foreign(_part_left_out, "does not say which tensors", _AGAIN, _again(INDEX)),
        "an index that is none": Foreign(_write(INDEX, b"[]"), "does not say which tensors", _AGAIN, _again(INDEX)),
        "parts of each other's names": Foreign(_swap, "does not say which tensors", _AGAIN, _again(*PARTS)),
        "a part missing": Foreign(_without(PARTS[1]), "is missing", "download what is missing", _again(PARTS[1])),
        "no index": Foreign(_without(INDEX), f"{INDEX} is missing", "download what is missing", _again(INDEX)),
        "parts and a whole": Foreign(
            _write(WEIGHTS, b"weights"), "is none of a checkpoint", "remove what is too much", _without(WEIGHTS)
        ),
        "parts of another save": Foreign(
            _write("model-00003-of-00003.safetensors", b"weights"),
            "is none of a checkpoint",
            "remove what is too much",
            _without("model-00003-of-00003.safetensors"),
        ),
        "a download that broke off": Foreign(
            _cut(PARTS[1], lambda data: data[:-1]), "deserializing header", _AGAIN, _again(PARTS[1])
        ),
        "bytes behind the last": Foreign(
            _cut(PARTS[1], lambda data: data + b"more"), "not fully covered", _AGAIN, _again(PARTS[1])
        ),
        "a page instead of weights": Foreign(
            _write(PARTS[0], b"<html>Not found</html>"), "is not a safetensors file", _AGAIN, _again(PARTS[0])
        ),
        "an adapter alone": Foreign(_adapter, "is missing", "merge the adapter", _WEIGHTS_AGAIN),
        "pickles alone": Foreign(
            _only("pytorch_model.bin"), "is missing", "version with safetensors: loading pickle", _WEIGHTS_AGAIN
        ),
        "GGUF alone": Foreign(_only("model.gguf"), "is missing", "download what is missing", _WEIGHTS_AGAIN),
        "no configuration": Foreign(
            _without("config.json"), "config.json is missing", "download what is missing", _again("config.json")
        ),
    }
)
"""By what is odd of them."""
