"""A relay requests pages of old steps from its upstreams: a client with many requests delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.indexes import MAX_PAGES, PAGE_SECONDS, UpstreamPages
from muster.shardcast.format.store import PAGE_STEPS, Index, IndexEntry
from testbed.http import connecting

ENTRY = IndexEntry(root="0x" + "11" * 32, run=1, step=3, size=5)


class Upstream:
    """A server that answers each question with one entry, unless it is silent."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[bytes] = []
        self.silent = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
                if not self.silent:
                    body = Index(versions=[ENTRY]).model_dump_json().encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with connecting(upstream.serve) as upstream.url:
        yield upstream


def pages_of(upstream: Upstream) -> UpstreamPages:
    return UpstreamPages([upstream.url], 1, FetchBounds())


async def test_a_page_waits_for_no_other(upstream: Upstream) -> None:
    """Of an upstream that is silent, each page takes as long as one; too many at once are answered from here."""
    upstream.silent = True
    clock = asyncio.get_running_loop().time
    pages, began = pages_of(upstream), clock()
    several = await asyncio.gather(*(pages.page(number, [ENTRY]) for number in range(MAX_PAGES + 8)))
    assert clock() - began < 2 * PAGE_SECONDS
    assert [len(page.versions) for page in several] == [1] + [0] * (MAX_PAGES + 7)
    assert len(upstream.asked) <= MAX_PAGES


async def test_one_page_is_asked_for_once_by_however_many(upstream: Upstream) -> None:
    pages = pages_of(upstream)
    first = await asyncio.gather(*(pages.page(0, []) for _ in range(50)))
    assert [page.versions for page in [*first, await pages.page(0, [])]] == [[ENTRY]] * 51
    assert len(upstream.asked) == 1


async def test_upstreams_are_not_asked_for_pages_beyond_their_newest_step(upstream: Upstream) -> None:
    pages = pages_of(upstream)
    for number in range(1, 100):
        assert (await pages.page(number, [ENTRY], PAGE_STEPS - 1)).versions == []
    assert upstream.asked == []
    assert (await pages.page(0, [], PAGE_STEPS - 1)).versions == [ENTRY]


async def test_page_still_arrives_when_another_client_leaves(upstream: Upstream) -> None:
    pages = pages_of(upstream)
    asking = [asyncio.create_task(pages.page(0, [])) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    assert (await asking[1]).versions == (await asking[2]).versions == [ENTRY]
