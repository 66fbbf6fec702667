"""What a stranger, a thief or a broken client sends, and the problem document it gets. A real process answers."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from muster.constants import MAX_EVIDENCE_BYTES, MAX_FILE_BYTES
from muster.protocol.eip712 import Domain
from muster.protocol.hashes import content_hash
from muster.protocol.messages import StepReport
from muster.protocol.receipts import sign_text, upload_target
from muster.protocol.requests import HEADER_EXPIRY, HEADER_NONCE, HEADER_SIGNATURE, sign_request
from muster.rollouts.parquet import FileLimits
from orchestrator.uploads import FOOTER_BYTES
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.samples.terms import terms_of
from testbed.servers.s3 import Endpoint
from testbed.waiting import BOUND

LONGEST = 1 << 16
"""Tokens of a completion: long enough that the run's files may have 24 MiB."""


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    """A run with three workers and step 0 published. It has no commitments, so both databases see the same run."""
    folder = tmp_path_factory.mktemp("requests")
    terms = {"commitments_per_hour": 20, "max_completion_tokens": LONGEST}
    run_fixture = asyncio.run(
        RunFixture.build(folder, deployment.settings, seed="requests", workers=("w1", "w2", "w3"), **terms)
    )
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture(scope="module")
def place(
    run_fixture: RunFixture,
    new_database_url: Callable[[], str],
    s3: Endpoint | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunFixture, Orchestrator]]:
    """That run and an orchestrator."""
    folder = tmp_path_factory.mktemp("orchestrator")
    run_fixture.s3 = s3
    with Orchestrator(run_fixture, folder / "orchestrator", database_url=new_database_url()) as running:
        yield run_fixture, running


