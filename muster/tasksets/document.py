"""The document of a task set: its parts, how each is scored, and the hashes of the shards that hold the tasks.

It is canonical JSON, and its sha256 is the `task_root` of a run's terms, so the terms fix every task, every environment
and every source. The chain draws a *slot*, a number below `slots`; `locate` says which task that is.

A set of one part has one slot per task. In a mixture of parts with the weights w and their sum W,

    slot mod W        picks the part, by cumulative weight
    slot div W        picks the task, modulo the part's count

and there are W · Q slots, Q = (2^32 − 1) div W. So a part is drawn exactly as often as its weight says. Of its n tasks
each stands in Q div n or one more rounds: it is drawn equally often up to n / Q, which must be below one percent.
A part of 285,000 tasks allows weights up to W = 150.

A part may be *sealed* for an epoch e: its references are ciphertexts until that epoch ends (`muster.grading`). In epoch
e slots fall on the public parts and on those sealed for e, so their weights must add up to the same W in each epoch.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

from pydantic_core import from_json

from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import canonical_json
from muster.errors import MalformedError
from muster.protocol.hashes import content_hash, hash_bytes, is_hash
from muster.protocol.merkle import LeafTree

FORMAT: Final = "muster.tasks.v2"
MAX_DOCUMENT_BYTES: Final = 16 * 1024**2
MAX_SLOTS: Final = (1 << 32) - 1
"""`Terms.task_count` is a uint32."""

SHARD_TASKS: Final = 1024
"""Most tasks of a shard. Changing these two changes which task sets nodes refuse, and every root that is made."""
MAX_SHARD_BYTES: Final = 16 * 1024**2
"""Most bytes of a shard's lines, decompressed."""

MAX_PARTS: Final = 256
MAX_SOURCES: Final = 64
MAX_TEXT: Final = 2000
MIN_ROUNDS: Final = 100
"""How often a mixture's slots go through each part, at least: tasks are drawn equally often up to 1 / MIN_ROUNDS."""

_PART_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


@dataclass(frozen=True)
class TaskSource:
    """Where tasks come from."""

    licence: str
    """Such as MIT."""
    origin: str
    """A data set's name and version, an address, or how they were made."""
    note: str = ""
    """What else their authors want to be said."""
    author: str = ""
    """Address of the author who signed them (`muster.authoring.contributions`); empty if unsigned."""


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the document names it."""

    hash: str
    """sha256 of the stored bytes: the name under which the shard is fetched."""
    root: bytes
    """Merkle root over the shard's tasks."""
    count: int
    bytes: int
    """Size of the decompressed lines."""


@dataclass(frozen=True)
class TaskSetPart:
    """Tasks of one environment."""

    name: str
    environment: EnvironmentManifest
    shards: tuple[ShardEntry, ...]
    weight: int = 1
    """How often the part is drawn, relative to the other ones. Means nothing for a held-out part."""
    sources: tuple[TaskSource, ...] = ()
    sealed: int = 0
    """The epoch whose master opens the part's references; 0: they are public."""

    @cached_property
    def count(self) -> int:
        """Return the number of tasks."""
        return sum(shard.count for shard in self.shards)

    @property
    def author(self) -> str:
        """Return the address of the author who signed the tasks; empty if unsigned."""
        return next((source.author for source in self.sources if source.author), "")

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Return each shard's first index."""
        return tuple(accumulate((shard.count for shard in self.shards[:-1]), initial=0))

    @cached_property
    def tree(self) -> LeafTree:
        """Return the tree over the shards' roots."""
        return LeafTree.from_hashes([shard.root for shard in self.shards])

    @property
    def root(self) -> bytes:
        """Return the Merkle root over all tasks of the part."""
        return self.tree.root

    def locate(self, index: int) -> tuple[int, int]:
        """Return the shard that holds a task, and the task's place in it. Raises IndexError."""
        if not 0 <= index < self.count:
            raise IndexError(f"task {index} of {self.count} in {self.name}")
        shard = bisect_right(self.firsts, index) - 1
        return shard, index - self.firsts[shard]


