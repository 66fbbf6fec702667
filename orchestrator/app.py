"""Route HTTP requests: translate between them and the other modules, and nothing more.

Reads are open to everybody, since they reveal nothing private; writes are signed. Failures are problem documents.
"""

from __future__ import annotations

from datetime import date
from functools import cache, partial
from importlib.metadata import version
from typing import Annotated, Final

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Send

from muster.clients.storage import ContentStore
from muster.constants import MAX_EVIDENCE_BYTES, PROTOCOL_VERSION
from muster.errors import StorageError
from muster.ledger.summaries import gone_file, gone_work, summary_of
from muster.ledger.tallies import find_commitment
from muster.protocol.announcements import CurrentList
from muster.protocol.messages import (
    MAX_GRADES_CHARS,
    MAX_LIST_CHARS,
    CallAnswer,
    CallQuestion,
    Demand,
    EnvironmentDecision,
    JoinDocument,
    NodeReport,
    RunDescription,
    SignedText,
    StepReport,
    Upload,
    UploadReceipt,
    Verdict,
)
from muster.runtime import problems, telemetry
from muster.runtime.http_metrics import Measured
from muster.runtime.http_server import TypedAnswers
from muster.runtime.problems import documented, openapi_document
from muster.runtime.routing import AddressPath, HashPath, Index, document_response, json_response
from orchestrator.admission import CHECK
from orchestrator.announcement_routes import announced
from orchestrator.auth import announced_bytes
from orchestrator.demand_board import MAX_HELD_SECONDS
from orchestrator.elsewhere import shown_elsewhere
from orchestrator.hot_reads import HotReads
from orchestrator.metrics import scrape
from orchestrator.routing import (
    KNOWN,
    MAX_MESSAGE_BYTES,
    MESSAGE_SECONDS,
    SIGNED,
    TAKEN,
    Ack,
    Here,
    OurRun,
    Reader,
    Signed,
    SignedByAnyone,
    acknowledge,
    json_body,
    read_message,
    read_signed,
    takes,
)
from orchestrator.service import OrchestratorService
from orchestrator.upload_slots import FILE_SECONDS

MAX_CURRENT_BYTES: Final = 4_096
"""Longest body of what is current."""

log = telemetry.logger("orchestrator")


Epoch = Annotated[int, Path(ge=1, lt=1 << 16)]
"""Of private tests."""


class StoredFileResponse(StreamingResponse):
    """A stored file. When storage fails half way the connection is closed, since the status is sent already."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except StorageError as error:
            log.error("a file was cut short", reason=str(error), hint=error.hint)


_BINARY = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {}}}}}


def create_app(service: OrchestratorService) -> FastAPI:
    """Make the application around a service."""
    app = FastAPI(
        title="Muster orchestrator",
        version=version("muster"),
        summary="Where the swarm of one run meets. Writing requests are signed: see muster.protocol.requests.",
        openapi_url=None,  # which would encode the document for each reader
    )
    app.state.service = service
    problems.install(app)
    app.add_middleware(TypedAnswers)
    for router in (about, files, judgements, runs, shown, documents_log, contributed, announced, shown_elsewhere):
        app.include_router(router)
    app.state.openapi = cache(partial(openapi_document, app))
    return app


def create_asgi(service: OrchestratorService) -> ASGIApp:
    """Make the application with what stands before the framework."""
    return Measured(HotReads(create_app(service), service.run, service.demand))


# About the service

about = APIRouter(tags=["service"])


@about.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer that the process runs."""
    return {"status": "alive"}


@about.get("/readyz", responses={503: {"description": "Not ready, with reasons"}})
async def readyz(service: Here) -> JSONResponse:
    """Answer whether chain, database and storage work, with the reasons if not."""
    reasons = await service.checks.get("ready", service.unready)
    return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


@about.get("/metrics", response_class=Response, include_in_schema=False)
async def metrics(service: Here) -> Response:
    return Response(await service.metrics.get("metrics", partial(scrape, service)), media_type=CONTENT_TYPE_LATEST)


@about.get("/openapi.json", response_class=Response, include_in_schema=False)
async def openapi(request: Request) -> Response:
    return json_response(request.app.state.openapi())


@about.get("/version")
async def version_of(request: Request, service: Here) -> dict[str, str | int]:
    """Name the software, protocol, chain and run."""
    return {
        "version": request.app.version,  # importlib.metadata reads a file
        "protocol": PROTOCOL_VERSION,
        "chain_id": service.info.chain_id,
        "registry": service.info.addresses["registry"],
        "run": service.run,
    }


