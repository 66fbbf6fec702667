"""Valid and invalid requests get the answers that the OpenAPI document lists, and never a 500. Bounded."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from muster.protocol.hashes import content_hash
from muster.protocol.requests import sign_request
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture, RunService
from testbed.waiting import BOUND

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = {Orchestrator: 32, Explorer: 27}
BOUNDED = settings(
    max_examples=10,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("openapi")
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed="openapi", workers=("w1",)))
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture(scope="module")
def place(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunFixture, Orchestrator]]:
    folder = tmp_path_factory.mktemp("openapi")
    with Orchestrator(run_fixture, folder / "orchestrator", database_url=new_database_url()) as running:
        yield run_fixture, running
    assert '"level": "error"' not in running.json_log.read_text()


@pytest.fixture(scope="module", params=[Orchestrator, Explorer])
def service(
    request: pytest.FixtureRequest, place: tuple[RunFixture, Orchestrator], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunService]:
    """Each of the two that have an OpenAPI document."""
    run_fixture, orchestrator = place
    if request.param is Orchestrator:
        yield orchestrator
        return
    with Explorer(run_fixture, tmp_path_factory.mktemp("openapi"), orchestrator.url) as running:
        yield running
    assert '"level": "error"' not in running.json_log.read_text()


def each_operation(
    service: RunService, check: Callable[[Any], None], methods: tuple[str, ...] = ("GET", "PUT", "POST")
) -> list[str]:
    """Generate requests for every operation with these methods and hand them to `check`; what was covered."""
    covered = []
    for result in schemathesis.openapi.from_url(f"{service.url}/openapi.json").get_all_operations():
        operation = result.ok()
        if operation.method.upper() not in methods:
            continue
        BOUNDED(given(case=operation.as_strategy())(check))()
        covered.append(f"{operation.method.upper()} {operation.path}")
    return covered


def test_as_a_stranger_sends_it(service):
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=BOUND)

    covered = each_operation(service, check)
    assert len(covered) == OPERATIONS[type(service)]
    assert ("PUT /v1/files/{name}" in covered) == isinstance(service, Orchestrator)


@pytest.mark.parametrize("name", ["v1", "trainer"])
def test_as_a_member_signs_it(place, name):
    """The same requests, so that they get past the signature."""
    run_fixture, orchestrator = place

    def check(case: Any) -> None:
        prepared = requests.Request(**case.as_transport_kwargs(base_url=orchestrator.url)).prepare()
        body = prepared.body or b""
        body = body.encode() if isinstance(body, str) else body
        assert prepared.url is not None
        headers = sign_request(
            run_fixture.key(name), run_fixture.domain, case.method, prepared.url, content_hash(body), now=time.time()
        )
        response = case.call(headers=headers, timeout=BOUND)
        assert response.status_code not in (401, 500), response.text
        case.validate_response(response, checks=CHECKS)

    assert len(each_operation(orchestrator, check, ("PUT", "POST"))) == 11


def test_a_method_that_is_none_here_is_answered_with_those_that_are(service):
    """At every path of the document."""
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    methods: dict[str, set[str]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        methods.setdefault(operation.path, set()).add(operation.method.upper())
    methods |= {path: {"GET"} for path in ("/", "/metrics", "/openapi.json")}
    assert methods.get("/v1/files/{name}", {"GET", "PUT"}) == {"GET", "PUT"}
    for path, allowed in methods.items():
        url = service.url + re.sub(r"{\w+}", "1", path)
        for method in ("DELETE", "PATCH", "TRACE", "POST" if "POST" not in allowed else "PUT"):
            response = requests.request(method, url, timeout=BOUND)
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] == ", ".join(sorted(allowed)), (method, path)
