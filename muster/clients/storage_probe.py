"""Check that a store does what content-addressed files need, with a small file that is then removed.

Some S3-compatible servers accept `If-None-Match: *` and overwrite nevertheless. The holder of the storage's key could
then replace a file with a receipt and leave no trace, so such a store is refused.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import obstore

from muster.clients.storage_backend import CREATED, OTHER_STORE, UnsupportedError, answer, create, open_backend
from muster.errors import StorageConfigError, StorageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MAX_SKEW_SECONDS: Final = 300.0
"""S3 refuses what was signed more than 15 minutes ago or ahead."""

_KIND: Final = "probe"
_FIRST: Final = bytes(range(64))
_SECOND: Final = bytes(64)
_RANGE: Final = (16, 8)

_NOT_PARTIAL: Final = "non-partial response"
"""obstore's message for an answer 200 to a range."""


async def probe(url: str, clock: Callable[[], float] = time.time) -> float:
    """Check the store at `url`: create, create again, range read, list, delete.

    Returns how many seconds its clock is ahead of ours, or 0 within MAX_SKEW_SECONDS: beyond, requests are refused
    sooner or later.

    Raises ConfigError when the url is none, StorageConfigError when an operation does not do what it must or the store
    refuses the settings, StorageError when it does not answer. Each of its eight waits ends after
    ANSWER_SECONDS, and the first that does ends the probe.
    """
    store, folder = open_backend(url)
    key = f"{_KIND}/{secrets.token_hex(16)}"
    try:
        await _create(store, url, key)
        try:
            skew, faults = await _try_out(store, url, key, clock)
        except BaseException:
            # Report what failed first: a store that fails may fail to delete, too.
            with contextlib.suppress(StorageError, FileNotFoundError):
                await answer(obstore.delete_async(store, key), "cannot delete", url, may_lack=True)
            raise
    finally:
        if folder is not None:
            with contextlib.suppress(OSError):  # another probe's file is in it
                (folder / _KIND).rmdir()
    if faults:
        raise StorageConfigError(f"{url} cannot be trusted with files: {'; '.join(faults)}", hint=OTHER_STORE)
    return skew if abs(skew) > MAX_SKEW_SECONDS else 0.0


async def _create(store: ObjectStore, url: str, key: str) -> None:
    try:
        await answer(create(store, key, _FIRST), "cannot create a file (If-None-Match: *)", url, may_exist=True)
    except CREATED as error:
        fault = "create: it says that a file exists which does not"
        raise StorageConfigError(f"{url} cannot be trusted with files: {fault}", hint=OTHER_STORE) from error
    except UnsupportedError:  # `_create_again` says so
        await answer(obstore.put_async(store, key, _FIRST, mode="overwrite"), "cannot write a file", url)


async def _try_out(store: ObjectStore, url: str, key: str, clock: Callable[[], float]) -> tuple[float, list[str]]:
    """Return the skew of the clocks and a sentence for every operation that is broken. A fault does not hide others."""
    head = await answer(obstore.head_async(store, key), "cannot look for what was just written", url)
    skew = head["last_modified"].timestamp() - clock()  # the store stamps a file with its own time
    faults = [await _fault(step(store, url, key)) for step in (_create_again, _read_range, _list, _delete)]
    return skew, [fault for fault in faults if fault]


async def _fault(step: Awaitable[str]) -> str:
    """Return the fault that a step finds, or what the store lacks for it; empty for none."""
    try:
        return await step
    except UnsupportedError as error:
        return str(error)


async def _create_again(store: ObjectStore, url: str, key: str) -> str:
    what = "cannot create a file a second time (If-None-Match: *)"
    try:
        await answer(obstore.put_async(store, key, _SECOND, mode="create"), what, url, may_exist=True)
    except CREATED:
        return "" if await answer(_read(store, key), "cannot read", url) == _FIRST else f"create: {key} was changed"
    return "create: it overwrites a file that exists, although asked not to (If-None-Match: *)"


async def _read(store: ObjectStore, key: str) -> bytes:
    return bytes(await (await obstore.get_async(store, key)).bytes_async())


async def _read_range(store: ObjectStore, url: str, key: str) -> str:
    start, length = _RANGE
    whole = await answer(_read(store, key), "cannot read", url)
    try:
        part = obstore.get_range_async(store, key, start=start, length=length)
        found = bytes(await answer(part, "cannot read a range", url))
    except StorageError as error:
        if _NOT_PARTIAL not in str(error):
            raise
        return "range read: it sends the whole file when asked for a part"
    return "" if found == whole[start : start + length] else "range read: it sends other bytes than those asked for"


async def _list(store: ObjectStore, url: str, key: str) -> str:
    pages = aiter(obstore.list(store, prefix=f"{_KIND}/", chunk_size=1000))
    while page := await answer(anext(pages, []), "cannot list", url):
        if any(entry["path"] == key for entry in page):
            return ""
    return "list: what was just written is missing"


async def _delete(store: ObjectStore, url: str, key: str) -> str:
    await answer(obstore.delete_async(store, key), "cannot delete", url)
    try:
        await answer(obstore.head_async(store, key), "cannot look for what was just deleted", url, may_lack=True)
    except FileNotFoundError:
        return ""
    return "delete: what was just deleted is still there"