@about.get(CHECK, status_code=204, include_in_schema=False)
async def check_signature(request: Request, service: Here) -> None:
    """Tell a proxy whether a member has signed the request whose body it is about to store."""
    await service.gate.check(request)


# Files and evidence

files = APIRouter(prefix="/v1", tags=["files"])


@files.put("/files/{name}", response_model=UploadReceipt, responses=SIGNED, openapi_extra=_BINARY)
async def put_file(
    request: Request,
    service: Here,
    caller: Signed,
    name: HashPath,
    run: Annotated[int, Query(ge=0, lt=1 << 32)],
    index: Annotated[int, Query(ge=0, lt=1 << 32)],
    root: Annotated[str, Query(pattern=r"^0x[0-9a-f]{64}$")],
) -> UploadReceipt:
    """Upload the rollout file of a commitment to come; signed by an active worker. Idempotent."""
    if run != service.run:
        raise problems.another_run(run, service.run)
    return await service.uploads.receive(request, caller, name, run, index, root)


@files.get("/files/{name}", response_class=StreamingResponse, responses=documented(404, 410, 422, 503))
async def get_file(service: Here, name: HashPath) -> StoredFileResponse:
    """Send a file by its content hash, which the reader checks."""
    return await _content(service, service.uploads.files, name)


@files.post("/evidence", status_code=201, responses=SIGNED, openapi_extra=_BINARY)
async def post_evidence(request: Request, service: Here, caller: Signed) -> dict[str, str]:
    """Keep an evidence bundle; signed by an active validator. Returns its content hash. Idempotent."""
    await service.verdicts.expect_evidence(caller, announced_bytes(request, MAX_EVIDENCE_BYTES) or MAX_EVIDENCE_BYTES)
    body = await read_signed(request, caller, limit=MAX_EVIDENCE_BYTES, seconds=FILE_SECONDS)
    return {"hash": await service.verdicts.evidence.put(body)}


@files.get("/evidence/{name}", response_class=StreamingResponse, responses=documented(404, 410, 422, 503))
async def get_evidence(service: Here, reader: Reader, name: HashPath) -> StoredFileResponse:
    """Send an evidence bundle by its content hash, which the reader checks, once a case on chain names it.

    Until then who posted it gets it, by its signature.
    """
    is_shown = await service.verdicts.shows(name, reader)
    return await _content(service, service.verdicts.evidence, name, is_shown=is_shown)


async def _content(
    service: OrchestratorService, store: ContentStore, name: str, *, is_shown: bool = True
) -> StoredFileResponse:
    found = await store.open(name) if is_shown else None
    if found is None:
        gone = await service.database.read(lambda connection: gone_file(connection, store.kind, name))
        raise gone or problems.not_found(f"no file {name} is kept here")
    headers = {"Content-Length": str(found.size), "Cache-Control": "public, max-age=31536000, immutable"}
    return StoredFileResponse(found.chunks, headers=headers, media_type="application/octet-stream")


# Verdicts

judgements = APIRouter(prefix="/v1", tags=["verdicts"])


@judgements.post("/verdicts", **takes(Verdict))
async def post_verdict(request: Request, response: Response, service: Here, caller: Signed) -> Ack:
    """Take a verdict; signed twice, the verdict itself and the request. 200 when it is known already."""
    return acknowledge(response, await service.verdicts.receive(caller, await read_message(Verdict, request, caller)))


# The run

runs = APIRouter(prefix="/v1", tags=["run"], responses=documented(404, 422, 503))


@runs.get("/join")
async def join(service: Here) -> JoinDocument:
    """Send where the run is, signed by its storage key: what `muster config init --join URL` begins with."""
    return service.join


@runs.get("/runs/{run}")
async def run_info(service: Here, _: OurRun) -> RunDescription:
    """Send terms, addresses, relays and files: all that a newcomer needs besides this URL."""
    relays = await service.database.read(service.relay_directory.listed)
    return service.info.model_copy(update={"relays": relays})


@runs.get("/runs/{run}/current", response_model=CurrentList)
async def current(service: Here, _: OurRun) -> Response:
    """Send what lasts only minutes: who serves weights now, and what nodes said last of their machines."""
    return json_response(await service.current_list.get("", service.current.list_json))


@runs.post("/runs/{run}/current", **takes(SignedText))
async def say_current(request: Request, response: Response, service: Here, _: OurRun, caller: Signed) -> Ack:
    """Say what counts for ten minutes: an offer to serve weights, or what machine a node runs on.

    Signed twice by an active node, the document and the request. 200 when it said the same kind of thing before.
    """
    signed = await read_message(SignedText, request, caller, limit=MAX_CURRENT_BYTES)
    return acknowledge(response, await service.current.take(caller, signed))


