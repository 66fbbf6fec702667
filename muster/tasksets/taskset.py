"""A task set in a folder, opened without reading its tasks.

    taskset.json          the document (`muster.tasksets.document`)
    shards/0x<sha256>     the shards (`muster.tasksets.packs`); those not fetched yet are absent
    components/0x<sha256> the components that its environments score by, where this machine did not build them

Opening reads the document alone. A shard is read, checked and decompressed when one of its tasks is asked for, and the
last few stay in memory. All methods may be called from several threads at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, overload

from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import Task
from muster.errors import ConfigError, MalformedError, MismatchError, StorageError
from muster.protocol.hashes import content_hash, is_hash
from muster.runtime.files import write_durably
from muster.tasksets.document import MAX_DOCUMENT_BYTES, TaskSetDocument, TaskSetPart
from muster.tasksets.packs import MAX_STORED_BYTES, TaskProof, TaskShard

DOCUMENT_NAME: Final = "taskset.json"
SHARDS_NAME: Final = "shards"
COMPONENTS_NAME: Final = "components"

CACHED_SHARDS: Final = 8
CACHED_BYTES: Final = 32 * 1024**2
"""Decompressed shards that stay in memory, at most; one always does."""

Scored = tuple[EnvironmentManifest, Task]
"""A task, and what scores it."""


@dataclass(frozen=True)
class _ShardPlace:
    """A shard's place in the set."""

    part: TaskSetPart
    shard: int

    @property
    def name(self) -> str:
        return self.part.shards[self.shard].hash


