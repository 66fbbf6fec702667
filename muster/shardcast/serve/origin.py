"""Serve a folder of whole versions: the origin's, into which the trainer publishes, or what a worker holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from muster.errors import MalformedError
from muster.shardcast.format.store import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    Index,
    described,
    disk_errors,
    entry_of,
    index_of,
    page_name,
    parse_index,
    version_path,
)
from muster.shardcast.serve.http_server import OpenFile, open_file


class Origin:
    """A `VersionStore` over a folder. Versions appear there by a rename and go by one, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        """Make the folder where it is missing. Raises StorageError when that fails."""
        self.folder = folder
        with disk_errors("cannot serve", folder):
            folder.mkdir(parents=True, exist_ok=True)

    async def open(self, root: bytes, name: str) -> OpenFile:
        return open_file(version_path(self.folder, root), name)

    async def index(self, page: int | None = None) -> Index:
        """See `VersionStore`; all of the index where it has no pages."""
        return await asyncio.to_thread(self._read, page)

    def _read(self, page: int | None) -> Index:
        for name in (*([] if page is None else [page_name(page)]), INDEX_NAME):
            with suppress(FileNotFoundError), (self.folder / name).open("rb") as file:
                return parse_index(file.read(MAX_INDEX_BYTES + 1))
        return Index(versions=[])

    async def unready(self) -> list[str]:
        try:
            await self.index()
        except (OSError, MalformedError) as error:
            return [f"{self.folder / INDEX_NAME} cannot be read: {error}"]
        return []


class LocalVersions(Origin):
    """The same over a folder that a node fetches into, which has no index file."""

    def _read(self, page: int | None) -> Index:
        return index_of([entry_of(manifest) for _, manifest in described(self.folder)])
