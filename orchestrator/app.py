"""The HTTP face: routes that translate between requests and the rest, and nothing more.

What reveals nothing private may be read by anybody; whatever writes is signed. Failures are problem documents.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError

from muster import telemetry
from muster.constants import MAX_EVIDENCE_BYTES, PROTOCOL_VERSION
from muster.messages import (
    AcceptedWork,
    Demand,
    LieReport,
    NodeReport,
    Problem,
    Receipt,
    RelayOffer,
    RunInfo,
    StepReport,
    Upload,
    Verdict,
    VerdictPage,
)
from muster.storage import ContentStore
from orchestrator import problems
from orchestrator.auth import Caller, read_body
from orchestrator.metrics import Measured, observe
from orchestrator.page import page_response
from orchestrator.problems import documented
from orchestrator.service import Service
from orchestrator.summary import EventPage, Summary

MAX_MESSAGE_BYTES = 1 << 20
"""Longest JSON body of a verdict or report."""

MESSAGE_SECONDS = 30.0
"""Longest time for a JSON body to arrive."""


class Told(BaseModel):
    """Answer to a message."""

    new: bool


RunId = Annotated[int, Path(ge=0, lt=1 << 32)]
Index = Annotated[int, Path(ge=0, lt=1 << 32)]
AddressPath = Annotated[str, Path(pattern=r"^0x[0-9a-fA-F]{40}$")]
HashPath = Annotated[str, Path(pattern=r"^0x[0-9a-f]{64}$")]
Text = TypeVar("Text", bound=BaseModel)

_SIGNED = documented(401, 403, 404, 408, 409, 413, 422, 429, 503)
_BINARY = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {}}}}}
_TOLD: dict[int | str, dict[str, Any]] = {200: {"description": "Told before", "model": Told}}


def _json_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI document says of a body that is read and hashed before it is parsed."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


def _service(request: Request) -> Service:
    return request.app.state.service


def _our_run(run: RunId, service: Annotated[Service, Depends(_service)]) -> int:
    if run != service.run:
        raise problems.another_run(run, service.run)
    return run


async def _caller(request: Request, service: Annotated[Service, Depends(_service)]) -> Caller:
    return await service.gate.enter(request)


Here = Annotated[Service, Depends(_service)]
OurRun = Annotated[int, Depends(_our_run)]
Signed = Annotated[Caller, Depends(_caller)]


def create_app(service: Service) -> FastAPI:
    """The application around a service that lives as long as it does."""
    app = FastAPI(
        title="Muster orchestrator",
        version=version("muster"),
        summary="Where the swarm of one run meets. Writing requests are signed (EIP-712): see muster.signing.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(Measured)
    for router in (about, files, judgements, runs):
        app.include_router(router)
    _with_problem_schema(app)
    return app


def _with_problem_schema(app: FastAPI) -> None:
    """Let the OpenAPI document define what `documented` refers to, and how requests are signed."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        document["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
        return document

    app.openapi = openapi


# About the service

about = APIRouter(tags=["service"])


@about.get("/", response_class=HTMLResponse, include_in_schema=False)
async def status_page(service: Here) -> HTMLResponse:
    return page_response(service.run)


