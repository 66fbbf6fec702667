"""Read rows of rollout files as text.

A file is parsed in a process with limits, which ends with it (`muster.rollouts.reader`), and its rows are kept for who
pages through them. They are decoded in a thread. One request is answered at a time, and a bounded number wait.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from explorer.files import RunFiles
from explorer.rows import RowRead, ShownText, cut_text, read_row, reference_text
from muster.constants import MAX_FILE_BYTES
from muster.errors import CheckError, ConfigError, MismatchError, StorageError, UnreachableError
from muster.models.files import tokenizer_hash
from muster.protocol.hashes import hex_hash
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.runtime import problems
from muster.runtime.kept import KeptAnswers
from muster.tasksets.document import ShardEntry
from muster.tasksets.packs import MAX_STORED_BYTES, TaskShard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_WAITING: Final = 32
"""Requests at the same time; others are refused."""
MAX_CACHED_FILES: Final = 16
MAX_CACHED_BYTES: Final = 48 << 20
"""Of rows that were read lately: people page through a file row by row. One file is kept whatever its size."""
MAX_DEPTH: Final = 4
"""Folders below the run's own in which a tokenizer is looked for."""
TOKENIZER: Final = "tokenizer.json"

_NO_FLOATS: Final = np.zeros(0, np.float32)


def find_tokenizer(folder: Path, terms: Terms) -> Path | None:
    """Return the tokenizer.json of a run within its folder; None when no folder there has the hash of the terms.

    Blocks. Files of a checkpoint count together (`muster.models.files.FIXED_FILES`): one alone could fit any model.
    """
    for path in sorted(folder.rglob(TOKENIZER)):
        if len(path.relative_to(folder).parts) > MAX_DEPTH:
            continue
        with suppress(ConfigError, OSError):
            if tokenizer_hash(path.parent) == terms.tokenizer_hash:
                return path.absolute()
    return None


class _ReadFile(NamedTuple):
    """A file whose rows were read."""

    root: str
    """Of its rows, as a worker commits to it."""
    rows: list[Rollout]


class RowReader:
    """Reads rows of one run. One per service."""

    def __init__(self, files: RunFiles, limits: FileLimits, tokenizer: Path | None) -> None:
        self._files, self._limits, self._tokenizer_path = files, limits, tokenizer
        self._tokenizer: Tokenizer | None = None
        self._turn = asyncio.Lock()
        self._asked = 0
        self._kept = KeptAnswers(
            math.inf,
            most=MAX_CACHED_FILES,
            most_bytes=MAX_CACHED_BYTES,
            size_of=lambda file: sum(row.nbytes for row in file.rows),
        )
        """Of the files read last, without log-probabilities and proofs."""

    @classmethod
    def of_run(cls, files: RunFiles, terms: Terms) -> Self:
        """Return the reader of a run, whose tokenizer may be among its files. Blocks."""
        return cls(files, FileLimits.from_terms(terms), find_tokenizer(files.folder, terms))

    async def read(
        self,
        file_hash: str,
        position: int,
        *,
        root: str,
        thinks: bool = True,
        task: tuple[ShardEntry, int] | None = None,
    ) -> RowRead:
        """Return a row. `root`: of the file's rows; `task`: shard and place of the task whose reference is read too.

        Raises RefusedError for a row that cannot be shown, and where too many are asked for; UnreachableError where it
        cannot be read now.
        """
        if self._asked >= MAX_WAITING:
            raise problems.busy("as many rollout files as can be read at once are being read")
        self._asked += 1
        try:
            async with self._turn:
                tokenizer = await asyncio.to_thread(self._load_tokenizer)
                rows = await self._rows(file_hash, root)
                if position >= len(rows):
                    raise problems.not_found(f"{file_hash} cannot be shown: it has {len(rows)} rows")
                thinking = "tags" if thinks else "none"
                row = await asyncio.to_thread(read_row, tokenizer, rows[position], len(rows), thinking)
                reference = None if task is None else await self._reference(*task)
                return row.model_copy(update={"reference": reference})
        finally:
            self._asked -= 1

    async def _rows(self, file_hash: str, root: str) -> list[Rollout]:
        """Return the rows of a file. Raises as `read`."""
        try:
            await self._files.fetch(file_hash)
            file = await self._kept.get(file_hash, partial(self._parse, file_hash))
            if file.root != root:
                raise MismatchError("its rows are not what was committed to")
        except CheckError as error:
            raise problems.not_found(f"{file_hash} cannot be shown: {error}") from error
        except StorageError as error:
            raise UnreachableError(f"{file_hash} cannot be read now: {error}") from error
        return file.rows

    async def _parse(self, name: str) -> _ReadFile:
        data = await self._files.files.get(name, MAX_FILE_BYTES)
        async with RolloutReader() as reader:
            rows = await reader.read(data, self._limits)
        return await asyncio.to_thread(lambda: _ReadFile(hex_hash(rollout_tree(rows).root), [*map(_slim, rows)]))

    async def _reference(self, entry: ShardEntry, place: int) -> ShownText | None:
        """Return what a task's answers are scored by; None where the run offers no such task."""
        try:
            await self._files.fetch(entry.hash)
            shard = TaskShard.open(entry, 0, await self._files.files.get(entry.hash, MAX_STORED_BYTES))
            return cut_text(reference_text(shard.task(place)))
        except (CheckError, StorageError):
            return None

    def _load_tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer, loaded once. Raises RefusedError where there is none. Blocks."""
        if self._tokenizer is None:
            lack = "the run offers no tokenizer with the hash of its terms"
            if self._tokenizer_path is not None:
                try:
                    from tokenizers import Tokenizer

                    self._tokenizer = Tokenizer.from_file(str(self._tokenizer_path))
                    return self._tokenizer
                except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
                    lack = f"the run's tokenizer cannot be loaded: {error}"
            hint = "ask the run's owner to put the model's files but its weights into orchestrator.run_folder"
            raise problems.not_found(f"rollouts cannot be shown: {lack}", hint)
        return self._tokenizer


def _slim(row: Rollout) -> Rollout:
    """Return a row without log-probabilities and proof, in copied arrays."""
    return replace(
        row,
        prompt_tokens=row.prompt_tokens.copy(),
        completion_tokens=row.completion_tokens.copy(),
        spans=row.spans.copy(),
        parts=row.parts.copy(),
        call_fuel=row.call_fuel.copy(),
        logprobs=_NO_FLOATS,
        proof=b"",
    )
