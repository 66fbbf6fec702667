"""The probe of a store passes a working one and names the fault of a broken one. The servers are real."""

from __future__ import annotations

import dataclasses
import time

import obstore
import pytest

from muster.clients.storage import ContentStore
from muster.clients.storage_backend import open_backend
from muster.clients.storage_probe import MAX_SKEW_SECONDS, probe
from muster.errors import ConfigError, StorageConfigError, StorageError
from testbed.chain.anvil import free_port
from testbed.servers.lacking_s3 import LackingS3


async def kept(url: str) -> list[str]:
    """The paths of everything in a store."""
    return sorted([entry["path"] async for page in obstore.list(open_backend(url)[0]) for entry in page])


async def test_a_folder_passes_and_stays_empty(tmp_path):
    assert await probe(f"file:{tmp_path}/store") == 0.0
    assert list((tmp_path / "store").iterdir()) == []


async def test_a_server_that_is_right_passes_and_stays_empty(moto_server, use_s3):
    url = use_s3(moto_server.new_bucket())
    assert await probe(url) == 0.0
    assert await kept(url) == []


async def test_probe_keeps_existing_files(moto_server, use_s3):
    url = use_s3(moto_server.new_bucket())
    name = await ContentStore(url).put(b"abc")
    await probe(url)
    assert await kept(url) == [f"files/{name[2:4]}/{name[2:]}"]


async def test_a_server_that_overwrites_and_ignores_ranges_is_refused_and_stays_empty(rclone_server, use_s3):
    url = use_s3(rclone_server)
    with pytest.raises(StorageConfigError) as caught:
        await probe(url)
    assert str(caught.value) == (
        f"{url} cannot be trusted with files: create: it overwrites a file that exists, although asked not to "
        "(If-None-Match: *); range read: it sends the whole file when asked for a part"
    )
    assert "use another store" in caught.value.hint
    assert caught.value.exit_code == 78
    assert await kept(url) == []


async def test_each_operation_that_a_store_lacks_is_named_with_its_code(use_s3):
    server = LackingS3(create=[(501, "NotImplemented")], bulk=(405, "MethodNotAllowed"))
    with server.running() as endpoint:
        url = use_s3(endpoint)
        with pytest.raises(StorageConfigError) as caught:
            await probe(url)
        assert str(caught.value) == (
            f"{url} cannot be trusted with files: cannot create a file a second time (If-None-Match: *): {url} has no "
            f"conditional puts (If-None-Match: *): it answers NotImplemented; cannot delete: {url} has no deletion in "
            "bulk (DeleteObjects): it answers MethodNotAllowed"
        )
        assert "use another store" in caught.value.hint
        store = ContentStore(url)
        with pytest.raises(StorageConfigError, match=r"has no conditional puts.* it answers NotImplemented"):
            await store.put(b"abc")
        for bulk in ((501, "NotImplemented"), (400, "InvalidArgument")):
            server.bulk = bulk
            with pytest.raises(StorageConfigError, match=f"cannot delete .* has no deletion in bulk.* {bulk[1]}"):
                await store.delete("0x" + "00" * 32)
        server.create.clear()
        server.bulk = None
        assert await probe(url) != 0.0, "it stamps files with an old time"
        assert server.files.keys() == {name for name in server.files if "probe" in name}


async def test_create_that_met_another_request_is_tried_once_more(use_s3):
    met = (409, "ConditionalRequestConflict")
    server = LackingS3(create=[met])
    with server.running() as endpoint:
        store = ContentStore(use_s3(endpoint))
        with pytest.raises(StorageError, match="cannot keep"):
            await store.put(b"abc")
        server.create[:] = [met, (412, "PreconditionFailed")]
        server.files.clear()
        with pytest.raises(StorageError, match="cannot keep"):
            await store.put(b"abc")
        server.create.clear()
        name = await store.put(b"abc")
        assert await store.get(name) == b"abc"


async def test_refusal_is_no_silence(use_s3):
    server = LackingS3(create=[(400, "EntityTooLarge")])
    with server.running() as endpoint, pytest.raises(StorageError, match=r": EntityTooLarge ") as caught:
        await ContentStore(use_s3(endpoint)).put(b"abc")
    assert "the storage is up" in caught.value.hint


@pytest.mark.parametrize("sign", [-1, 1])
async def test_clocks_that_differ_are_noticed(moto_server, use_s3, sign):
    url = use_s3(moto_server.new_bucket())
    assert await probe(url, clock=lambda: time.time() + sign * 3600) == pytest.approx(-sign * 3600, abs=30)
    assert await probe(url, clock=lambda: time.time() + sign * (MAX_SKEW_SECONDS - 60)) == 0.0


async def test_wrong_credentials_are_named_with_the_variables_to_set(rclone_server, use_s3):
    url = use_s3(dataclasses.replace(rclone_server, secret="wrong"))
    with pytest.raises(
        StorageConfigError, match=r"does not accept these credentials \(SignatureDoesNotMatch\)"
    ) as caught:
        await probe(url)
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in caught.value.hint
    with pytest.raises(StorageConfigError, match="does not accept these credentials"):
        await ContentStore(url).put(b"abc")


async def test_a_missing_bucket_is_named(moto_server, use_s3):
    url = use_s3(dataclasses.replace(moto_server, bucket="no-such-bucket"))
    with pytest.raises(StorageConfigError, match="there is no bucket no-such-bucket at this endpoint") as caught:
        await probe(url)
    assert "aws s3 mb s3://no-such-bucket" in caught.value.hint
    store = ContentStore(url)
    for call in (store.put(b"abc"), store.get("0x" + "00" * 32), store.check(), anext(store.names())):
        with pytest.raises(StorageConfigError, match="there is no bucket"):
            await call


async def test_missing_credentials_are_named(use_s3, moto_server, monkeypatch):
    url = use_s3(moto_server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StorageConfigError, match="no credentials are set") as caught:
        await probe(url)
    assert caught.value.hint == "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


async def test_unreachable_endpoint_has_a_hint(use_s3, moto_server):
    url = use_s3(dataclasses.replace(moto_server, url=f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(StorageError, match="cannot create a file") as caught:
        await probe(url)
    assert not isinstance(caught.value, StorageConfigError)
    assert caught.value.hint == "check AWS_ENDPOINT_URL; is the storage up?"


async def test_plain_http_can_be_forbidden(moto_server, use_s3, monkeypatch):
    url = use_s3(moto_server.new_bucket())
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(StorageConfigError, match="the endpoint cannot be used") as caught:
        await probe(url)
    assert "AWS_ALLOW_HTTP" in caught.value.hint
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    await probe(url)


@pytest.mark.parametrize("url", ["", "store", "http://x/y", "file:", "s3:", "s3:///prefix"])
async def test_unknown_urls_are_refused(url):
    with pytest.raises(ConfigError, match="neither file:FOLDER nor s3://"):
        await probe(url)
