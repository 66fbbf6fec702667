"""Serving a folder of whole versions: the origin's, into which the trainer publishes, or what a worker holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from muster.errors import CheckError, MalformedError, StorageError
from muster.shardcast.folder import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    Index,
    disk_error,
    index_of,
    parse_index,
    read_manifest,
    version_path,
    versions,
)
from muster.shardcast.shelf import Item, open_item


class Origin:
    """A `shelf.Shelf` over a folder. Versions appear there by a rename and go by one, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        """Raises StorageError when the folder cannot be made."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error("cannot serve", folder, error) from error

    async def open(self, root: bytes, name: str) -> Item:
        return open_item(version_path(self.folder, root), name)

    async def index(self) -> Index:
        try:
            return await asyncio.to_thread(self._index)
        except FileNotFoundError:
            return Index(versions=[])

    def _index(self) -> Index:
        with (self.folder / INDEX_NAME).open("rb") as file:
            return parse_index(file.read(MAX_INDEX_BYTES + 1))

    async def unready(self) -> list[str]:
        try:
            await self.index()
        except (OSError, MalformedError) as error:
            return [f"{self.folder / INDEX_NAME} cannot be read: {error}"]
        return []


class Holdings(Origin):
    """The same over a folder that somebody fetches into, where nobody writes an index."""

    def _index(self) -> Index:
        found = []
        for version in versions(self.folder):
            with suppress(StorageError, CheckError):  # removed, or damaged since: not offered
                found.append(read_manifest(version.path, version.root))
        return index_of(found)