@dataclass(frozen=True)
class TaskSetDocument:
    """All of a task set but the tasks. Raises MalformedError when its numbers do not fit together."""

    parts: tuple[TaskSetPart, ...]
    """What is trained on, in the order that `locate` counts."""
    held_out: tuple[TaskSetPart, ...] = ()
    """Parts that are only measured, without pay."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS or len(self.held_out) > MAX_PARTS:
            raise MalformedError(f"a task set has 1 to {MAX_PARTS} parts, not {len(self.parts)}")
        for parts in (self.parts, self.held_out):
            names = [part.name for part in parts]
            if len(set(names)) != len(names):
                raise MalformedError(f"two parts of the task set have one name: {', '.join(sorted(names))[:200]}")
        most = max(part.count for part in (*self.parts, *self.held_out))
        if most > MAX_SLOTS:
            raise MalformedError(f"a part of {most} tasks; at most {MAX_SLOTS}")
        self._check_epochs()
        largest = max(part.count for part in self.parts)
        if len(self.parts) > 1 and self._rounds // largest < MIN_ROUNDS:
            raise MalformedError(
                f"weights that add up to {self._total_weight} are too large for a part of {largest} tasks: "
                f"its tasks would not be drawn equally often; give smaller weights"
            )

    def _check_epochs(self) -> None:
        """Check that epochs are counted from 1 without a gap, and that each draws from the same number of slots."""
        sealed = {part.sealed for part in self.parts if part.sealed}
        if sealed != set(range(1, len(sealed) + 1)):
            raise MalformedError(f"parts are sealed for the epochs {sorted(sealed)[:8]}, not for 1, 2, and so on")
        if any(part.sealed for part in self.held_out):
            raise MalformedError("a held-out part is sealed: it could not be measured")
        if any(part.sealed and part.environment.is_native for part in self.parts):
            raise MalformedError(
                "a sealed part is scored by native programs, whose scores may differ: its grades could not be judged"
            )
        weights = {sum(part.weight for part in self._active(epoch)) for epoch in range(1, self.epochs + 1)}
        if len(weights) > 1:
            raise MalformedError(f"the weights of the parts add up to {sorted(weights)[:8]} in different epochs")

    @cached_property
    def epochs(self) -> int:
        """Return the number of epochs that parts are sealed for: `Terms.grade_epochs`. 0: every part is public."""
        return max(part.sealed for part in self.parts)

    def _active(self, epoch: int) -> list[TaskSetPart]:
        """Return the parts that slots fall on in an epoch, in order."""
        return [part for part in self.parts if part.sealed in (0, epoch)]

    @cached_property
    def _places(self) -> dict[int, tuple[list[int], list[int]]]:
        """By epoch: the numbers of the parts that slots fall on, and the bounds of their weights."""
        found = {}
        for epoch in range(1, max(1, self.epochs) + 1):
            numbers = [number for number, part in enumerate(self.parts) if part.sealed in (0, epoch)]
            found[epoch] = numbers, list(accumulate(self.parts[number].weight for number in numbers))
        return found

    @cached_property
    def slots(self) -> int:
        """Return how many numbers the chain draws from: `Terms.task_count`."""
        return self.parts[0].count if len(self.parts) == 1 else self._total_weight * self._rounds

    def locate(self, slot: int, epoch: int = 1) -> tuple[int, int]:
        """Return the part that a slot falls on in an epoch, and the task's index in that part. Raises IndexError."""
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} of {self.slots}")
        if len(self.parts) == 1:
            return 0, slot
        turn, within = divmod(slot, self._total_weight)
        numbers, bounds = self._places[epoch]
        part = numbers[bisect_right(bounds, within)]
        return part, turn % self.parts[part].count

    @cached_property
    def root(self) -> bytes:
        """Return sha256 of the canonical bytes: `Terms.task_root`."""
        return hash_bytes(content_hash(self.canonical_bytes()))

    @cached_property
    def train_count(self) -> int:
        """Return the number of training tasks of all parts."""
        return sum(part.count for part in self.parts)

    @cached_property
    def held_out_count(self) -> int:
        """Return the number of held-out tasks of all parts."""
        return sum(part.count for part in self.held_out)

    def canonical_bytes(self) -> bytes:
        """Return the document's one form. Raises MalformedError when a text is not valid or it is too large."""
        data = canonical_json(
            {
                "format": FORMAT,
                "held_out": [_part_document(part) for part in self.held_out],
                "parts": [_part_document(part) for part in self.parts],
            }
        )
        if len(data) > MAX_DOCUMENT_BYTES:
            raise MalformedError(f"a task set's document of {len(data)} bytes; at most {MAX_DOCUMENT_BYTES}")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskSetDocument:
        """Read a document strictly. Raises MalformedError on anything that `canonical_bytes` does not write."""
        # 1. Parse no more than the limit.
        if len(data) > MAX_DOCUMENT_BYTES:
            raise MalformedError(f"a task set's document of {len(data)} bytes; at most {MAX_DOCUMENT_BYTES}")
        try:
            value = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedError(f"a task set's document that is not JSON: {error}") from error

        # 2. Check what it holds.
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise MalformedError(f"not the document of a task set in the format {FORMAT}")
        _keys(value, {"format", "held_out", "parts"}, "the task set's document")
        parts, held_out = (_list(value[name], MAX_PARTS, name) for name in ("parts", "held_out"))
        document = cls(tuple(_part(part) for part in parts), tuple(_part(part) for part in held_out))

        # 3. One set has one form, and so one root.
        if document.canonical_bytes() != data:
            raise MalformedError("the task set's document is not in canonical form")
        return document

    @cached_property
    def _total_weight(self) -> int:
        return sum(part.weight for part in self._active(1))

    @cached_property
    def _rounds(self) -> int:
        return MAX_SLOTS // self._total_weight