@runs.get("/runs/{run}/uploads/{node}/{index}/{root}", responses=documented(410))
async def upload(service: Here, _: OurRun, node: AddressPath, index: Index, root: HashPath) -> Upload:
    """Send which file a node uploaded for (index, root): the storage's receipt and the node's own signed request."""
    found = await service.queries.upload(node, index, root)
    if found is None:
        made = await service.database.read(lambda connection: find_commitment(connection, node, index))
        if made is not None and made.day is not None:
            raise gone_work(f"commitment {index} of {node}", made.day)
        raise problems.not_found(f"{node} has uploaded nothing for index {index} and root {root}")
    return found


@runs.get("/runs/{run}/summaries/{day}", response_class=StreamingResponse)
async def day_summary(service: Here, _: OurRun, day: date) -> StoredFileResponse:
    """Send what is left of a day whose rollouts and verdicts are gone, signed by the storage key."""
    name = await service.database.read(lambda connection: summary_of(connection, day))
    if not name:
        raise problems.not_found(f"there is no summary of {day}: its detail is kept, or there was no work")
    return await _content(service, service.retention.summaries, name)


@runs.post("/runs/{run}/calls", responses=SIGNED | documented(425), openapi_extra=json_body(CallQuestion))
async def ask_call(request: Request, service: Here, _: OurRun, caller: Signed) -> CallAnswer:
    """Tell an active validator whether it may look at a commitment now, and when else."""
    return await service.calls.answer(caller, await read_message(CallQuestion, request, caller))


@runs.get("/runs/{run}/calls/{node}/{index}", responses=documented(425))
async def call(service: Here, _: OurRun, node: AddressPath, index: Index) -> CallAnswer:
    """Send who is called to look at a commitment, in their order."""
    return await service.calls.order(node, index)


# What the trainer shows

shown = APIRouter(prefix="/v1", tags=["shown"], responses=documented(404, 422, 503))


@shown.get("/runs/{run}/looks/latest", response_model=SignedText)
async def latest_looks(service: Here, _: OurRun) -> Response:
    """Send the latest list of looks."""
    return await _shown(service, "looks", None, "no list of looks yet")


@shown.get("/runs/{run}/looks/{hour}", response_model=SignedText)
async def looks(service: Here, _: OurRun, hour: Annotated[int, Path(ge=0, lt=1 << 32)]) -> Response:
    """Send what was counted of the looks at an hour's commitments; hours count from 1970."""
    return await _shown(service, "looks", str(hour), f"no list of looks of hour {hour}")


@shown.put("/runs/{run}/grades/{name}", **TAKEN, openapi_extra=_BINARY)
async def put_grades(
    request: Request, response: Response, service: Here, _: OurRun, caller: Signed, name: HashPath
) -> Ack:
    """Publish the grades of a file of a batch under their content hash; signed by the trainer."""
    service.shown.expect_trainer(caller)
    if caller.request.body_hash != name:
        raise problems.wrong_hash(f"the path names {name}, the signed body hash is {caller.request.body_hash}")
    text = await read_signed(request, caller, limit=MAX_GRADES_CHARS, seconds=MESSAGE_SECONDS)
    return acknowledge(response, await service.shown.take_grades(name, text))


@shown.get("/runs/{run}/grades/{name}", response_class=StreamingResponse, responses=documented(410))
async def grades(service: Here, _: OurRun, name: HashPath) -> StoredFileResponse:
    """Send grades by their content hash, which the reader checks."""
    return await _content(service, service.shown.grades, name)


@shown.get("/runs/{run}/masters/{epoch}", response_model=SignedText)
async def master(service: Here, _: OurRun, epoch: Epoch) -> Response:
    """Send the master of an epoch of private tests, from which all earlier ones follow."""
    return await _shown(service, "master", str(epoch), f"the master of epoch {epoch} is not shown")


async def _shown(service: OrchestratorService, kind: str, key: str | None, lack: str) -> Response:
    """Send a document by its key, the latest without one."""
    found = await service.database.read(lambda connection: service.documents.latest(connection, kind, key))
    if found is None:
        raise problems.not_found(lack)
    return json_response(found.text.encode())


@shown.get("/runs/{run}/batches/{root}", response_model=SignedText)
async def batch(service: Here, _: OurRun, root: HashPath) -> Response:
    """Send what a step was trained on (a `StepDocument`), by its batch root on chain."""
    return await _shown(service, "step", root, f"no step with batch root {root} is kept here")


