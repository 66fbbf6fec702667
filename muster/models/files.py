"""Checkpoint folders in Hugging Face's format: their tokenizer, what never changes in them, and their hashes.

Apart from `muster.models.init`, because reading a folder takes no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.errors import ConfigError, UsageError
from muster.runtime.documents import unique
from muster.runtime.files import sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""Names the file of each tensor where there are several: `model-00001-of-00002.safetensors` and so on."""
PART: Final = re.compile(r"model-[0-9]{5}-of-([0-9]{5})\.safetensors")

HUB_NAME: Final = re.compile(r"\w[\w.-]*/[\w.-]+")

FIXED_FILES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Whatever of these a folder has stays as it is while a run lasts: tokenizer, chat template, the model's configuration.
Two processes that read different ones would judge the same work differently."""

SNAPSHOTS: Final = ("", "models--*/", "hub/models--*/")
"""Where Hugging Face's cache keeps the folders of one model, of all, and of all beside other things."""
LFS_POINTER: Final = b"version https://git-lfs"

MAX_CONFIG_BYTES: Final = 1 << 20
MAX_BRACKETS: Final = 500
"""Lists and objects of a configuration."""


def checkpoint_problem(names: Iterable[str]) -> str:
    """Return why files of these names are no checkpoint; "" when they are FIXED_FILES and the weights of one model."""
    given = set(names) - set(FIXED_FILES)
    parts = [part for part in map(PART.fullmatch, sorted(given)) if part]
    whole = {WEIGHTS}
    if parts and WEIGHTS not in given:
        count = int(parts[0][1])
        whole = {INDEX, *(f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1))}
    if others := sorted(given - whole):
        return f"the file name {others[0]!r} is none of a checkpoint with {parts[0][0] if INDEX in whole else WEIGHTS}"
    if missing := sorted(whole - given):
        return f"no safetensors, or not all of them: {missing[0]} is missing"
    return ""


def check_place(folder: Path) -> None:
    """Raise ConfigError for a folder whose files are elsewhere: a cache's root, links to nothing, Git LFS pointers."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder", hint="name a checkpoint folder with safetensors")
    kept = [one for start in SNAPSHOTS for one in folder.glob(f"{start}snapshots/*/config.json")]
    if kept and not (folder / "config.json").exists():
        newest = max(kept, key=lambda path: path.lstat().st_mtime).parent
        raise ConfigError(f"{folder} is a cache of models, and no model's own folder", hint=f"name {newest}")
    for path in (one for one in sorted(folder.iterdir()) if one.name in FIXED_FILES or one.suffix == ".safetensors"):
        if path.is_symlink() and not path.exists():
            hint = f"copy the folder with what its links name (cp -rL), or download {path.name} again"
            raise ConfigError(f"{path} is a link to {path.readlink()}, where nothing is", hint=hint)
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                hint = f"git -C {folder} lfs pull"
                raise ConfigError(f"{path} is a pointer of Git LFS: the file itself was not downloaded", hint=hint)


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint, by folder or Hugging Face name. Raises ConfigError if there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        tokenizer("")  # heeds what is only read then
    except Exception as error:  # tokenizers raises this very class
        raise ConfigError(f"no tokenizer at {path}: {str(error)[:300]}", hint="muster model init") from error
    return tokenizer


def config_of(directory: Path, name: str = "config.json") -> dict[str, Any]:
    """Return a file of a checkpoint's configuration. Raises ConfigError when it cannot be read, or is no object."""
    path = directory / name
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES)  # a longer one is no JSON
        if data.count(b"[") + data.count(b"{") > MAX_BRACKETS:  # json fails on deep ones, in C
            raise ValueError("it nests or lists too much")
        config = json.loads(data, object_pairs_hook=unique)
        if not isinstance(config, dict):
            raise ValueError("it is no object of JSON")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="muster model init") from error
    return config


def vocabulary_of(directory: Path) -> int:
    """Return how many tokens a checkpoint's model has. Raises ConfigError if its config.json does not say."""
    size = config_of(directory).get("vocab_size")
    if type(size) is not int or size < 1:
        raise ConfigError(f"a vocab_size of {size!r} in {directory}/config.json", hint="muster model init")
    return size


def context_of(directory: Path) -> int | None:
    """Return the context length in tokens that a checkpoint's model was made for.

    None where its config.json does not say, or where positions are scaled (RoPE scaling), so that only who runs it
    knows. Raises ConfigError when config.json cannot be read.
    """
    config = config_of(directory)
    context = config.get("max_position_embeddings")
    ropes = [rope for name in ("rope_scaling", "rope_parameters") if isinstance(rope := config.get(name), dict)]
    stretched = any(rope.get("rope_type", "default") != "default" or "factor" in rope for rope in ropes)
    return context if isinstance(context, int) and not stretched else None


def folder_of(source: str) -> Path | None:
    """Return the checkpoint folder that `source` is, or None where it names a model of the hub. Raises UsageError."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if HUB_NAME.fullmatch(source):
        return None
    raise UsageError(
        f"{source} is no folder, and no name of a model",
        hint="name a checkpoint folder with safetensors, or a model of the hub as OWNER/NAME",
    )


def dtype_of(directory: Path) -> str:
    """Return the dtype that a checkpoint's config.json names, such as bfloat16; empty where it names none.

    Raises ConfigError when config.json cannot be read.
    """
    config = config_of(directory)
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def model_hash(directory: Path) -> bytes:
    """SHA-256 over config.json and every safetensors file: `Terms.model_hash`, the model that the run starts from."""
    return _hash_files(directory, [directory / "config.json", *directory.glob("*.safetensors")])


def tokenizer_hash(directory: Path) -> bytes:
    """SHA-256 over all that is not weights, `FIXED_FILES`: `Terms.tokenizer_hash`, the same at every step."""
    return _hash_files(directory, [directory / name for name in FIXED_FILES if (directory / name).is_file()])


def _hash_files(directory: Path, files: list[Path]) -> bytes:
    if not files or not all(path.is_file() for path in files):
        raise ConfigError(f"{directory} is no checkpoint folder", hint="muster model init")
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        total.update(len(path.name).to_bytes(4, "big") + path.name.encode() + bytes.fromhex(sha256_of(path)))
    return total.digest()
