"""A store that stops answering: every operation ends within its bound. A real server behind a real link that falls
silent, at production's constants; what waits waits at the same time."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable

import pytest

from muster.clients.storage import ContentStore
from muster.clients.storage_backend import ANSWER_SECONDS, WRITE_BYTES_PER_SECOND, client_options, write_seconds
from muster.clients.storage_probe import probe
from muster.errors import StorageError
from testbed.servers.s3 import Link

MARGIN = 5.0
"""What a busy machine may take longer."""


async def time_to_fail(work: Awaitable[object]) -> float:
    """How long `work` takes to say that the store does not answer."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(StorageError, match=r"did not answer in 1\d s"):
        await work
    return loop.time() - started


async def drain(chunks) -> int:
    return sum([len(chunk) async for chunk in chunks])


async def test_every_storage_call_ends_within_its_bound(moto_server, use_s3):
    bucket = moto_server.new_bucket()
    big = os.urandom(2 << 20)
    async with Link(bucket.url).carrying() as silent, Link(bucket.url).carrying() as stalling:
        ours = ContentStore(use_s3(dataclasses.replace(bucket, url=silent.url)))
        url = ours.url
        name = await ours.put(big)
        await ContentStore(url).check()
        half = ContentStore(use_s3(dataclasses.replace(bucket, url=stalling.url)))
        stalling.body_bytes = 1 << 20
        begun = await half.open(name)
        assert begun is not None
        assert begun.size == len(big)
        stalling.body_bytes = 10
        silent.silent = True
        waits = await asyncio.gather(
            # Accepted and never answered.
            time_to_fail(ours.put(b"small")),
            time_to_fail(ours.put(big + b"another")),
            time_to_fail(ours.get(name)),
            time_to_fail(ours.exists(name)),
            time_to_fail(ours.check()),
            time_to_fail(anext(ours.names())),
            time_to_fail(_through(silent, bucket, use_s3, url)),
            # The head of an answer, and then nothing.
            time_to_fail(half.get(name)),
            time_to_fail(anext(half.names())),
            time_to_fail(drain(begun.chunks)),
        )
    expected = [ANSWER_SECONDS] * 10
    expected[1] = write_seconds(len(big) + 7)
    for waited, bound in zip(waits, expected, strict=True):
        assert bound - 0.5 <= waited <= bound + MARGIN, waits


async def _through(link, bucket, use_s3, url):
    use_s3(dataclasses.replace(bucket, url=link.url))
    return await probe(url)


def test_a_write_has_a_second_more_for_every_mebibyte():
    assert write_seconds(0) == ANSWER_SECONDS == 10
    assert write_seconds(64 * WRITE_BYTES_PER_SECOND) == 74


def test_http_options_of_the_environment_are_kept():
    ours = {"timeout": "1h", "connect_timeout": "5s"}
    assert client_options({}) == ours
    assert client_options({"AWS_ENDPOINT_URL": "https://s3.example.org"}) == ours
    assert client_options({"AWS_ENDPOINT_URL": "http://10.0.0.1:9000"}) == ours | {"allow_http": "true"}
    assert client_options({"AWS_ENDPOINT": "HTTP://10.0.0.1:9000"}) == ours | {"allow_http": "true"}
    mixed = {"AWS_ENDPOINT_URL": "http://10.0.0.1:9000", "AWS_ENDPOINT_URL_S3": "https://s3.example.org"}
    assert client_options(mixed) == ours
    refused = {"AWS_ENDPOINT_URL": "http://10.0.0.1:9000", "AWS_ALLOW_HTTP": "false"}
    assert client_options(refused) == ours | {"allow_http": "false"}
    proxied = {"AWS_PROXY_URL": "http://proxy:3128", "AWS_ALLOW_HTTP": "true", "AWS_TIMEOUT": "1s"}
    assert client_options(proxied) == ours | {"proxy_url": "http://proxy:3128", "allow_http": "true"}
