"""Keep the few files of a run that the page is made of: by content hash, fetched from the orchestrator when needed.

The task set and the files of the tokenizer stay. Of rollouts the KEPT_FILES that were fetched last stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import Final

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.storage import ContentStore
from muster.constants import MAX_FILE_BYTES
from muster.errors import CheckError
from muster.models.files import FIXED_FILES
from muster.protocol.messages import RunDescription
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.files import write_durably
from muster.tasksets.document import MAX_DOCUMENT_BYTES

KEPT_FILES: Final = 16
"""Of rollouts, and of the shards of tasks they were drawn from."""
MAX_FOLDERS: Final = 8
"""Folders of the run's files that may be a tokenizer's."""
MAX_FIXED_BYTES: Final = 64 << 20
"""Of one file of a tokenizer."""

log = telemetry.logger("explorer")


class RunFiles:
    """The files of one run, in a folder of the explorer's own."""

    def __init__(self, client: OrchestratorClient, folder: Path) -> None:
        self._client = client
        self.url = f"file:{folder / 'files'}"
        self.folder = folder / "run"
        """Where the files of tokenizers are."""
        self.files = ContentStore(self.url, "files")
        self._lately: OrderedDict[str, None] = OrderedDict()
        self._fetching = asyncio.Lock()

    async def prepare(self, described: RunDescription, terms: Terms) -> None:
        """Fetch task set and tokenizer, as far as the run offers them. Raises TRANSIENT errors."""
        try:
            await self._keep("0x" + terms.task_root.hex(), MAX_DOCUMENT_BYTES)
        except CheckError as error:
            log.warning("the task set cannot be had: whose tasks they are is not shown", reason=str(error))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)  # the run may offer others now
        folders = dict[str, dict[str, str]]()
        for path, name in sorted(described.files.items()):
            where = PurePosixPath(path)
            if where.name in FIXED_FILES:
                folders.setdefault(str(where.parent), {})[where.name] = name
        for number, named in enumerate(list(folders.values())[:MAX_FOLDERS]):
            for file, name in named.items():
                try:
                    data = await self._client.get_file(name, MAX_FIXED_BYTES)
                except CheckError as error:
                    log.warning("a file of the tokenizer cannot be had", file=file, reason=str(error))
                    continue
                await asyncio.to_thread(write_durably, self.folder / str(number) / file, data)

    async def fetch(self, name: str) -> None:
        """Have a file here, and let go of those asked for longest ago. Raises CheckError for one that cannot be had."""
        async with self._fetching:
            await self._keep(name, MAX_FILE_BYTES)
            self._lately[name] = None
            self._lately.move_to_end(name)
            while len(self._lately) > KEPT_FILES:
                await self.files.delete(self._lately.popitem(last=False)[0])

    async def _keep(self, name: str, most: int) -> None:
        if not await self.files.exists(name):
            await self.files.put_named(name, await self._client.get_file(name, most))

    async def forget_all(self, kept: str) -> None:
        """Delete what an earlier process fetched, but for one file."""
        async for name in self.files.names():
            if name != kept:
                await self.files.delete(name)
