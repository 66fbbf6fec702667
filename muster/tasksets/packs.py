"""Shards: up to 1,024 tasks in one compressed file, and the proof that a task is part of a set.

A shard is the canonical lines of its tasks joined by newlines, compressed by zstd. Merkle trees are as OpenZeppelin
builds them (`muster.protocol.merkle`):

    leaf of a task  = leaf_of_words([index in the part, sha256(line)])
    root of a shard = of the tree over its leaves
    root of a part  = of the tree over its shards' roots

A task's proof is the path in its shard, then the path of the shard's root: to MerkleProof.verify they are one path.
An inner node hashes 64 bytes and a leaf 32, so a node cannot pass for a leaf. A leaf holds its index, so a task cannot
be shown under another one. The author of a set could build a tree with two leaves of one index. So every received shard
is hashed again, and discarded if its tree differs (`TaskSet.put_shard`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from muster.environments.task import MAX_TASK_BYTES, Task
from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash, keccak
from muster.protocol.merkle import LeafTree, leaf_of_words
from muster.tasksets.document import MAX_SHARD_BYTES, MAX_SLOTS, SHARD_TASKS, ShardEntry

if TYPE_CHECKING:
    import pyarrow

MAX_STORED_BYTES: Final = MAX_SHARD_BYTES + MAX_SHARD_BYTES // 128
"""Most bytes of a shard as it is stored; what zstd makes of incompressible lines is no larger."""

MAX_PATH: Final = 64
"""Longest path of a proof. A part of 2^32 tasks needs half of it."""

LEVEL: Final = 9

_LINE_BYTES: Final = bytes((ord("\n"), *range(0x20, 0x7F)))
"""What canonical JSON is written in, and the end of a line."""


def task_leaf(index: int, line: bytes) -> bytes:
    """Return the leaf of a task: its index in the part and its canonical line, hashed."""
    return leaf_of_words([index, hashlib.sha256(line).digest()])


def pack_shard(lines: Sequence[bytes], first: int) -> tuple[ShardEntry, bytes]:
    """Return a shard's entry and its stored bytes; `first` is the index of its first task in the part.

    Equal lines give equal bytes with one version of zstd; another may compress differently, and then names the same
    tasks by another hash.
    """
    text = b"\n".join(lines)
    if not 1 <= len(lines) <= SHARD_TASKS or not 1 <= len(text) <= MAX_SHARD_BYTES:
        raise MalformedError(f"a shard of {len(lines)} tasks and {len(text)} bytes")
    data = bytes(_codec().compress(text, asbytes=True))
    root = LeafTree.from_hashes([task_leaf(first + i, line) for i, line in enumerate(lines)]).root
    return ShardEntry(content_hash(data), root, len(lines), len(text)), data


@dataclass(frozen=True, eq=False)
class TaskShard:
    """A decompressed shard. Lines are parsed one by one, when they are asked for."""

    entry: ShardEntry
    first: int
    """Index of its first task in the part."""
    text: bytes
    ends: np.ndarray
    """Where each line ends: int64 [count]."""

    @classmethod
    def open(cls, entry: ShardEntry, first: int, data: bytes) -> TaskShard:
        """Check a shard's stored bytes and decompress them, to no more than the size that the document names.

        Raises MismatchError on another hash, MalformedError when size or number of lines are others, or when a line is
        too long or not of printable ASCII.
        """
        # 1. The bytes must be the ones that the document names.
        if len(data) > MAX_STORED_BYTES:
            raise MalformedError(f"shard {entry.hash} has {len(data)} bytes; at most {MAX_STORED_BYTES}")
        if content_hash(data) != entry.hash:
            raise MismatchError(f"these bytes are not shard {entry.hash}: their hash is {content_hash(data)}")

        # 2. Decompress into a buffer of exactly the size named: zstd stops at its end.
        try:
            text = bytes(_codec().decompress(data, decompressed_size=entry.bytes, asbytes=True))
        except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
            raise MalformedError(f"shard {entry.hash} is no zstd of {entry.bytes} bytes") from error
        if len(text) != entry.bytes:
            raise MalformedError(f"shard {entry.hash} decompresses to {len(text)} bytes, not {entry.bytes}")

        # 3. As many lines as named, none of them empty.
        breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        ends = np.append(breaks, len(text))
        if len(ends) != entry.count or np.diff(ends, prepend=-1).min() <= 1:
            raise MalformedError(f"shard {entry.hash} has {len(ends)} lines or an empty one, not {entry.count} tasks")

        # 4. Each of them fits into evidence, even one that is no task: the worker that draws it answers for its row.
        if np.diff(ends, prepend=-1).max() - 1 > MAX_TASK_BYTES or text.translate(None, _LINE_BYTES):
            raise MalformedError(f"shard {entry.hash} has a line that is too long, or not of printable ASCII")
        return cls(entry, first, text, ends)

    def line(self, place: int) -> bytes:
        """Return the canonical line of the shard's task at `place`, unparsed."""
        start = 0 if place == 0 else int(self.ends[place - 1]) + 1
        return self.text[start : int(self.ends[place])]

    def task(self, place: int) -> Task:
        """Return the shard's task at `place`. Raises MalformedError when its line is no task."""
        return Task.from_line(self.line(place))

    @cached_property
    def tree(self) -> LeafTree:
        """Return the tree over the shard's tasks. Raises MismatchError when the document names another root."""
        leaves = [task_leaf(self.first + i, self.line(i)) for i in range(self.entry.count)]
        tree = LeafTree.from_hashes(leaves)
        if tree.root != self.entry.root:
            raise MismatchError(f"shard {self.entry.hash} has another Merkle root than the task set's document names")
        return tree


@dataclass(frozen=True)
class TaskProof:
    """One task, and the path that shows it to be part of a task set, or of a shard."""

    line: bytes
    """The task's canonical line."""
    path: tuple[bytes, ...]
    """Sibling hashes from the task's leaf to the root of its part, or of its shard."""

    def verify(self, root: bytes, index: int) -> Task:
        """Return the task, once it is shown to be the one at `index` of its part, under that root.

        Raises MismatchError when it is not, MalformedError when the line is no task.
        """
        self.check(root, index)
        return Task.from_line(self.line)

    def check(self, root: bytes, index: int) -> None:
        """Check that the line, whatever it is, is the one at `index` under that root.

        Raises MismatchError when it is not, MalformedError for what is no proof.
        """
        if not 0 <= index <= MAX_SLOTS:
            raise MismatchError(f"no part has a task {index}")
        if len(self.path) > MAX_PATH or any(len(node) != 32 for node in self.path):
            raise MalformedError("a task's proof is a path of at most 64 hashes of 32 bytes")
        node = task_leaf(index, self.line)
        for sibling in self.path:
            node = keccak(min(node, sibling) + max(node, sibling))
        if node != root:
            raise MismatchError(f"the proof does not show this to be task {index} under that root")


@cache
def _codec() -> pyarrow.Codec:
    """Return zstd; pyarrow is imported when the first shard is opened."""
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=LEVEL)