def _part_document(part: TaskSetPart) -> dict[str, Any]:
    sealed = {"sealed": part.sealed} if part.sealed else {}  # a public set keeps the root that it always had
    return {
        **sealed,
        "count": part.count,
        "environment": part.environment.to_document(),
        "name": part.name,
        "root": part.root.hex(),
        "shards": [
            {"bytes": shard.bytes, "count": shard.count, "hash": shard.hash, "root": shard.root.hex()}
            for shard in part.shards
        ],
        "sources": [_source_document(source) for source in part.sources],
        "weight": part.weight,
    }


def _source_document(source: TaskSource) -> dict[str, Any]:
    """Return a source as JSON; `author` stands there only where there is one, so that older sets keep their roots."""
    written = {"licence": source.licence, "note": source.note, "origin": source.origin}
    return written | ({"author": source.author} if source.author else {})


def _part(value: object) -> TaskSetPart:
    names = {"count", "environment", "name", "root", "shards", "sources", "weight"}
    if isinstance(value, dict) and "sealed" in value:
        names.add("sealed")
    fields = _keys(value, names, "a part of the task set")
    name = _text(fields["name"], 64, "a part's name")
    if not _PART_NAME.fullmatch(name):
        raise MalformedError(f"a part named {name!r}; use small letters, digits, dots, dashes and underscores")
    shards = _list(fields["shards"], MAX_DOCUMENT_BYTES, f"the shards of {name}")
    if not shards:
        raise MalformedError(f"part {name} has no shards")
    part = TaskSetPart(
        name=name,
        environment=EnvironmentManifest.from_document(fields["environment"]),
        shards=tuple(_shard(shard, name) for shard in shards),
        weight=_whole(fields["weight"], 1, MAX_SLOTS, f"the weight of {name}"),
        sources=tuple(_source(one, name) for one in _list(fields["sources"], MAX_SOURCES, f"the sources of {name}")),
        sealed=_whole(fields["sealed"], 1, MAX_PARTS, f"the epoch of {name}") if "sealed" in fields else 0,
    )
    if fields["count"] != part.count or type(fields["count"]) is not int:
        raise MalformedError(f"part {name} says {str(fields['count'])[:40]} tasks, its shards hold {part.count}")
    if fields["root"] != part.root.hex():
        raise MalformedError(f"part {name} names another root than its shards have")
    return part


def _shard(value: object, part: str) -> ShardEntry:
    fields = _keys(value, {"bytes", "count", "hash", "root"}, f"a shard of {part}")
    name, root = _text(fields["hash"], 66, f"a shard's hash in {part}"), fields["root"]
    if not is_hash(name) or not isinstance(root, str) or not is_hash(f"0x{root}"):
        raise MalformedError(f"a shard of {part} whose hash or root is not 32 bytes in hex")
    return ShardEntry(
        hash=name,
        root=bytes.fromhex(root),
        count=_whole(fields["count"], 1, SHARD_TASKS, f"the count of shard {name}"),
        bytes=_whole(fields["bytes"], 1, MAX_SHARD_BYTES, f"the bytes of shard {name}"),
    )


def _source(value: object, part: str) -> TaskSource:
    signed = isinstance(value, dict) and "author" in value
    fields = _keys(value, {"licence", "note", "origin"} | ({"author"} if signed else set()), f"a source of {part}")
    licence, note, origin = (_text(fields[key], MAX_TEXT, f"{key} of {part}") for key in ("licence", "note", "origin"))
    if not licence or not origin:
        raise MalformedError(f"a source of {part} without a licence or an origin")
    author = _text(fields.get("author", ""), 42, f"the author of a source of {part}")
    if signed and not _ADDRESS.fullmatch(author):
        raise MalformedError(f"a source of {part} whose author is {author!r}, no address")
    return TaskSource(licence, origin, note, author)


def _keys(value: object, names: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise MalformedError(f"{what} must have exactly the fields {', '.join(sorted(names))}")
    return value


def _list(value: object, limit: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise MalformedError(f"{what} must be a list of at most {limit}")
    return value


def _text(value: object, limit: int, what: str) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise MalformedError(f"{what} must be a text of at most {limit} characters")
    return value


def _whole(value: object, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise MalformedError(f"{what} must be a whole number from {low} to {high}, not {str(value)[:40]}")
    return value
