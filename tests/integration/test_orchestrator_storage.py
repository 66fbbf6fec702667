"""What an orchestrator and `muster doctor` say of their storage: broken, locked, missing, silent. Real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from muster.clients.storage_backend import ANSWER_SECONDS
from muster.protocol.hashes import content_hash
from muster.protocol.receipts import upload_target
from muster.protocol.requests import sign_request
from testbed.machine import Machine
from testbed.processes import ended
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.servers.s3 import Endpoint, Link
from testbed.waiting import BOUND


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("storage")
    terms = {"max_completion_tokens": 1 << 16}  # so that files may have some MiB
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="storage", workers=("w1",), **terms))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


def refused_start(run_fixture: RunFixture, endpoint: Endpoint, folder: Path) -> tuple[int, str]:
    """The exit code and the words of an orchestrator that does not start."""
    code, errors = Orchestrator(dataclasses.replace(run_fixture, s3=endpoint), folder).spawn().end()
    assert "Traceback" not in errors
    return code, errors


def test_a_store_that_overwrites_is_refused_at_the_start(run_fixture, rclone_server, tmp_path):
    code, errors = refused_start(run_fixture, rclone_server, tmp_path / "place")
    assert code == 78
    assert "cannot be trusted with files: create: it overwrites a file that exists" in errors
    assert "range read: it sends the whole file when asked for a part" in errors
    assert "use another store" in errors


def test_a_wrong_secret_is_named(run_fixture, rclone_server, tmp_path):
    code, errors = refused_start(run_fixture, dataclasses.replace(rclone_server, secret="wrong"), tmp_path / "place")
    assert code == 78
    assert "does not accept these credentials (SignatureDoesNotMatch)" in errors
    assert "AWS_SECRET_ACCESS_KEY" in errors


def test_a_missing_bucket_is_named(run_fixture, moto_server, tmp_path):
    code, errors = refused_start(run_fixture, dataclasses.replace(moto_server, bucket="nowhere"), tmp_path / "place")
    assert code == 78
    assert "there is no bucket nowhere at this endpoint" in errors


async def test_storage_that_falls_silent_holds_up_no_request(run_fixture, moto_server, tmp_path):
    bucket = moto_server.new_bucket()
    async with Link(bucket.url).carrying() as link:
        placed = dataclasses.replace(run_fixture, s3=dataclasses.replace(bucket, url=link.url))
        orchestrator = Orchestrator(placed, tmp_path / "place")
        with ended(orchestrator):
            await asyncio.to_thread(orchestrator.start)
            async with httpx2.AsyncClient(trust_env=False, timeout=BOUND, base_url=orchestrator.url) as client:
                await _falls_silent(run_fixture, orchestrator.url, link, client)
            code, errors = await asyncio.to_thread(orchestrator.stop)
        assert code == 0, errors
        log = orchestrator.json_log.read_text()
        assert "Traceback" not in log + errors
        assert "a file was cut short" in log


async def _falls_silent(run_fixture: RunFixture, url: str, link: Link, client: httpx2.AsyncClient) -> None:
    data = os.urandom(1 << 20)

    async def put(index: int) -> httpx2.Response:
        body = data + bytes([index])
        path = "?".join(upload_target(content_hash(body), run_fixture.run, index, some_hash(f"silence {index}")))
        headers = sign_request(
            run_fixture.key("w1"), run_fixture.domain, "PUT", url + path, content_hash(body), now=time.time()
        )
        return await client.put(path, content=body, headers=headers)

    assert (await put(0)).status_code == 200
    file = f"/v1/files/{content_hash(data + bytes([0]))}"
    assert (await client.get(file)).content == data + bytes([0])

    # Half way through a body the status is sent: the connection is closed, and the reader knows by the length.
    link.body_bytes = 1 << 19
    with pytest.raises(httpx2.RemoteProtocolError):
        await client.get(file)
    link.body_bytes = None

    # No answer, or only its head: a readable refusal within the time limit.
    link.silent = True
    read, written, ready = await asyncio.gather(client.get(file), put(1), client.get("/readyz"))
    link.silent, link.body_bytes = False, 0
    headless = await client.get(file)
    for reply, seconds in ((read, ANSWER_SECONDS), (written, ANSWER_SECONDS + 1), (headless, ANSWER_SECONDS)):
        assert reply.status_code == 503
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.headers["retry-after"] == "1"
        assert f"did not answer in {seconds:g} s" in reply.json()["detail"]
    assert ready.status_code == 503
    assert "storage does not answer in 5 s" in ready.json()["reasons"]

    # It comes back by itself.
    link.body_bytes = None
    assert (await client.get(file)).content == data + bytes([0])
    assert (await put(1)).status_code == 200
    assert (await client.get("/readyz")).status_code == 200


# muster doctor


def checked(machine: Machine, **environment: str) -> dict[str, str]:
    """What doctor says of storage."""
    kept = {name: "" for name in os.environ if name.startswith("AWS_")}
    done = machine.type("doctor", "--json", **kept | environment)
    return next(check for check in json.loads(done.stdout) if check["name"] == "storage")


def test_doctor_skips_storage_when_unset(machine):
    assert checked(machine)["state"] == "skip"
    assert not (machine.folder / ".muster" / "storage").exists()


def test_doctor_passes_a_folder_and_a_server_that_are_right(machine, moto_server):
    url = f"file:{machine.folder}/files"
    assert checked(machine, MUSTER_ORCHESTRATOR__STORAGE_URL=url) | {"fix": ""} == {
        "name": "storage",
        "state": "ok",
        "found": url,
        "fix": "",
    }
    bucket = moto_server.new_bucket()
    found = checked(machine, MUSTER_ORCHESTRATOR__STORAGE_URL=bucket.storage_url, **bucket.environment)
    assert (found["state"], found["found"]) == ("ok", bucket.storage_url)


def test_doctor_names_what_a_broken_server_does(machine, rclone_server):
    url = rclone_server.storage_url
    found = checked(machine, MUSTER_ORCHESTRATOR__STORAGE_URL=url, **rclone_server.environment)
    assert found["state"] == "fail"
    assert "create: it overwrites a file that exists" in found["found"]
    assert "range read: it sends the whole file" in found["found"]
    assert "use another store" in found["fix"]
