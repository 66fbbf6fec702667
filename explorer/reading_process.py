"""The process that reads rollout files for the page: python -m explorer.reading_process.

It belongs to one orchestrator (`explorer.reading`), which writes it JSON lines and reads JSON lines. It ends
when these pipes are closed. So what takes long stays out of the process that serves the swarm: fetching a file from
storage, unpacking its columns, decoding. Parsing itself happens in another process with limits
(`muster.rollouts.reader`). Both have a low priority.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from explorer.rows import (
    ReadAnswer,
    ReadingSettings,
    ReadRequest,
    ShownText,
    TaskPlace,
    cut_text,
    read_row,
    reference_text,
)
from muster.clients.storage import ContentStore
from muster.constants import MAX_FILE_BYTES
from muster.errors import MalformedError, MismatchError, StorageError, UnreachableError
from muster.protocol.hashes import hex_hash
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.runtime.kept import KeptAnswers
from muster.tasksets.document import ShardEntry
from muster.tasksets.packs import MAX_STORED_BYTES, TaskShard

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NICE: Final = 10
"""Added to the priority number of this process and of the one that parses."""
MAX_LINE: Final = 1 << 16
MAX_CACHED_FILES: Final = 16
MAX_CACHED_BYTES: Final = 48 << 20
"""Of rows that were read lately: people page through a file row by row. One file is kept whatever its size."""

_NO_FLOATS: Final = np.zeros(0, np.float32)


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


class _ReadFile(NamedTuple):
    """A file whose rows were read."""

    root: str
    """Of its rows, as a worker commits to it."""
    rows: list[Rollout]


class FileReader:
    """Answers requests about files of one run."""

    def __init__(self, settings: ReadingSettings, reader: RolloutReader) -> None:
        self._files = ContentStore(settings.storage_url, "files")
        self._limits = FileLimits(settings.rows, settings.decoded_bytes)
        self._reader = reader
        self._tokenizer_path = settings.tokenizer
        self._tokenizer: Tokenizer | None = None
        self._rows = KeptAnswers(
            math.inf,
            most=MAX_CACHED_FILES,
            most_bytes=MAX_CACHED_BYTES,
            size_of=lambda file: sum(row.nbytes for row in file.rows),
        )
        """Of the files read last, without log-probabilities and proofs."""

    async def answer(self, request: ReadRequest) -> ReadAnswer:
        """Answer a request, or say why there is no answer. Raises StorageError when storage fails."""
        if lack := self._load_tokenizer():
            return ReadAnswer(id=request.id, failure="no_tokenizer", why=lack)
        name, read = request.file_hash, partial(self._read, request.file_hash)
        try:
            if name not in self._rows and not await self._files.exists(name):
                return ReadAnswer(id=request.id, failure="missing")
            file = await self._rows.get(name, read)
        except (MalformedError, MismatchError) as error:
            return ReadAnswer(id=request.id, failure="malformed", why=str(error))
        except UnreachableError as error:
            return ReadAnswer(id=request.id, failure="machine", why=str(error))
        if request.root not in ("", file.root):
            return ReadAnswer(id=request.id, failure="malformed", why="its rows are not what was committed to")
        rows = file.rows
        if request.position >= len(rows):
            return ReadAnswer(id=request.id, failure="no_row")
        assert self._tokenizer is not None
        row = read_row(self._tokenizer, rows[request.position], len(rows), request.thinking)
        if request.task is not None:
            row = row.model_copy(update={"reference": await self._reference(request.task)})
        return ReadAnswer(id=request.id, row=row)

    async def _reference(self, task: TaskPlace) -> ShownText | None:
        """Return what a task's answers are scored by; None where storage has no such task."""
        entry = ShardEntry(task.shard, b"", task.count, task.bytes)
        try:
            shard = TaskShard.open(entry, 0, await self._files.get(task.shard, MAX_STORED_BYTES))
            return cut_text(reference_text(shard.task(task.place)))
        except (MalformedError, MismatchError, StorageError):
            return None

    async def _read(self, name: str) -> _ReadFile:
        rows = await self._reader.read(await self._files.get(name, MAX_FILE_BYTES), self._limits)
        root = hex_hash((await asyncio.to_thread(rollout_tree, rows)).root)
        return _ReadFile(root, [_slim(row) for row in rows])

    def _load_tokenizer(self) -> str:
        """Load the run's tokenizer, once; return why it cannot be loaded, or "" when it is."""
        if self._tokenizer is not None:
            return ""
        if not self._tokenizer_path:
            return "orchestrator.run_folder has no tokenizer with the hash of the run's terms"
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return "the package tokenizers is not installed"
        try:
            self._tokenizer = Tokenizer.from_file(self._tokenizer_path)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
            return f"the run's tokenizer cannot be loaded: {error}"
        return ""


async def serve() -> None:
    """Answer requests until stdin is closed: the first line has the settings, each other one a request."""
    lines = asyncio.StreamReader(MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    settings = ReadingSettings.model_validate_json(await lines.readline())
    async with RolloutReader() as reader, asyncio.TaskGroup() as group:
        files = FileReader(settings, reader)
        while line := await lines.readline():
            group.create_task(_answer(files, ReadRequest.model_validate_json(line)))


async def _answer(files: FileReader, request: ReadRequest) -> None:
    try:
        answer = await files.answer(request)
    except StorageError as error:
        answer = ReadAnswer(id=request.id, failure="storage", why=str(error))
    sys.stdout.write(answer.model_dump_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the orchestrator; this process ends with its pipe
    os.nice(NICE)
    asyncio.run(serve())
