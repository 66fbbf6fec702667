"""Serve a folder of whole versions: the origin's, into which the trainer publishes, or what a worker holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from muster.errors import MalformedError
from muster.shardcast.format.store import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    Index,
    described,
    disk_error,
    entry_of,
    index_of,
    page_name,
    parse_index,
    version_path,
)
from muster.shardcast.serve.store import OpenFile, open_file


class Origin:
    """A `VersionStore` over a folder. Versions appear there by a rename and go by one, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        """Make the folder where it is missing. Raises StorageError when that fails."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error("cannot serve", folder, error) from error

    async def open(self, root: bytes, name: str) -> OpenFile:
        return open_file(version_path(self.folder, root), name)

    async def index(self) -> Index:
        try:
            return await asyncio.to_thread(self._index)
        except FileNotFoundError:
            return Index(versions=[])

    async def page(self, number: int) -> Index:
        """Return one page of the index; all of it where it has no pages."""
        try:
            return await asyncio.to_thread(self._read, page_name(number))
        except FileNotFoundError:
            return await self.index()

    def _index(self) -> Index:
        return self._read(INDEX_NAME)

    def _read(self, name: str) -> Index:
        with (self.folder / name).open("rb") as file:
            return parse_index(file.read(MAX_INDEX_BYTES + 1))

    async def unready(self) -> list[str]:
        try:
            await self.index()
        except (OSError, MalformedError) as error:
            return [f"{self.folder / INDEX_NAME} cannot be read: {error}"]
        return []


class LocalVersions(Origin):
    """The same over a folder that a node fetches into, where nobody writes an index."""

    def _index(self) -> Index:
        return index_of([entry_of(manifest) for _, manifest in described(self.folder)])
