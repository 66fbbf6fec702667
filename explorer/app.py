"""Route what people read of a run: pages, and the documents that they are made of. Reads are open to everybody."""

from __future__ import annotations

import math
import time
from functools import cache, partial
from importlib.metadata import version
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from explorer.routes import documents, pages
from explorer.routing import Here
from explorer.service import ExplorerService
from muster.constants import PROTOCOL_VERSION
from muster.protocol.messages import JoinDocument
from muster.runtime import problems, telemetry
from muster.runtime.http_metrics import Measured
from muster.runtime.http_server import TypedAnswers
from muster.runtime.problems import openapi_document
from muster.runtime.routing import json_response


def create_app(service: ExplorerService) -> FastAPI:
    """Make the application around a service."""
    app = FastAPI(
        title="Muster explorer",
        version=version("muster"),
        summary="What became of one run, for people: read from its chain and its log.",
        openapi_url=None,  # which would encode the document for each reader
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(TypedAnswers)
    for router in (about, documents, pages):
        app.include_router(router)
    app.state.openapi = cache(partial(openapi_document, app))
    return app


def create_asgi(service: ExplorerService) -> ASGIApp:
    """Make the application with what stands before the framework."""
    return Measured(create_app(service))


about = APIRouter(tags=["service"])
BEHIND: Final = telemetry.gauge("explorer_behind_seconds", "Seconds since chain or log were read to their ends")


@about.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer that the process runs."""
    return {"status": "alive"}


@about.get("/readyz", responses={503: {"description": "Not ready, with reasons"}})
async def readyz(service: Here) -> JSONResponse:
    """Answer whether chain and log are read up to now, with the reasons if not."""
    reasons = service.unready()
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@about.get("/metrics", response_class=Response, include_in_schema=False)
async def metrics(service: Here) -> Response:
    BEHIND.set(max(0.0, time.time() - (service.page.boards.stale_since or math.inf)))
    return Response(generate_latest(telemetry.REGISTRY), media_type=CONTENT_TYPE_LATEST)


@about.get("/openapi.json", response_class=Response, include_in_schema=False)
async def openapi(request: Request) -> Response:
    return json_response(request.app.state.openapi())


@about.get("/version")
async def version_of(request: Request, service: Here) -> dict[str, str | int]:
    """Name the software, protocol, chain and run."""
    return {
        "version": request.app.version,  # importlib.metadata reads a file
        "protocol": PROTOCOL_VERSION,
        "chain_id": service.known.chain_id,
        "registry": service.known.addresses["registry"],
        "run": service.run,
    }


@about.get("/v1/join")
async def join(service: Here) -> JoinDocument:
    """Send the document that says where the run is, as its orchestrator sent it: signed with its storage key."""
    return service.join