class Sender:
    """Sends one request with custom headers and checks the answer."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
        self.run_fixture = run_fixture
        self.orchestrator = orchestrator
        self.url = orchestrator.url

    def sign(self, name: str, method: str, path: str, body: bytes = b"", **changes: Any) -> dict[str, str]:
        given: dict[str, Any] = {"where": self.run_fixture.domain, "url": self.url, "now": time.time()} | changes
        return sign_request(
            self.run_fixture.key(name),
            given["where"],
            method,
            given["url"] + path,
            content_hash(body),
            now=given["now"],
        )

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        with httpx2.Client(trust_env=False, timeout=BOUND) as client:
            return client.request(method, self.url + path, content=body, headers=headers)

    def signed(self, name: str, method: str, path: str, body: bytes = b"", **changes: Any) -> httpx2.Response:
        return self.send(method, path, body, self.sign(name, method, path, body, **changes))

    def target(self, body: bytes, index: int = 0, root: str = "root", run: int | None = None) -> str:
        return "?".join(upload_target(content_hash(body), run or self.run_fixture.run, index, some_hash(root)))


@pytest.fixture
def sender(place: tuple[RunFixture, Orchestrator]) -> Sender:
    return Sender(*place)


def refused(reply: httpx2.Response, status: int, title: str, detail: str) -> dict[str, Any]:
    """Assert that the answer is this problem document."""
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    problem = reply.json()
    assert (reply.status_code, problem["status"], problem["title"]) == (status, status, title), problem
    assert detail in problem["detail"], problem
    return problem


WRITES = [("PUT", "file"), ("POST", "/v1/evidence"), ("POST", "/v1/verdicts"), ("POST", "log")]


def path_of(sender: Sender, path: str) -> str:
    names = {"file": sender.target(b"x"), "log": f"/v1/runs/{sender.run_fixture.run}/log"}
    return names.get(path, path)


# Who are you


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_unsigned_requests_are_refused(sender, method, path):
    problem = refused(
        sender.send(method, path_of(sender, path), b"x", {}), 401, "Unsigned request", "has no Muster-Body"
    )
    assert problem["hint"] == "sign with the node's key: muster.protocol.requests.sign_request"


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_strangers_are_refused(sender, method, path):
    reply = sender.signed("stranger", method, path_of(sender, path), b"x")
    problem = refused(
        reply, 403, "Not a member", f"{sender.run_fixture.key('stranger').address}, which is no node of run"
    )
    assert problem["hint"].startswith("muster worker join")


def test_replayed_requests_are_refused(sender):
    body = b"replayed"
    path = sender.target(body, root="replayed")
    headers = sender.sign("w1", "PUT", path, body)
    assert sender.send("PUT", path, body, headers).status_code == 200
    refused(sender.send("PUT", path, body, headers), 401, "Replayed request", headers[HEADER_NONCE])
    assert sender.signed("w1", "PUT", path, body).status_code == 200


def test_a_refused_request_cannot_be_replayed_either(sender):
    headers = sender.sign("w1", "POST", "/v1/evidence", b"x")
    refused(sender.send("POST", "/v1/evidence", b"x", headers), 403, "Not allowed", "no active validator")
    refused(sender.send("POST", "/v1/evidence", b"x", headers), 401, "Replayed request", "was answered before")


@pytest.mark.parametrize(("shift", "detail"), [(-60, "expired 30 s ago"), (60, "expires in"), (3600, "at most 60")])
def test_request_with_wrong_clock_is_refused_with_hint(sender, shift, detail):
    reply = sender.signed("v1", "POST", "/v1/evidence", b"x", now=int(time.time()) + shift)
    problem = refused(reply, 401, "Expired request", detail.split(" ")[0])
    assert "clock" in problem["hint"]


def test_a_longer_life_than_was_signed_is_a_strangers(sender):
    headers = sender.sign("v1", "POST", "/v1/evidence", b"x")
    headers[HEADER_EXPIRY] = str(int(headers[HEADER_EXPIRY]) + 1)
    refused(sender.send("POST", "/v1/evidence", b"x", headers), 403, "Not a member", "changed on its way")


@pytest.mark.parametrize("signature", ["0x00", "0x" + "00" * 65, "0x" + "ff" * 65, "zz" * 66])
def test_broken_signatures_are_refused(sender, signature):
    headers = sender.sign("v1", "POST", "/v1/evidence", b"x") | {HEADER_SIGNATURE: signature}
    refused(sender.send("POST", "/v1/evidence", b"x", headers), 401, "Unsigned request", "ignature")


def test_a_signature_for_another_chain_contract_or_host_is_a_strangers(sender):
    run_fixture = sender.run_fixture
    for changes in (
        {"where": Domain(84_532, run_fixture.book.registry)},
        {"where": Domain(run_fixture.book.chain_id, run_fixture.book.runs)},
        {"url": "http://orchestrator.example:8600"},
    ):
        reply = sender.signed("v1", "POST", "/v1/evidence", b"x", **changes)
        problem = refused(reply, 403, "Not a member", "another chain or host")
        assert "chain.chain_id" in problem["hint"]


def test_the_host_header_is_not_believed(sender):
    """Another orchestrator passes on what was signed for it, Host header included. The answer names both hosts."""
    elsewhere = "http://orchestrator.example:8600"
    for who in ("v1", "trainer"):
        headers = sender.sign(who, "POST", "/v1/evidence", b"x", url=elsewhere) | {"Host": "orchestrator.example:8600"}
        reply = sender.send("POST", "/v1/evidence", b"x", headers)
        detail = f"signed for orchestrator.example:8600, and this orchestrator is {sender.url.removeprefix('http://')}"
        problem = refused(reply, 403, "Not a member", detail)
        assert "orchestrator.hosts" in problem["hint"]


def test_request_id_of_a_refusal_is_in_answer_and_log(sender):
    headers = sender.sign("v1", "POST", "/v1/evidence", b"signed") | {"X-Request-Id": "from-the-client-1"}
    reply = sender.send("POST", "/v1/evidence", b"sent", headers)
    assert reply.headers["x-request-id"] == "from-the-client-1"
    refused(reply, 422, "Wrong hash", content_hash(b"sent"))
    assert "refused method=POST path=/v1/evidence status=422" in sender.orchestrator.said
    assert "request_id=from-the-client-1" in sender.orchestrator.said
    made = sender.send("GET", "/healthz", b"", {"X-Request-Id": "no id, since it has spaces"})
    assert re.fullmatch("[0-9a-f]{16}", made.headers["x-request-id"])


# What do you send


def test_a_body_that_is_not_what_was_signed(sender):
    headers = sender.sign("v1", "POST", "/v1/evidence", b"signed")
    reply = sender.send("POST", "/v1/evidence", b"sent", headers)
    refused(reply, 422, "Wrong hash", content_hash(b"sent"))
    path = sender.target(b"signed", index=1, root="swapped")
    reply = sender.send("PUT", path, b"sent!!", sender.sign("w1", "PUT", path, b"signed"))
    refused(reply, 422, "Wrong hash", "the request was signed for")
    assert sender.orchestrator.get(f"/v1/files/{content_hash(b'sent!!')}")[0] == 404
    assert sender.orchestrator.get(f"/v1/files/{content_hash(b'signed')}")[0] == 404


def test_a_file_under_anothers_name(sender):
    path = sender.target(b"other", index=1, root="misnamed")
    refused(sender.signed("w1", "PUT", path, b"this"), 422, "Wrong hash", "the path names")


def test_oversized_bodies_are_refused_before_they_are_read(sender):
    """By the announced length, or by the bytes received without one."""
    for method, path, limit in (("POST", "/v1/evidence", MAX_EVIDENCE_BYTES), ("POST", "/v1/verdicts", 1 << 20)):
        body = bytes(limit + 1)
        problem = refused(sender.signed("v1", method, path, body), 413, "Too large", f"larger than {limit} bytes")
        assert problem["status"] == 413
    limit = FileLimits.from_terms(terms_of(max_completion_tokens=LONGEST)).decoded_bytes + FOOTER_BYTES
    assert limit < MAX_FILE_BYTES, "no more than rollouts of this run can be"
    for size in (limit + 1, MAX_FILE_BYTES + 1):
        path = sender.target(bytes(size), index=1, root="oversized")
        refused(sender.signed("w1", "PUT", path, bytes(size)), 413, "Too large", f"larger than {limit} bytes")


def test_a_body_without_an_end_is_cut_off(sender):
    body = bytes((1 << 20) + 10)
    headers = sender.sign("v1", "POST", "/v1/verdicts", body)
    with httpx2.Client(trust_env=False, timeout=BOUND) as client:
        pieces = (body[i : i + 65536] for i in range(0, len(body), 65536))
        reply = client.request("POST", sender.url + "/v1/verdicts", content=pieces, headers=headers)
    refused(reply, 413, "Too large", f"larger than {1 << 20} bytes")


def test_an_empty_file_is_refused(sender):
    path = sender.target(b"", index=1, root="empty")
    refused(sender.signed("w1", "PUT", path, b""), 422, "Malformed", "empty")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "JSON"),
        (b"{}", "Field required"),
        (b"[]", "object"),
        (b"\xff\xfe", "JSON"),
        (b'{"x": NaN}', "Field required"),
    ],
)
def test_messages_that_do_not_parse(sender, body, detail):
    refused(sender.signed("v1", "POST", "/v1/verdicts", body), 422, "Malformed", detail)
    refused(sender.signed("trainer", "POST", f"/v1/runs/{sender.run_fixture.run}/log", body), 422, "Malformed", detail)


# A page that is known


def test_a_page_of_the_log_that_is_known_is_not_sent_again(sender):
    run_fixture = sender.run_fixture
    path = f"/v1/runs/{run_fixture.run}/log"

    def post(metric: float) -> None:
        report = StepReport(run=run_fixture.run, step=0, metrics={"loss": metric})
        signed = sign_text(run_fixture.key("trainer"), run_fixture.domain, "report", report)
        assert sender.signed("trainer", "POST", path, signed.to_bytes()).status_code == 201

    def get(tag: str, query: str = "") -> httpx2.Response:
        return httpx2.get(sender.orchestrator.url + path + query, headers={"If-None-Match": tag}, timeout=BOUND)

    post(1.0)
    first = get("")
    known = get(first.headers["etag"])
    assert (first.status_code, known.status_code, known.content) == (200, 304, b"")
    assert known.headers["etag"] == first.headers["etag"]
    post(2.0)
    longer = get(first.headers["etag"])
    assert (longer.status_code, len(longer.json()["entries"])) == (200, len(first.json()["entries"]) + 1)
    end = f"?after={longer.json()['cursor']}"
    assert get(get("", end).headers["etag"], end).status_code == 304


# Another run, another place


def test_another_run(sender):
    run = sender.run_fixture.run
    body = b"for another run"
    reply = sender.signed("w1", "PUT", sender.target(body, run=run + 1), body)
    refused(reply, 404, "Another run", f"serves run {run}, not {run + 1}")
    for path in ("", "/demand", "/current", "/log"):
        status, answer = sender.orchestrator.get(f"/v1/runs/{run + 1}{path}")
        assert (status, json.loads(answer)["title"]) == (404, "Another run"), path
    report = StepReport(run=run + 1, step=0, metrics={})
    signed = sign_text(sender.run_fixture.key("trainer"), sender.run_fixture.domain, "report", report)
    reply = sender.signed("trainer", "POST", f"/v1/runs/{run}/log", signed.to_bytes())
    refused(reply, 404, "Another run", "")
    reply = sender.signed("trainer", "POST", f"/v1/runs/{run + 1}/log", signed.to_bytes())
    refused(reply, 404, "Another run", "")


@pytest.mark.parametrize(
    ("path", "status", "title"),
    [
        ("/v1/nowhere", 404, "Not Found"),
        ("/v1/files/0x00", 422, "Malformed"),
        ("/v1/files/" + some_hash("nothing"), 404, "Not found"),
        ("/v1/evidence/" + some_hash("nothing"), 404, "Not found"),
        ("/v1/nodes/0x00", 422, "Malformed"),
        ("/v1/nodes/0x" + "00" * 20, 404, "Not found"),
        ("/v1/files/../../etc/passwd", 404, "Not Found"),
    ],
)
def test_missing_paths_return_problem_documents(sender, path, status, title):
    found, body = sender.orchestrator.get(path)
    assert (found, json.loads(body)["title"]) == (status, title)


def test_answers_before_the_framework_are_those_of_the_routes(sender):
    for path in ("/healthz", f"/v1/runs/{sender.run_fixture.run}/demand"):
        hot, routed = (httpx2.get(sender.url + path + query) for query in ("", "?unknown=1"))
        assert hot.content == routed.content, path
        names = ("content-type", "content-length", "x-content-type-options")
        assert [hot.headers[name] for name in names] == [routed.headers[name] for name in names]
    counted = sender.orchestrator.get("/metrics")[1].decode()
    assert 'http_requests_total{method="GET",route="/v1/runs/{run}/demand",status="200"} 2.0' in counted


async def test_answer_to_an_idle_worker_is_held(sender):
    path = f"{sender.url}/v1/runs/{sender.run_fixture.run}/demand"
    async with sender.run_fixture.client(sender.url, None, timeout=2) as client, httpx2.AsyncClient() as plain:
        tag = (await plain.get(path)).headers["etag"].removeprefix('W/"').rstrip('"')
        seen, begun = await client.demand(sender.run_fixture.run), time.monotonic()
        assert seen.tag == tag
        assert await client.demand(sender.run_fixture.run, seen) == seen, "half of the client's time-out later"
        assert time.monotonic() - begun >= 1
        other = seen.model_copy(update={"wanted": not seen.wanted})
        assert await client.demand(sender.run_fixture.run, other) == seen
        assert (await plain.get(f"{path}?wait=31&seen={tag}")).status_code == 422
        with pytest.raises(httpx2.ReadTimeout):
            await plain.get(f"{path}?wait=30&seen={tag}", timeout=0.5)
    assert sender.orchestrator.get("/healthz")[0] == 200


def test_a_method_that_is_none(sender):
    reply = sender.send("DELETE", "/v1/evidence", b"", {})
    refused(reply, 405, "Method Not Allowed", "")


# Roles


def test_only_validators_judge_and_keep_evidence(sender):
    run_fixture = sender.run_fixture
    for name in ("w1", "trainer"):
        refused(sender.signed(name, "POST", "/v1/evidence", b"x"), 403, "Not allowed", "no active validator")
    verdict = run_fixture.verdict("v1", "w1", 0, some_hash("r"), some_hash("f")).model_dump_json().encode()
    refused(sender.signed("w1", "POST", "/v1/verdicts", verdict), 403, "Not allowed", "no active validator")
    refused(sender.signed("v2", "POST", "/v1/verdicts", verdict), 403, "Not allowed", "the request")


def test_only_workers_upload(sender):
    body = b"a validator's"
    refused(sender.signed("v1", "PUT", sender.target(body), body), 403, "Not allowed", "is no worker")
    refused(sender.signed("trainer", "PUT", sender.target(body), body), 403, "Not allowed", "is no worker")


def test_only_the_trainer_reports(sender):
    report = StepReport(run=sender.run_fixture.run, step=0, metrics={"reward": 1.0})
    trainer = sender.run_fixture.key("trainer").address
    for name in ("w1", "v1"):
        key = sender.run_fixture.key(name)
        signed = sign_text(key, sender.run_fixture.domain, "report", report).to_bytes()
        for by, why in ((name, "not by"), ("trainer", "the request by")):
            reply = sender.signed(by, "POST", f"/v1/runs/{sender.run_fixture.run}/log", signed)
            refused(reply, 403, "Not allowed", f"the report is signed by {key.address}, {why} {trainer}")


# Uploads: the rule


def test_an_upload_is_idempotent_and_one_per_root(sender):
    body, other = b"file of root a", b"another file of root a"
    first = sender.signed("w2", "PUT", sender.target(body, root="a"), body)
    again = sender.signed("w2", "PUT", sender.target(body, root="a"), body)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    reply = sender.signed("w2", "PUT", sender.target(other, root="a"), other)
    problem = refused(reply, 409, "Conflict", content_hash(body))
    assert "one file" in problem["hint"]
    # Another root at the same index, and another node with the same file, root and index, are their own.
    assert sender.signed("w2", "PUT", sender.target(other, root="b"), other).status_code == 200
    assert sender.signed("w3", "PUT", sender.target(body, root="a"), body).status_code == 200


def test_the_form_of_an_upload_is_part_of_what_is_signed(sender):
    body = b"form"
    path, query = upload_target(content_hash(body), sender.run_fixture.run, 2, some_hash("form"))
    for bad in ("&".join(reversed(query.split("&"))), query + "&x=1", query.replace("index=2", "index=02")):
        refused(sender.signed("w2", "PUT", f"{path}?{bad}", body), 422, "Malformed", "an upload's target is written")


def test_uploads_are_bounded_in_index_and_number(sender):
    body = b"ahead"
    assert sender.signed("w3", "PUT", sender.target(body, index=7, root="h"), body).status_code == 200
    reply = sender.signed("w3", "PUT", sender.target(body, index=8, root="h"), body)
    refused(reply, 409, "Conflict", "not one of the node's next 8, from 0 on")
    for i in range(16):
        assert sender.signed("w3", "PUT", sender.target(body, index=3, root=f"r{i}"), body).status_code == 200
    reply = sender.signed("w3", "PUT", sender.target(body, index=3, root="r16"), body)
    refused(reply, 409, "Conflict", "16 roots are uploaded")


def test_large_uploads_arrive_whole(sender):
    body = bytes(range(256)) * (20 << 12)  # 20 MiB
    reply = sender.signed("w2", "PUT", sender.target(body, index=5, root="large"), body)
    assert reply.status_code == 200
    assert reply.json()["size"] == len(body)
    status, back = sender.orchestrator.get(f"/v1/files/{content_hash(body)}")
    assert status == 200
    assert back == body
    spool = Path(sender.orchestrator.folder) / "state" / "uploads"
    assert list(spool.rglob("upload-*")) == []
