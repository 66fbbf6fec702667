"""The document of a task set: its parts, how each is scored, and the hashes of the shards that hold the tasks.

It is canonical JSON, and its sha256 is the `task_root` of a run's terms, so the terms fix every task, every environment
and every source. The chain draws a *slot*, a number below `slots`; `locate` says which task that is.

A set of one part has one slot per task. In a mixture of parts with the weights w and their sum W,

    slot mod W        picks the part, by cumulative weight
    slot div W        picks the task, modulo the part's count

and there are W · Q slots, Q = (2^32 − 1) div W. So a part is drawn exactly as often as its weight says. Of its n tasks
each stands in Q div n or one more rounds: it is drawn equally often up to n / Q, which must be below one percent.
A part of 285,000 tasks allows weights up to W = 150.

A part may be *sealed* for an epoch e: its references are ciphertexts until that epoch ends (`sealing.py`). In epoch
e slots fall on the public parts and on those sealed for e, so their weights must add up to the same W in each epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import not_
from typing import Annotated, ClassVar, Final, Literal

from pydantic import FailFast, Field, computed_field

from muster.environments.manifest import EnvironmentManifest
from muster.environments.tools.registry import tools_root
from muster.errors import MalformedError, MismatchError
from muster.protocol.hashes import content_hash, hash_bytes
from muster.protocol.merkle import LeafTree
from muster.protocol.messages import Address, Hash
from muster.runtime.documents import StrictDocument

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

_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_SomeText = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


@dataclass(frozen=True)
class TaskSource:
    """Where tasks come from."""

    licence: _SomeText
    """Such as MIT."""
    origin: _SomeText
    """A data set's name and version, an address, or how they were made."""
    note: _Text = ""
    """Attribution that their authors ask for."""
    author: Annotated[Address | Literal[""], Field(exclude_if=not_)] = ""
    """Address of the author who signed them (`muster.authoring.contributions`); empty if unsigned."""


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the document names it."""

    hash: Hash
    """sha256 of the stored bytes: the name under which the shard is fetched."""
    root: Annotated[bytes, Field(min_length=32, max_length=32)]
    """Merkle root over the shard's tasks."""
    count: Annotated[int, Field(ge=1, le=SHARD_TASKS)]
    bytes: Annotated[int, Field(ge=1, le=MAX_SHARD_BYTES)]
    """Size of the decompressed lines."""


@dataclass(frozen=True)
class TaskSetPart:
    """Tasks of one environment."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    environment: EnvironmentManifest
    shards: Annotated[tuple[ShardEntry, ...], Field(min_length=1), FailFast()]
    weight: Annotated[int, Field(ge=1, le=MAX_SLOTS)] = 1
    """How often the part is drawn, relative to the other ones. Means nothing for a held-out part."""
    sources: Annotated[tuple[TaskSource, ...], Field(max_length=MAX_SOURCES), FailFast()] = ()
    sealed: Annotated[int, Field(ge=0, le=MAX_PARTS, exclude_if=not_)] = 0
    """The epoch whose master opens the part's references; 0: they are public."""

    @computed_field
    @cached_property
    def count(self) -> int:
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

    @computed_field
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
class TaskSetDocument(StrictDocument):
    """All of a task set but the tasks. Raises MalformedError when its numbers do not fit together."""

    what: ClassVar = "a task set's document"
    max_bytes: ClassVar = MAX_DOCUMENT_BYTES

    parts: Annotated[tuple[TaskSetPart, ...], FailFast()]
    """What is trained on, in the order that `locate` counts."""
    held_out: Annotated[tuple[TaskSetPart, ...], FailFast()] = ()
    """Parts that are only measured, without pay."""
    format: Literal["muster.tasks.v2"] = FORMAT

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
        return hash_bytes(content_hash(self.to_bytes()))

    @cached_property
    def tools_root(self) -> bytes:
        """Return `Terms.tools_root`. Raises ConfigError for a tool that this version does not have."""
        return tools_root(part.environment.turns for part in (*self.parts, *self.held_out))

    def check_tools(self, root: bytes) -> None:
        """Raise MismatchError unless `Terms.tools_root` is of this set's tools. Raises as `tools_root`."""
        found = self.tools_root
        if found != root:
            raise MismatchError(f"the run's terms name the tools 0x{root.hex()}, its task set has 0x{found.hex()}")

    @cached_property
    def train_count(self) -> int:
        return sum(part.count for part in self.parts)

    @cached_property
    def held_out_count(self) -> int:
        return sum(part.count for part in self.held_out)

    @cached_property
    def _total_weight(self) -> int:
        return sum(part.weight for part in self._active(1))

    @cached_property
    def _rounds(self) -> int:
        return MAX_SLOTS // self._total_weight