@about.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process runs and answers."""
    return {"status": "alive"}


@about.get("/readyz", responses={503: {"description": "Not ready, with reasons"}})
async def readyz(service: Here) -> JSONResponse:
    """Whether chain, database and storage do what they must, and what is wrong if not."""
    reasons = await service.unready()
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@about.get("/metrics", response_class=Response, include_in_schema=False)
async def metrics(service: Here) -> Response:
    await observe(service)
    return Response(generate_latest(telemetry.REGISTRY), media_type=CONTENT_TYPE_LATEST)


@about.get("/version")
async def version_of(service: Here) -> dict[str, str | int]:
    """Which software, protocol, chain and run this is."""
    return {
        "version": version("muster"),
        "protocol": PROTOCOL_VERSION,
        "chain_id": service.info.chain_id,
        "registry": service.info.addresses["registry"],
        "run": service.run,
    }


# Files and evidence

files = APIRouter(prefix="/v1", tags=["files"])


@files.put("/files/{name}", response_model=Receipt, responses=_SIGNED, openapi_extra=_BINARY)
async def put_file(
    request: Request,
    service: Here,
    caller: Signed,
    name: HashPath,
    run: Annotated[int, Query(ge=0, lt=1 << 32)],
    index: Annotated[int, Query(ge=0, lt=1 << 32)],
    root: Annotated[str, Query(pattern=r"^0x[0-9a-f]{64}$")],
) -> Receipt:
    """Upload the rollout file of a commitment to come; signed by an active worker. Idempotent."""
    if run != service.run:
        raise problems.another_run(run, service.run)
    return await service.uploads.receive(request, caller, name, run, index, root)


@files.get("/files/{name}", response_class=StreamingResponse, responses=documented(404, 422, 503))
async def get_file(service: Here, name: HashPath) -> StreamingResponse:
    """A file by its content hash. Whoever reads it checks the hash."""
    return await _content(service.uploads.files, name)


@files.post("/evidence", status_code=201, responses=_SIGNED, openapi_extra=_BINARY)
async def post_evidence(request: Request, service: Here, caller: Signed) -> dict[str, str]:
    """Keep an evidence bundle; signed by an active validator. Returns its content hash. Idempotent."""
    service.verdicts.expect_evidence(caller)
    body = await read_body(
        request, caller, limit=MAX_EVIDENCE_BYTES, seconds=service.settings.orchestrator.upload_seconds
    )
    return {"hash": await service.verdicts.evidence.put(body)}


@files.get("/evidence/{name}", response_class=StreamingResponse, responses=documented(404, 422, 503))
async def get_evidence(service: Here, name: HashPath) -> StreamingResponse:
    """An evidence bundle by its content hash. Whoever reads it checks the hash."""
    return await _content(service.verdicts.evidence, name)


async def _content(store: ContentStore, name: str) -> StreamingResponse:
    size = await store.size(name)
    if size is None:
        raise problems.not_found(f"no file {name} is kept here")
    headers = {"Content-Length": str(size), "Cache-Control": "public, max-age=31536000, immutable"}
    return StreamingResponse(store.stream(name), headers=headers, media_type="application/octet-stream")


# Verdicts

judgements = APIRouter(prefix="/v1", tags=["verdicts"])


@judgements.post("/verdicts", status_code=201, responses=_TOLD | _SIGNED, openapi_extra=_json_body(Verdict))
async def post_verdict(request: Request, response: Response, service: Here, caller: Signed) -> Told:
    """Tell a judgement; signed twice, the verdict itself and the request. 200 when it was told before."""
    verdict = await _message(Verdict, request, caller)
    told = Told(new=await service.verdicts.receive(caller, verdict))
    response.status_code = 201 if told.new else 200
    return told


async def _message(model: type[Text], request: Request, caller: Caller) -> Text:
    """The body as a message of this type."""
    body = await read_body(request, caller, limit=MAX_MESSAGE_BYTES, seconds=MESSAGE_SECONDS)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise problems.malformed(f"{where}: {first['msg']}") from error


# The run

runs = APIRouter(prefix="/v1", tags=["run"], responses=documented(404, 422, 503))


@runs.get("/runs/{run}")
async def run_info(service: Here, _: OurRun) -> RunInfo:
    """Terms, addresses, relays and files: all a newcomer needs besides this URL."""
    return service.info.model_copy(update={"relays": service.directory.listed()})


@runs.post("/runs/{run}/relays", status_code=201, responses=_TOLD | _SIGNED, openapi_extra=_json_body(RelayOffer))
async def offer_relay(request: Request, response: Response, service: Here, run: OurRun, caller: Signed) -> Told:
    """Offer to serve weights; signed by an active node, which renews it every few minutes. 200 when renewed."""
    told = Told(new=service.directory.offer(caller, run, await _message(RelayOffer, request, caller)))
    response.status_code = 201 if told.new else 200
    return told


@runs.post("/runs/{run}/lies", status_code=201, responses=_TOLD | _SIGNED, openapi_extra=_json_body(LieReport))
async def report_lie(request: Request, response: Response, service: Here, run: OurRun, caller: Signed) -> Told:
    """Report a relay that sent something else than the anchored root says. 200 when the operator had said so."""
    told = Told(new=await service.directory.report(caller, run, await _message(LieReport, request, caller)))
    response.status_code = 201 if told.new else 200
    return told


@runs.get("/runs/{run}/uploads/{node}/{index}/{root}")
async def upload(service: Here, _: OurRun, node: AddressPath, index: Index, root: HashPath) -> Upload:
    """Which file a node uploaded for (index, root): the storage's receipt and the node's own signed request."""
    address = to_checksum_address(node)
    found = await service.ledger.upload(address, index, root)
    if found is None:
        raise problems.not_found(f"{address} has uploaded nothing for index {index} and root {root}")
    return found


@runs.get("/runs/{run}/verdicts")
async def verdicts(service: Here, _: OurRun, after: Annotated[str | None, Query(max_length=64)] = None) -> VerdictPage:
    """Verdicts in the order they arrived, and the cursor to go on from."""
    return await service.ledger.verdict_page(after)


@runs.get("/runs/{run}/accepted", response_model=list[AcceptedWork])
async def accepted(service: Here, _: OurRun, min_step: Annotated[int, Query(ge=0, lt=1 << 32)] = 0) -> Response:
    """Commitments fit for training, oldest first, with the verdicts that say so."""
    return _json(await service.ledger.accepted(min_step))


@runs.get("/runs/{run}/demand")
async def demand(service: Here, _: OurRun) -> Demand:
    """Whether more work is wanted now."""
    return await service.ledger.demand()


@runs.post("/runs/{run}/steps", status_code=201, responses=_SIGNED, openapi_extra=_json_body(StepReport))
async def post_step(request: Request, service: Here, run: OurRun, caller: Signed) -> Told:
    """Tell about an update; signed by the run's trainer. The last report of a step counts."""
    await service.reports.receive(caller, run, await _message(StepReport, request, caller))
    return Told(new=True)


@runs.get("/runs/{run}/summary", response_model=Summary)
async def summary(service: Here, _: OurRun) -> Response:
    """Everything a live view shows, at most half a second old."""
    return _json(await service.summaries.json())


@runs.get("/runs/{run}/events")
async def events(service: Here, _: OurRun, after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0) -> EventPage:
    """What happened, line by line, after an event's id."""
    return await service.summaries.events_after(after)


@runs.get("/nodes/{address}")
async def node(service: Here, address: AddressPath) -> NodeReport:
    """What became of a node's commitments, and the verdicts about them, rejections first."""
    checksummed = to_checksum_address(address)
    report = await service.ledger.node_report(checksummed)
    if report is None:
        raise problems.not_found(f"{checksummed} is no node of run {service.run}", "muster worker join")
    return report


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