class TaskSet:
    """A task set, some of whose shards may be absent. `root` and `size` are what the run's terms name.

    Slots mean the tasks of one epoch, the first unless `at` says otherwise.
    """

    def __init__(self, folder: Path, document: TaskSetDocument) -> None:
        """Use a folder whose document was read already; see `open`."""
        self.folder = folder
        self.document = document
        self.epoch = 1
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], TaskShard] = OrderedDict()

    @classmethod
    def open(cls, folder: Path, root: bytes | None = None) -> TaskSet:
        """Open a folder; with `root`, check that it is the set that a run's terms name.

        Raises ConfigError without a document, MismatchError on another root, MalformedError on no document of ours.
        """
        path = folder / DOCUMENT_NAME
        data = _read(path, MAX_DOCUMENT_BYTES)
        if data is None:
            raise ConfigError(f"there is no task set in {folder}: no {path}", hint="muster tasks make")
        _check_root(data, root, str(path))
        return cls(folder, TaskSetDocument.parse(data))

    @classmethod
    def receive(cls, folder: Path, data: bytes, root: bytes) -> TaskSet:
        """Begin a set from a document that was fetched: keep it, once it is the one with this root.

        Raises MismatchError, MalformedError, or StorageError when it cannot be kept.
        """
        _check_root(data, root, "what was fetched")
        document = TaskSetDocument.parse(data)
        write_durably(folder / DOCUMENT_NAME, data)
        return cls(folder, document)

    # What the terms name

    @property
    def root(self) -> bytes:
        """Return `Terms.task_root`."""
        return self.document.root

    @property
    def size(self) -> int:
        """Return `Terms.task_count`: how many slots there are to draw from."""
        return self.document.slots

    def at(self, epoch: int) -> TaskSet:
        """Return the set as slots mean its tasks in an epoch; shards in memory are shared."""
        if not 1 <= epoch <= max(1, self.document.epochs):
            raise IndexError(f"epoch {epoch} of {self.document.epochs}")
        if epoch == self.epoch:
            return self
        view = copy(self)
        view.epoch = epoch
        return view

    # By slot

    def locate(self, slot: int) -> tuple[TaskSetPart, int]:
        """Return the part that a slot falls on, and the task's index in that part. Raises IndexError."""
        number, index = self.document.locate(slot, self.epoch)
        return self.document.parts[number], index

    def part(self, slot: int) -> TaskSetPart:
        """Return the part that a slot falls on."""
        return self.locate(slot)[0]

    def manifest(self, slot: int) -> EnvironmentManifest:
        """Return what scores the task of a slot."""
        return self.part(slot).environment

    def task(self, slot: int) -> Task:
        """Return the task of a slot. Raises StorageError when its shard is absent."""
        return self.task_of(*self.locate(slot))

    def proof(self, slot: int) -> TaskProof:
        """Return the task of a slot with the path to its part's root. Raises as `task`.

        Computes the tree of the whole shard when none of its tasks was proven lately: about 60 ms.
        """
        part, index = self.locate(slot)
        shown = self.shown_task(slot)
        return TaskProof(shown.line, (*shown.path, *part.tree.proof(part.locate(index)[0])))

    def shown_task(self, slot: int) -> TaskProof:
        """Return the task of a slot with the path to the root of its shard, for `verify_shown`.

        At most 10 hashes, 320 bytes. Costs and raises what `proof` does.
        """
        part, index = self.locate(slot)
        shard, place = part.locate(index)
        opened = self._shard(_ShardPlace(part, shard))
        return TaskProof(opened.line(place), tuple(opened.tree.proof(place)))

    def verify_shown(self, slot: int, proof: TaskProof) -> Task | None:
        """Return a task that was shown, once it is proven to be a slot's. Needs the document and no shard.

        None where what is proven is of no use: its line is no task, or it is not sealed as its part says. `task` raises
        MalformedError then, and a row of such a slot is judged by both alike.

        The path leads to the root of the shard that holds the slot: its worker has that shard, whose tree has one leaf
        per task. Under the part's root another, unavailable shard might hold a second leaf with the same index. Raises
        MismatchError, or MalformedError for what is no proof.
        """
        if not 0 <= slot < self.size:
            raise MismatchError(f"the task set has no slot {slot}")
        part, index = self.locate(slot)
        proof.check(part.shards[part.locate(index)[0]].root, index)
        with suppress(MalformedError):
            return _as_sealed(part, Task.from_line(proof.line))
        return None

    # All in order

    @cached_property
    def train(self) -> Sequence[Scored]:
        """The tasks of all training parts, in order, read as they are asked for."""
        return _Tasks(self, self.document.parts)

    @cached_property
    def held_out(self) -> Sequence[Scored]:
        """The tasks of all held-out parts, in order, read as they are asked for."""
        return _Tasks(self, self.document.held_out)

    def tasks_of(self, part: TaskSetPart) -> Iterator[Task]:
        """Yield the tasks of one of the document's parts. Raises StorageError at the first absent shard."""
        for shard in range(len(part.shards)):
            opened = self._shard(_ShardPlace(part, shard))
            for place in range(opened.entry.count):
                yield self._read_task(part, opened, place)

    def check_roots(self, part: TaskSetPart) -> None:
        """Raise MismatchError unless the Merkle roots of a part's shards are those that the document names."""
        for shard in range(len(part.shards)):
            _ = self._shard(_ShardPlace(part, shard)).tree

    # Shards

    def missing(self, slots: Iterable[int] | None = None) -> list[str]:
        """Return the hashes of the absent shards that hold the tasks of these slots; of all training tasks if None."""
        if slots is None:
            return self._absent(_places(self.document.parts))
        places = {}
        for slot in slots:
            part, index = self.locate(slot)
            place = _ShardPlace(part, part.locate(index)[0])
            places[place.name] = place
        return self._absent(places.values())

    def missing_held_out(self) -> list[str]:
        """Return the hashes of the absent shards of held-out tasks."""
        return self._absent(_places(self.document.held_out))

    def shard_path(self, name: str) -> Path:
        """Return where a shard is, or will be. Raises MismatchError when the set has none of that hash."""
        if not is_hash(name) or name not in self._by_hash:
            raise MismatchError(f"the task set has no shard {name[:80]!r}")
        return self.folder / SHARDS_NAME / name

    def put_shard(self, name: str, data: bytes) -> None:
        """Keep a shard that was fetched, once its hash, size, number of lines and Merkle root are right.

        Raises MismatchError or MalformedError when they are not, StorageError when it cannot be kept.
        """
        path = self.shard_path(name)
        for place in self._by_hash[name]:
            _ = TaskShard.open(place.part.shards[place.shard], place.part.firsts[place.shard], data).tree
        with self._lock:
            write_durably(path, data)

    def task_of(self, part: TaskSetPart, index: int) -> Task:
        """Return the task at an index of one of the document's parts. Raises as `task`."""
        shard, place = part.locate(index)
        return self._read_task(part, self._shard(_ShardPlace(part, shard)), place)

    def _read_task(self, part: TaskSetPart, shard: TaskShard, place: int) -> Task:
        """Read a task. Raises MalformedError when it is none, or not sealed as its part says."""
        return _as_sealed(part, shard.task(place))

    def _shard(self, place: _ShardPlace) -> TaskShard:
        """Return an open shard, from memory or from the folder."""
        key = (id(place.part), place.shard)  # parts live as long as the document
        with self._lock:
            shard = self._cache.get(key)
            if shard is None:
                shard = self._cache[key] = self._open(place)
                size = sum(one.entry.bytes for one in self._cache.values())
                while len(self._cache) > 1 and (len(self._cache) > CACHED_SHARDS or size > CACHED_BYTES):
                    size -= self._cache.popitem(last=False)[1].entry.bytes
            self._cache.move_to_end(key)
            return shard

    def _open(self, place: _ShardPlace) -> TaskShard:
        entry = place.part.shards[place.shard]
        path = self.shard_path(entry.hash)
        data = _read(path, MAX_STORED_BYTES)
        if data is None:
            raise StorageError(
                f"shard {entry.hash} of the task set (part {place.part.name}) is not in {path.parent}",
                hint="fetch the run's task set again",
            )
        try:
            return TaskShard.open(entry, place.part.firsts[place.shard], data)
        except MismatchError as error:
            raise MismatchError(f"{path} is damaged: {error}", hint="delete the file and fetch it again") from error

    def _absent(self, places: Iterable[_ShardPlace]) -> list[str]:
        names = dict.fromkeys(place.name for place in places)
        return [name for name in names if not self.shard_path(name).is_file()]

    @cached_property
    def _by_hash(self) -> dict[str, list[_ShardPlace]]:
        found: dict[str, list[_ShardPlace]] = {}
        for place in _places((*self.document.parts, *self.document.held_out)):
            found.setdefault(place.name, []).append(place)
        return found


