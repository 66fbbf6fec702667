"""A run behind a real nginx with deploy/nginx/muster.conf: uploads, the page, the live stream, weights, TLS."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from muster.protocol.hashes import content_hash
from muster.protocol.receipts import upload_target
from muster.protocol.requests import sign_request
from testbed.chain.anvil import free_port
from testbed.http import get, open_url
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.servers.nginx import HOST, PROGRAM, Nginx
from testbed.waiting import BOUND, wait_until

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed here")
VERSION = "0x" + "ab" * 32


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("nginx")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="nginx", workers=("w1", "w2")))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture(scope="module")
def nginx(run_fixture: RunFixture, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nginx, Orchestrator]]:
    """One of the two orchestrators is down: the one that reads are sent to. The other reads one body at a time."""
    folder = tmp_path_factory.mktemp("servers")
    weights, port, public = folder / "weights", free_port(), free_port()
    proxy = Nginx(folder / "nginx", [port, public, free_port(), free_port()], weights)
    settings = {"url": proxy.url, "trusted_proxies": ["127.0.0.1"], "uploads_at_once": 1, "public_port": public}
    with Orchestrator(run_fixture, folder / "orchestrator", port=port, **settings) as orchestrator:
        orchestrator.url = f"http://127.0.0.1:{port}"
        (weights / VERSION).mkdir(parents=True)
        with proxy:
            yield proxy, orchestrator


def test_held_upload_passes_after_others_though_its_signature_expires(
    run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]
) -> None:
    proxy, orchestrator = nginx
    body = b"slow " * 20_000
    path = "?".join(upload_target(content_hash(body), run_fixture.run, 0, some_hash("slow")))
    signed_at = int(time.time()) - 28  # two seconds are left
    signed = sign_request(
        run_fixture.key("w1"), run_fixture.domain, "PUT", proxy.url + path, content_hash(body), now=signed_at
    )
    lines = {"Host": proxy.url.removeprefix("http://"), "Content-Length": len(body), "X-Request-Id": "held-1", **signed}
    head = f"PUT {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=BOUND) as held:
        held.sendall(head.encode() + body[:40_000])

        async def upload_another() -> None:
            async with run_fixture.client(proxy.url, "w2") as client:
                receipt = await client.put_file(b"another", run_fixture.run, 0, some_hash("another"))
                assert await client.get_file(receipt.file_hash) == b"another"

        asyncio.run(upload_another())
        time.sleep(max(0.0, signed_at + 30.2 - time.time()))
        held.sendall(body[40_000:])
        assert held.recv(4096).startswith(b"HTTP/1.1 200 OK")
    assert re.search("uploaded .* request_id=held-1", orchestrator.said)
    wait_until(lambda: re.search(" 200 .* held-1$", proxy.access_log.read_text(), re.MULTILINE), "it logs the request")


def test_page_and_live_stream_pass_at_once(run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]) -> None:
    proxy, _ = nginx
    assert b"<html" in get(f"{proxy.url}/")[1]
    with open_url(f"{proxy.url}/v1/runs/{run_fixture.run}/live", timeout=BOUND) as stream:
        assert any(line.startswith(b"data: ") for line in stream)
    assert get(f"{proxy.url}/metrics")[0] == 404


def test_each_request_reaches_its_listener(run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]) -> None:
    """None is misdirected: neither signed ones, nor writes without a signature, nor what nodes poll."""
    proxy, _ = nginx
    run = f"{proxy.url}/v1/runs/{run_fixture.run}"
    assert [get(url)[0] for url in (run, f"{run}/demand?x=1", f"{run}/accepted", f"{run}/overview")] == [200] * 4

    async def ask() -> None:
        async with run_fixture.client(proxy.url, "w2") as client:
            assert (await client.run_info(run_fixture.run)).run == run_fixture.run  # its first read is signed
            assert (await client.run_info(run_fixture.run)).run == run_fixture.run

    asyncio.run(ask())
    for method, path, status in (("POST", "/v1/verdicts", 401), ("HEAD", "/", 405), ("DELETE", "/v1/verdicts", 405)):
        assert requests.request(method, proxy.url + path, timeout=BOUND).status_code == status, (method, path)


def test_weights_come_from_the_folder(nginx: tuple[Nginx, Orchestrator]) -> None:
    proxy, _ = nginx
    weights = proxy.config.parent.parent / "weights"
    (weights / "index.json").write_text('{"versions": []}')
    (weights / VERSION / "model.safetensors").write_bytes(bytes(range(256)))
    (weights / VERSION / "link").symlink_to("/etc/passwd")
    (weights / f".{VERSION}.part").mkdir()
    (weights / f".{VERSION}.part" / "model.safetensors").write_bytes(b"half")
    base = f"{proxy.url}/v1/weights"
    assert get(f"{base}/index.json") == (200, b'{"versions": []}')
    assert get(f"{base}/{VERSION}/model.safetensors") == (200, bytes(range(256)))
    assert get(f"{base}/{VERSION}/link")[0] == 403
    for hidden in (f".{VERSION}.part/model.safetensors", f"{VERSION}/", f"{VERSION}/../index.json/", "nginx.conf"):
        assert get(f"{base}/{hidden}")[0] == 404, hidden


def test_tls_ends_at_nginx(nginx: tuple[Nginx, Orchestrator]) -> None:
    proxy, _ = nginx
    context = ssl.create_default_context(cafile=proxy.certificate)
    with (
        socket.create_connection(("127.0.0.1", proxy.tls_port), timeout=BOUND) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        secured.sendall(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        answer = secured.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"strict-transport-security" in answer.lower()