# The log

documents_log = APIRouter(prefix="/v1", tags=["log"], responses=documented(404, 422, 503))


@documents_log.post("/runs/{run}/log", **takes(SignedText))
async def add_document(request: Request, response: Response, service: Here, _: OurRun, caller: Signed) -> Ack:
    """Add a document to the log; signed twice, the document and the request. 200 when it is known already."""
    limit = 2 * MAX_LIST_CHARS if caller.is_trainer else MAX_MESSAGE_BYTES
    signed = await read_message(SignedText, request, caller, limit=limit)
    return acknowledge(response, await service.documents.take(signed.kind, signed, sender=caller.address))


@documents_log.get("/runs/{run}/log")
async def read_log(
    request: Request,
    service: Here,
    _: OurRun,
    after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    kind: Annotated[str | None, Query(pattern="^[a-z]{1,16}$")] = None,
    node: Annotated[str | None, Query(pattern="^0x[0-9a-fA-F]{40}$")] = None,
    index: Annotated[int | None, Query(ge=0, lt=1 << 32)] = None,
    wait: Annotated[int, Query(ge=0, le=MAX_HELD_SECONDS)] = 0,  # which `LogTail` reads
) -> Response:
    """Send signed documents from a place on, in their order, and the place to go on from.

    Of one `kind`, or about one `node`, or about its commitment with this `index`. 304 to who has them, by their ETag.
    With `wait` a request at the end of the log is held until the log has grown, or so many seconds are over; it is
    answered at once where too many are held.
    """
    subject = None if node is None else to_checksum_address(node)
    page = await service.documents.page(after, kind=kind, subject=subject, number=index)
    tag = f'W/"{page.cursor}-{len(page.entries)}"'  # a place has the same document for ever, or it is forgotten
    is_known = request.headers.get("if-none-match") == tag
    response = Response(status_code=304) if is_known else document_response(page)
    response.headers["ETag"] = tag
    return response


@runs.get("/runs/{run}/demand")
async def demand(
    service: Here,
    _: OurRun,
    wait: Annotated[int, Query(ge=0, le=MAX_HELD_SECONDS)] = 0,
    seen: Annotated[str, Query(max_length=32)] = "",
) -> Demand:
    """Answer whether more work is wanted now.

    With `wait` and then `seen`, the word in an earlier answer's ETag, the answer is held until that word is another one
    or so many seconds are over. Where too many are held, and where the request is signed, it comes at once.
    """
    service.follower.expect_complete()
    return await service.queries.demand()


@runs.get("/runs/{run}/steps/{step}")
async def step_report(service: Here, _: OurRun, step: Index) -> StepReport:
    """Send the trainer's last report of a step."""
    found = await service.reports.of_step(step)
    if found is None:
        raise problems.not_found(f"there is no report of step {step}")
    return found


@runs.get("/nodes/{address}")
async def node(service: Here, address: AddressPath) -> NodeReport:
    """Send how a node's commitments ended, and the verdicts about them, rejections first."""
    service.follower.expect_complete()
    report = await service.queries.node_report(address)
    if report is None:
        raise problems.no_node(address, service.run)
    return report


# Environments of strangers

contributed = APIRouter(prefix="/v1", tags=["environments"])


@contributed.post("/runs/{run}/environments", status_code=201, responses=KNOWN | SIGNED, openapi_extra=_BINARY)
async def submit_environment(
    request: Request, response: Response, service: Here, _: OurRun, caller: SignedByAnyone
) -> Ack:
    """Submit an environment (muster env pack); signed by its author, who need be no member. 200 when it is known."""
    return acknowledge(response, await service.environments.receive(request, caller))


@contributed.post("/runs/{run}/environments/decisions", **takes(EnvironmentDecision))
async def decide_environment(
    request: Request, response: Response, service: Here, run: OurRun, caller: SignedByAnyone
) -> Ack:
    """Admit or refuse an environment; signed twice by the run's owner, the decision itself and the request."""
    service.environments.expect_owner(caller)
    decision = await read_message(EnvironmentDecision, request, caller)
    return acknowledge(response, await service.documents.take("decision", decision))


@contributed.get("/environments/{name}", response_class=StreamingResponse, responses=documented(404, 422, 503))
async def get_environment(service: Here, name: HashPath) -> StoredFileResponse:
    """Send an environment by its content hash, which the reader checks."""
    return await _content(service, service.environments.packs, name)