def check_unsealed(document: TaskSetDocument) -> None:
    """Raise ConfigError when a part is sealed: what makes another set of this one comes before sealing."""
    if document.epochs:
        raise ConfigError("the task set has sealed parts", hint="use the set that was sealed, and seal the new one")


def _as_sealed(part: TaskSetPart, task: Task) -> Task:
    """Return a task of a part. Raises MalformedError when it is not sealed as its part says."""
    if (task.sealed is not None) != bool(part.sealed):
        wrong = "is not sealed in a sealed part" if part.sealed else "is sealed in a public part"
        raise MalformedError(f"task {task.id[:80]!r} of {part.name} {wrong}")
    return task


class _Tasks(Sequence[Scored]):
    """The tasks of some parts as one sequence, which reads them as they are asked for."""

    def __init__(self, task_set: TaskSet, parts: Sequence[TaskSetPart]) -> None:
        self._set = task_set
        self._parts = parts
        self._count = sum(part.count for part in parts)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Scored: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Scored]: ...

    def __getitem__(self, index: int | slice) -> Scored | Sequence[Scored]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        number, within = locate_in_order(self._parts, index + self._count if index < 0 else index)
        part = self._parts[number]
        return part.environment, self._set.task_of(part, within)

    def __iter__(self) -> Iterator[Scored]:
        for part in self._parts:
            for task in self._set.tasks_of(part):
                yield part.environment, task


def locate_in_order(parts: Sequence[TaskSetPart], index: int) -> tuple[int, int]:
    """Return the part, and the index in it, of a task that is counted through all parts."""
    rest = index
    for number, part in enumerate(parts):
        if 0 <= rest < part.count:
            return number, rest
        rest -= part.count
    raise IndexError(f"task {index} of {sum(part.count for part in parts)}")


def _places(parts: Iterable[TaskSetPart]) -> Iterator[_ShardPlace]:
    for part in parts:
        for shard in range(len(part.shards)):
            yield _ShardPlace(part, shard)


def _read(path: Path, limit: int) -> bytes | None:
    """Return a file's content, None when there is none. Raises MalformedError above the limit, StorageError."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise MalformedError(f"{path} has more than {limit} bytes")
    return data


def _check_root(data: bytes, root: bytes | None, what: str) -> None:
    actual = content_hash(data)
    if root is not None and actual != "0x" + root.hex():
        raise MismatchError(
            f"{what} has the root {actual}, the run's terms name 0x{root.hex()}", hint="fetch the run's task set again"
        )
