"""A run behind a real nginx with deploy/nginx/muster.conf: uploads, the page, weights, TLS."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from muster.protocol.hashes import content_hash
from muster.protocol.receipts import upload_target
from muster.protocol.requests import HEADER_BODY, HEADER_EXPIRY, HEADER_NONCE, HEADER_SIGNATURE, sign_request
from orchestrator.admission import CHECK
from orchestrator.app import create_app
from testbed.chain.anvil import free_port
from testbed.http import get
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture, some_hash
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
    weights, port, explorer = folder / "weights", free_port(), free_port()
    proxy = Nginx(folder / "nginx", [port, free_port(), explorer], weights)
    trusted: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"]}
    settings = trusted | {"url": proxy.url, "explorer_url": proxy.url, "uploads_at_once": 1}
    with Orchestrator(run_fixture, folder / "orchestrator", port=port, **settings) as orchestrator:
        (weights / VERSION).mkdir(parents=True)
        shown = Explorer(run_fixture, folder / "explorer", proxy.url, port=explorer, **trusted)
        shown.port = explorer
        with proxy, shown:
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


def test_page_and_its_documents_are_the_explorers(run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]) -> None:
    """Signed or not: at the orchestrator their addresses lead to nginx again."""
    proxy, orchestrator = nginx
    assert b"<html" in get(f"{proxy.url}/")[1]
    for path in ("/steps", f"/v1/runs/{run_fixture.run}/checkpoints?limit=1"):
        headers = signed(run_fixture, proxy, "w2", "GET", path, b"")
        assert requests.get(proxy.url + path, headers=headers, allow_redirects=False, timeout=BOUND).status_code == 200
        answer = requests.get(orchestrator.url + path, headers=headers, allow_redirects=False, timeout=BOUND)
        assert (answer.status_code, answer.headers["location"]) == (308, proxy.url + path)
    live = requests.get(f"{proxy.url}/v1/runs/{run_fixture.run}/live", timeout=BOUND)
    assert (live.status_code, live.headers["etag"][0], live.json()["step"]) == (200, '"', 0)
    assert get(f"{proxy.url}/metrics")[0] == 404


def test_each_request_is_answered(run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]) -> None:
    """Signed ones, writes without a signature, what nodes poll, and reads, which go to the one that is down first."""
    proxy, _ = nginx
    run = f"{proxy.url}/v1/runs/{run_fixture.run}"
    assert [get(url)[0] for url in (run, f"{run}/demand?x=1", f"{run}/overview")] == [200] * 3

    async def ask() -> None:
        async with run_fixture.client(proxy.url, "w2") as client:
            assert (await client.run_info(run_fixture.run)).run == run_fixture.run  # its first read is signed
            assert (await client.run_info(run_fixture.run)).run == run_fixture.run

    asyncio.run(ask())
    for method, path, status in (("POST", "/v1/verdicts", 401), ("HEAD", "/", 405), ("DELETE", "/v1/verdicts", 405)):
        assert requests.request(method, proxy.url + path, timeout=BOUND).status_code == status, (method, path)


def test_too_many_keys_or_headers_are_refused_behind_it_too(nginx: tuple[Nginx, Orchestrator]) -> None:
    proxy, _ = nginx
    for separator, keys, status in (
        ("&", 32, 200),
        ("&", 33, 431),
        ("&a=", 33, 431),
        ("%26", 500, 200),
        (";", 500, 200),
    ):
        query = separator.join(f"k{number}" for number in range(keys))
        assert get(f"{proxy.url}/version?{query}")[0] == status, (separator, keys)
    assert get(f"{proxy.url}/version?{'&'.join(f'{number:04}' for number in range(9_000))}")[0] == 414
    for count, status in ((50, 200), (65, 431)):
        lines = {f"A{number}": "x" for number in range(count)}
        assert requests.get(f"{proxy.url}/version", headers=lines, timeout=BOUND).status_code == status


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


# Bodies


GARBAGE = "0x" + "1b" * 65


def signed(run_fixture: RunFixture, proxy: Nginx, name: str, method: str, path: str, body: bytes) -> dict[str, str]:
    """Return the headers by which a person signs a request."""
    return sign_request(
        run_fixture.key(name), run_fixture.domain, method, proxy.url + path, content_hash(body), now=time.time()
    )


def begin(proxy: Nginx, method: str, path: str, length: str, sent: bytes, **headers: str) -> socket.socket:
    """Send a head and a part of a body; return the open connection."""
    lines = {"Host": proxy.url.removeprefix("http://"), **headers}
    head = f"{method} {path} HTTP/1.1\r\n{length}\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=BOUND)
    with suppress(ConnectionError):  # answered, and cut, before all is sent
        client.sendall(head.encode() + b"\r\n" + sent)
    return client


def upload_of(run_fixture: RunFixture, body: bytes, name: str) -> str:
    return "?".join(upload_target(content_hash(body), run_fixture.run, 0, some_hash(name)))


def test_no_body_is_stored_but_those_that_a_member_signed(
    run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]
) -> None:
    """At every path with another method than GET, at paths that do not exist, and without a length."""
    proxy, _ = nginx
    routes = create_app(cast(Any, SimpleNamespace())).routes
    asked = [(method, re.sub("{[^}]*}", "7", one.path)) for one in routes for method in one.methods - {"GET", "HEAD"}]  # type: ignore[attr-defined]
    assert len(asked) > 10
    asked += [(method, path) for method in ("PUT", "POST", "GET") for path in ("/", "/none", "/v1/none", "/uploads/7")]
    asked += [("PUT", upload_of(run_fixture, b"", "x")), ("DELETE", "/v1/verdicts"), ("POST", "/v1/runs/7/live")]
    statuses = set()
    for method, path in asked:
        garbage = {**dict.fromkeys((HEADER_BODY, HEADER_NONCE), "0x" + "00" * 32), HEADER_EXPIRY: "1"}
        stranger = signed(run_fixture, proxy, "stranger", method, path, b"")
        for headers in ({}, garbage | {HEADER_SIGNATURE: GARBAGE}, stranger):
            for length, chunk in ((f"Content-Length: {16 << 20}", b""), ("Transfer-Encoding: chunked", b"40000\r\n")):
                with begin(proxy, method, path, length, chunk + bytes(1 << 18), **headers) as client:
                    with suppress(ConnectionError):
                        statuses.add(client.recv(12)[-3:])
                    assert proxy.stored() == 0, (method, path, headers, length)
    assert statuses <= {b"401", b"403", b"404", b"405", b"413", b"422"}, statuses
    body = bytes(8 << 20)
    path = upload_of(run_fixture, body, "stored")
    member = signed(run_fixture, proxy, "w1", "PUT", path, body)
    with begin(proxy, "PUT", path, f"Content-Length: {len(body)}", body[: 4 << 20], **member):
        wait_until(lambda: proxy.stored() > 1 << 20, "a member's body is stored")
    wait_until(lambda: proxy.stored() == 0, "it goes with its connection")


def test_what_needs_no_member_passes_unstored_and_refusals_are_the_orchestrators(
    run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]
) -> None:
    proxy, _ = nginx
    body, path = bytes(3 << 20), f"/v1/runs/{run_fixture.run}/environments"
    headers = signed(run_fixture, proxy, "stranger", "POST", path, body)
    with begin(proxy, "POST", path, f"Content-Length: {len(body)}", body[: 2 << 20], **headers) as client:
        time.sleep(0.3)
        assert proxy.stored() == 0
        client.sendall(body[2 << 20 :])
        answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 422 "), "it was read, and is no environment"
    for name, path, status, words in (
        ("stranger", upload_of(run_fixture, body, "stranger"), 403, "is no node of run"),
        ("w1", "/v1/evidence", 403, "is no active validator"),
    ):
        method = "PUT" if "files" in path else "POST"
        headers = signed(run_fixture, proxy, name, method, path, body)
        answer = requests.request(method, proxy.url + path, data=body, headers=headers, timeout=BOUND)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert words in answer.json()["detail"]


def test_the_question_for_a_signature_is_nginxs_alone(nginx: tuple[Nginx, Orchestrator]) -> None:
    proxy, orchestrator = nginx
    assert (
        requests.get(f"{orchestrator.url}{CHECK}", headers={HEADER_SIGNATURE: "0x"}, timeout=BOUND).status_code == 401
    )
    for path in (CHECK, "/signed", "/uploads/v1/files/0x00", "/messages/v1/verdicts", f"/v1/../{CHECK}"):
        for method in ("GET", "PUT", "POST"):
            answer = requests.request(method, proxy.url + path, headers={HEADER_SIGNATURE: GARBAGE}, timeout=BOUND)
            assert answer.status_code in (401, 404, 405), (method, path)
            assert answer.status_code != 204, (method, path)


# Addresses


def written(address: IPv6Address) -> set[str]:
    """Return ways to write an address: in full, as short as may be, and with `::` for each run of zeros."""
    groups = address.exploded.split(":")
    plain = [group.lstrip("0") or "0" for group in groups]
    ways = {address.exploded, address.compressed, ":".join(plain)}
    for first in range(8):
        for last in range(first + 1, 8):
            if set(plain[first : last + 1]) == {"0"}:
                ways.add(f"{':'.join(plain[:first])}::{':'.join(plain[last + 1 :])}")
    return ways


def test_limits_count_a_network_of_ipv6_as_one_address(nginx: tuple[Nginx, Orchestrator]) -> None:
    """With zeros, and so `::`, in each place."""
    proxy, _ = nginx
    groups = [0x2001, 0xDB8, 0x10A, 0xA0D, 0xFF0A, 0xA, 0xFFFF, 0x1]
    numbers = []
    for first in range(8):
        for last in range(first, 8):
            parts = [0 if first <= place <= last else group for place, group in enumerate(groups)]
            numbers.append(sum(part << 16 * (7 - place) for place, part in enumerate(parts)))
    asked = [(text, IPv6Address(number).packed[:8]) for number in numbers for text in written(IPv6Address(number))]
    ipv4 = [b"\x0a\x0a\x0a\x0a", b"\xcb\x00\x71\x07", bytes(4)]
    asked += [(str(IPv4Address(one)), one) for one in ipv4] + [(f"::ffff:{IPv4Address(one)}", one) for one in ipv4]
    assert len(asked) > 80
    with requests.Session() as session:
        for text, party in asked:
            answer = session.get(
                f"http://127.0.0.1:{proxy.party_port}", headers={"X-Test-Address": text}, timeout=BOUND
            )
            assert answer.content == party, text


def test_a_network_holds_so_many_uploads_and_no_other_waits_for_it(
    run_fixture: RunFixture, nginx: tuple[Nginx, Orchestrator]
) -> None:
    proxy, _ = nginx
    body = bytes(1000)
    path = upload_of(run_fixture, body, "network")

    def upload(address: str, part: int) -> socket.socket:
        headers = signed(run_fixture, proxy, "w1", "PUT", path, body) | {"X-Test-Address": address}
        return begin(proxy, "PUT", path, f"Content-Length: {len(body)}", body[:part], **headers)

    held = [upload(f"2001:db8:0:7:{number}::{number}", 10) for number in range(1, 65)]
    statuses = {}
    for address in ("2001:db8:0:7::1", "2001:db8:0:8::1", "203.0.113.1"):
        with upload(address, len(body)) as client:
            statuses[address] = client.recv(12)[-3:]
    assert statuses == {"2001:db8:0:7::1": b"429", "2001:db8:0:8::1": b"200", "203.0.113.1": b"200"}
    for client in held:
        client.close()
