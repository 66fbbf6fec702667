"""Refuse requests with problem documents (RFC 9457): one name per kind of refusal.

A refusal is a `RefusedError`, the same type the client raises when it reads the document.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from muster.errors import MalformedError, MusterError, RefusedError, StorageError, UnreachableError
from muster.runtime import telemetry
from muster.runtime.problem_document import Problem

log = telemetry.logger("http")


@dataclass(frozen=True)
class Refusal:
    """A kind of refusal. Call it with what is wrong, and with what to do where that is not the kind's `hint`."""

    status: int
    title: str
    hint: str = ""

    def __call__(self, detail: str, hint: str = "") -> RefusedError:
        return RefusedError(detail, status=self.status, title=self.title, hint=hint or self.hint)


unsigned = Refusal(401, "Unsigned request", "sign with the node's key: muster.protocol.requests.sign_request")
expired = Refusal(401, "Expired request")
replayed = Refusal(401, "Replayed request", "sign every request separately")
not_allowed = Refusal(403, "Not allowed")
_stranger = Refusal(403, "Not a member")
_other_run = Refusal(404, "Another run", "check run in settings")
not_found = Refusal(404, "Not found")
too_slow = Refusal(408, "Too slow")
conflict = Refusal(409, "Conflict")
gone = Refusal(410, "Gone", "GET /v1/runs/RUN/summaries/YYYY-MM-DD has the summary of a day")
moved = Refusal(410, "Elsewhere")
too_large = Refusal(413, "Too large")
no_room = Refusal(413, "No room", "wait until some goes, or ask the run's owner to raise orchestrator.key_bytes")
malformed = Refusal(422, "Malformed")
wrong_hash = Refusal(422, "Wrong hash", "send the bytes whose sha256 was signed")
too_early = Refusal(425, "Too early", "try again in a second")
try_later = Refusal(429, "Too many requests", "try again in a second")
not_ready = Refusal(503, "Not ready", "try again in a minute")
busy = Refusal(503, "Too many requests", "try again in a second")


def not_a_member(address: str, run: int) -> RefusedError:
    return _stranger(
        f"the signature recovers to {address}, which is no node of run {run}. A request that was changed on its way, "
        "or signed for another chain or host, recovers to a stranger too",
        f"muster worker join --run {run}, and check chain.chain_id and orchestrator.url",
    )


def signed_for_another(named: str, ours: str) -> RefusedError:
    return _stranger(
        f"the request was signed for {named}, and this orchestrator is {ours}",
        f"its operator adds {named} to orchestrator.hosts, or you set orchestrator.url to https://{ours}",
    )


def another_run(run: int, ours: int) -> RefusedError:
    return _other_run(f"this orchestrator serves run {ours}, not {run}")


def no_node(address: str, run: int) -> RefusedError:
    return not_found(
        f"{address} is no node of run {run}",
        "see /leaderboard; a node that has just joined is known in a few seconds",
    )


def no_step(step: int, run: int) -> RefusedError:
    hint = "one that has just been published is known in a few seconds: try again"
    return not_found(f"run {run} has not published step {step}", hint)


_HEADERS = {
    413: {"Connection": "close"},  # the rest of the body may be of any length
    429: {"Retry-After": "1"},
    503: {"Retry-After": "1"},
}


def problem_response(status: int, title: str, detail: str = "", hint: str = "") -> JSONResponse:
    problem = Problem(title=title, status=status, detail=detail, hint=hint)
    headers = _HEADERS.get(status)
    return JSONResponse(problem.model_dump(), status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Make every failure of `app` a problem document."""

    @app.exception_handler(MusterError)
    async def refused(_: Request, error: MusterError) -> JSONResponse:
        if isinstance(error, RefusedError):
            return problem_response(error.status, error.title, str(error), error.hint)
        if isinstance(error, MalformedError):
            return problem_response(422, "Malformed", str(error), error.hint)
        if isinstance(error, StorageError | UnreachableError):
            log.error("not ready", reason=str(error))
            return problem_response(503, "Not ready", str(error), error.hint)
        log.error("failed", error=type(error).__name__, reason=str(error))
        return problem_response(500, "Failed", str(error), error.hint)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        return problem_response(422, "Malformed", f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        response = problem_response(error.status_code, HTTPStatus(error.status_code).phrase, "")
        response.headers.update(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(_allowed(app, request.scope))
        return response


def _allowed(app: FastAPI, scope: Scope) -> list[str]:
    """Return the methods of all routes at this path; starlette names those of the first only."""
    at_path = (route for route in app.routes if isinstance(route, Route) and route.path_regex.match(scope["path"]))
    return sorted({method for route in at_path for method in route.methods or ()})


def openapi_document(app: FastAPI) -> bytes:
    """Return the OpenAPI document of `app`, which defines what `documented` refers to."""
    document = app.openapi()
    document["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
    return json.dumps(document).encode()


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may refuse with these statuses, for the OpenAPI document."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
