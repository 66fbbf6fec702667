"""The choice of weight sources: their list comes from an untrusted orchestrator."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.shardcast.fetch.delta_fetch import fetch_step
from muster.shardcast.fetch.fetch import FetchRequest
from muster.shardcast.fetch.sources import check_urls
from testbed.http import connecting
from testbed.waiting import BOUND


def test_base_urls_are_used_once_and_without_their_last_slash() -> None:
    assert check_urls(["http://a:8700/", "https://b/x", "http://a:8700"]) == ["http://a:8700", "https://b/x"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nowhere",
        "file:///etc/passwd",
        "http://",
        "http://a?b",
        "http://a#b",
        "http://[a",
        "http://a\0b",
        "http://⒈a",
    ],
)
def test_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the base URL of a relay"):
        check_urls([url])


async def test_a_fetch_that_is_cancelled_leaves_nothing_behind_that_asyncio_reports(tmp_path: Path) -> None:
    """Ended while it asks its sources what they have, each of which is silent."""
    asked, reported = asyncio.Event(), []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async def anchored(step: int) -> bytes:
        raise AssertionError(f"step {step} is asked for")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with connecting(silent) as url:
        before = asyncio.all_tasks()
        fetch = asyncio.create_task(fetch_step(FetchRequest(bytes(32), 1, 0, [url], tmp_path), anchored))
        await asked.wait()
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        while left := asyncio.all_tasks() - before - {fetch}:
            await asyncio.wait(left, timeout=BOUND)
        del fetch, left
        gc.collect()
    assert reported == []
