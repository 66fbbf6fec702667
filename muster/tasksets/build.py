"""Write a task set from tasks that come one after the other, in bounded memory."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Self

from pydantic_core import from_json

from muster.environments.manifest import EnvironmentManifest
from muster.environments.task import Task
from muster.errors import CheckError, ConfigError, MalformedError, StorageError
from muster.runtime.files import sync, write_durably, written_whole
from muster.sandbox.component import find_component
from muster.tasksets.document import MAX_SHARD_BYTES, SHARD_TASKS, ShardEntry, TaskSetDocument, TaskSetPart, TaskSource
from muster.tasksets.packs import pack_shard
from muster.tasksets.taskset import (
    COMPONENTS_NAME,
    DOCUMENT_NAME,
    SHARDS_NAME,
    TaskSet,
    check_unsealed,
    locate_in_order,
)


@dataclass(frozen=True)
class NewPart:
    name: str
    environment: EnvironmentManifest
    tasks: Iterable[Task | bytes]
    """Gone through once. Lines that `Task.to_line` gave are taken as they are."""
    weight: int = 1
    sources: Sequence[TaskSource] = ()
    sealed: int = 0
    """The epoch for which its tasks were sealed; 0: they are public."""

    @classmethod
    def of(cls, task_set: TaskSet, part: TaskSetPart) -> Self:
        """Return a part of a set as it is there."""
        return cls(part.name, part.environment, task_set.tasks_of(part), part.weight, part.sources)


def write_task_set(
    folder: Path, parts: Iterable[NewPart], held_out: Iterable[NewPart] = (), components: Sequence[Path] = ()
) -> TaskSet:
    """Write a task set, whole or not at all, in place of one that was in the folder. Return it, open.

    The components that score it come from this machine's build or the folders in `components`. A part without tasks is
    left out. Raises ConfigError when no training task is left or when the folder holds something else, MalformedError
    when a task cannot be one or two have one id, StorageError when the disk refuses.
    """
    check_replaceable(folder)
    try:
        with written_whole(folder) as work:
            # 1. The shards.
            (work / SHARDS_NAME).mkdir()
            ids: set[bytes] = set()
            written = [_write_part(part, work / SHARDS_NAME, ids) for part in parts]
            kept = [_write_part(part, work / SHARDS_NAME, ids) for part in held_out]

            # 2. The document, read back as its readers will read it.
            training = tuple(part for part in written if part.shards)
            if not training:
                hint = "check what was left out, and why"
                raise ConfigError("a task set needs at least one training task", hint=hint)
            document = TaskSetDocument(training, tuple(part for part in kept if part.shards))
            data = document.to_bytes()
            document = TaskSetDocument.parse(data)
            write_durably(work / DOCUMENT_NAME, data)

            # 3. The components that it is scored by, as far as they are here.
            for part in (*document.parts, *document.held_out):
                _keep_component(part.environment, work / COMPONENTS_NAME, components)
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", hint="is the disk full?") from error
    return TaskSet(folder, document)


def write_subset(task_set: TaskSet, indices: Sequence[int], folder: Path) -> TaskSet:
    """Write the set with these training tasks only, by their index in `train`, and with all held-out ones.

    Parts keep their names, weights and sources; a part that nothing is left of goes. Raises as `write_task_set`, and
    ConfigError when a part is sealed: its keys name its tasks by the set that was sealed.
    """
    check_unsealed(task_set.document)

    # 1. The indices, by part, in the order given.
    parts = task_set.document.parts
    located = [locate_in_order(parts, index) for index in indices]
    chosen = []
    for number, part in enumerate(parts):
        within = [place for owner, place in located if owner == number]
        tasks = map(partial(task_set.task_of, part), within)
        chosen.append(NewPart(part.name, part.environment, tasks, part.weight, part.sources))

    # 2. What is held out stays as it is.
    held_out = [NewPart.of(task_set, part) for part in task_set.document.held_out]
    return write_task_set(folder, chosen, held_out, [task_set.folder / COMPONENTS_NAME])


def _write_part(part: NewPart, folder: Path, ids: set[bytes]) -> TaskSetPart:
    entries: list[ShardEntry] = []
    first = 0
    for lines in _shards(part.tasks, ids):
        entry, data = pack_shard(lines, first)
        (folder / entry.hash).write_bytes(data)
        sync(folder / entry.hash)
        entries.append(entry)
        first += entry.count
    return TaskSetPart(part.name, part.environment, tuple(entries), part.weight, tuple(part.sources), part.sealed)


def _keep_component(manifest: EnvironmentManifest, folder: Path, components: Sequence[Path]) -> None:
    for name, source in product(manifest.components, (*components, folder)):
        with suppress(CheckError):  # a missing component is reported by the orchestrator
            if not (folder / name).exists():
                component = find_component(name, source)
                folder.mkdir(exist_ok=True)
                shutil.copyfile(component.path, folder / component.hash)
                sync(folder / component.hash)


def _shards(tasks: Iterable[Task | bytes], ids: set[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines of each shard: as many tasks as it may have, and as fit."""
    lines: list[bytes] = []
    size = -1
    for task in tasks:
        line, own = (task, from_json(task)["id"]) if isinstance(task, bytes) else (task.to_line(), task.id)
        name = hashlib.sha256(own.encode()).digest()[:12]
        if name in ids:
            raise MalformedError(f"two tasks have the id {own[:80]!r}", hint="is one of the sources in twice?")
        ids.add(name)
        if len(lines) == SHARD_TASKS or (lines and size + 1 + len(line) > MAX_SHARD_BYTES):
            yield lines
            lines, size = [], -1
        lines.append(line)
        size += 1 + len(line)
    if lines:
        yield lines


def check_replaceable(folder: Path) -> None:
    """Raise ConfigError unless the folder is absent, empty, or a task set and nothing else."""
    if not folder.parent.is_dir():
        raise ConfigError(f"there is no folder {folder.parent}", hint="make it, or write elsewhere")
    if folder.is_dir():
        names = {path.name for path in folder.iterdir()}
        if names - {DOCUMENT_NAME, SHARDS_NAME, COMPONENTS_NAME} or (names and DOCUMENT_NAME not in names):
            raise ConfigError(f"{folder} holds something that is no task set", hint="name another folder")
    elif folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} is a file; a task set is a folder", hint="name another folder")
