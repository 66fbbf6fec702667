"""The manifest: what a checkpoint consists of, byte for byte, and the root that stands for it on chain.

A version is a flat folder of files: those of a checkpoint (`muster.models.files.checkpoint_problem`) or of a
difference. Each file is cut into shards, the unit of transfer and of proof. The root is OpenZeppelin's Merkle root
(`muster.protocol.merkle`) over one leaf for the header and one per shard:

    header  (0, version, run, step, base, shards, keccak256 of the canonical JSON of `files`)
            base: 0 for a full checkpoint, else base_step + 1
    shard   (1, index, file, offset, size, blake3 of its bytes)

so the root from the chain verifies the manifest as a whole, and one shard with a proof alone.

Canonical bytes are JSON with sorted keys, no blanks and ASCII only. A manifest in any other form is refused: one root,
one sequence of bytes. Everything here treats a manifest as an attacker's until its root is the anchored one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from muster.errors import MismatchError
from muster.models.files import FIXED_FILES, INDEX, PART, WEIGHTS, checkpoint_problem
from muster.models.lora import CONFIG_NAME, WEIGHTS_NAME
from muster.protocol.hashes import keccak
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.protocol.messages import Hash, UInt32
from muster.runtime.documents import StrictDocument, canonical_json

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_VERSION: Final = 1

MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
"""Longest manifest that is read: room for MAX_SHARDS of them."""

MAX_FILES: Final = 256
MAX_SHARDS: Final = 1 << 16
MAX_SHARD_BYTES: Final = 32 * 1024 * 1024
"""A shard is held in memory until its hash is known, by every receiver."""

MAX_FILE_SIZE: Final = 1 << 42

TARGET_NAME: Final = "step.json"
FRAMES_NAME: Final = "step.delta"
FRAME_FILES: Final = (FRAMES_NAME, TARGET_NAME)
ADAPTER_FILES: Final = (CONFIG_NAME, WEIGHTS_NAME, TARGET_NAME)
"""What a difference is made of, in order of name (`muster.shardcast.delta`)."""

_HEADER_LEAF: Final = 0
_SHARD_LEAF: Final = 1


def name_problem(name: str) -> str:
    """Return why a file of this name cannot be part of a version; "" when it can."""
    if name in (*FIXED_FILES, WEIGHTS, INDEX, *FRAME_FILES, *ADAPTER_FILES) or PART.fullmatch(name):
        return ""
    return "is none of a checkpoint's or a difference's"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)  # `StrictDocument` says why to ignore


class File(_Frozen):
    """A file of the version: its plain name and its size in bytes."""

    name: Annotated[str, Field(max_length=127)]
    size: Annotated[int, Field(ge=0, le=MAX_FILE_SIZE)]


class Shard(_Frozen):
    """A piece of one file: bytes `offset` to `offset + size`, whose blake3 is `hash`."""

    index: UInt32
    file: UInt32
    """Index into the manifest's files."""
    offset: Annotated[int, Field(ge=0, le=MAX_FILE_SIZE)]
    size: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES)]
    hash: Hash

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.hash[2:])

    @property
    def end(self) -> int:
        """Return the offset of the first byte after it."""
        return self.offset + self.size

    @property
    def leaf(self) -> bytes:
        return leaf_of_words((_SHARD_LEAF, self.index, self.file, self.offset, self.size, self.digest))


class Manifest(StrictDocument, _Frozen):
    """One version of a run's weights. Files are in order of name; shards tile them in order, without gap or overlap."""

    what: ClassVar = "a manifest"
    max_bytes: ClassVar = MAX_MANIFEST_BYTES

    version: Literal[1] = MANIFEST_VERSION
    run: UInt32
    step: UInt32
    base_step: UInt32 | None = None
    """The step that the files are a difference to; None for a full checkpoint."""
    files: Annotated[tuple[File, ...], Field(min_length=1, max_length=MAX_FILES), FailFast()]
    shards: Annotated[tuple[Shard, ...], Field(max_length=MAX_SHARDS), FailFast()]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.base_step is not None and self.base_step >= self.step:
            raise ValueError(f"base step {self.base_step} is not before step {self.step}")
        names = tuple(file.name for file in self.files)
        if self.base_step is None and (problem := checkpoint_problem(names)):
            raise ValueError(problem)
        if self.base_step is not None and names not in (FRAME_FILES, ADAPTER_FILES):
            raise ValueError(f"the file names {', '.join(names)} are not those of a difference")
        for before, after in itertools.pairwise(names):
            if before >= after:
                raise ValueError(f"files are not in order of name, each once: {before!r}, {after!r}")
        _check_tiling(self.files, self.shards)
        return self

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def canonical(self) -> bytes:
        """Return the one sequence of bytes that this manifest is written as."""
        return self.to_bytes()

    @property
    def header_leaf(self) -> bytes:
        base = 0 if self.base_step is None else self.base_step + 1
        files = keccak(canonical_json([file.model_dump(mode="json") for file in self.files]))
        return leaf_of_words((_HEADER_LEAF, self.version, self.run, self.step, base, len(self.shards), files))

    @cached_property
    def tree(self) -> LeafTree:
        """Leaf 0 is the header's, leaf i + 1 that of shard i."""
        return LeafTree.from_hashes([self.header_leaf, *(shard.leaf for shard in self.shards)])

    @property
    def root(self) -> bytes:
        """Return what the run anchors on chain."""
        return self.tree.root

    @property
    def id(self) -> str:
        """Return the root as 0x-hex: the name of the version's folder and the middle of its URLs."""
        return "0x" + self.root.hex()

    def shards_of(self, name: str) -> tuple[Shard, ...]:
        """Return the shards of a file, in order."""
        return tuple(shard for shard in self.shards if self.files[shard.file].name == name)


def parse_manifest(data: bytes, root: bytes | None = None) -> Manifest:
    """Parse a manifest and check it against the anchored root where one is given.

    Raises MalformedError when it is too long, not a valid manifest or not in canonical form, MismatchError when its
    root is another.
    """
    manifest = Manifest.parse(data)
    if root is not None and manifest.root != root:
        raise MismatchError(f"the manifest's root is {manifest.id}, not 0x{root.hex()}")
    return manifest


def _check_tiling(files: Sequence[File], shards: Sequence[Shard]) -> None:
    """Raise ValueError unless the shards are the files' bytes in order, each byte once."""
    rest = iter(enumerate(shards))
    for number, file in enumerate(files):
        offset = 0
        while offset < file.size:
            index, shard = next(rest, (-1, None))
            if shard is None:
                raise ValueError(f"no shard holds byte {offset} of {file.name}")
            if (shard.index, shard.file, shard.offset) != (index, number, offset) or shard.end > file.size:
                raise ValueError(f"shard {index} is not the one that goes on at byte {offset} of {file.name}")
            offset = shard.end
    if (extra := next(rest, None)) is not None:
        raise ValueError(f"shard {extra[0]} belongs to no file")
