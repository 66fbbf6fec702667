"""Route HTTP requests for the documents about single things: nodes, commitments, cases, steps, rollouts, pictures.

Reads are open to everybody, as in `orchestrator.app`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Path, Query, Response

from muster.protocol.announcements import DayEarnings
from orchestrator.page.commitments import CommitmentView
from orchestrator.page.courtroom import MAX_CASES, CasePage, CaseView
from orchestrator.page.nodes import MAX_COMMITMENTS, CommitmentPage, NodeView
from orchestrator.page.rollouts import MAX_FILES, BeforeAndAfter, RolloutFiles, RolloutView
from orchestrator.page.steps import MAX_STEPS, StepPage, StepView
from orchestrator.problems import documented
from orchestrator.routing import AddressPath, Before, CaseId, HashPath, Here, Index, OurRun, document_response
from orchestrator.tables import MAX_METRIC

PICTURE_HEADERS: Final = {
    "Cache-Control": "public, max-age=30",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Of pictures that other sites may show; as a separate document one loads nothing and runs nothing."""

SVG: Final = "image/svg+xml"
_PICTURE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A picture", "content": {SVG: {"schema": {"type": "string"}}}}
}

work = APIRouter(prefix="/v1/runs/{run}", tags=["page"], responses=documented(404, 422, 503))


@work.get("/nodes/{address}", response_model=NodeView)
async def node(service: Here, _: OurRun, address: AddressPath) -> Response:
    """Send one node: its work, what became of it, and its money by the hour."""
    return document_response(await service.page.views.node(to_checksum_address(address)))


@work.get("/nodes/{address}/commitments", response_model=CommitmentPage)
async def commitments(
    service: Here,
    _: OurRun,
    address: AddressPath,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=MAX_COMMITMENTS)] = 50,
) -> Response:
    """Send a node's commitments, newest first."""
    return document_response(await service.page.views.commitments(to_checksum_address(address), before, limit))


@work.get("/nodes/{address}/commitments/{index}", response_model=CommitmentView)
async def commitment(service: Here, _: OurRun, address: AddressPath, index: Index) -> Response:
    """Send one commitment: what was drawn, what validators measured, and what reproduces it."""
    return document_response(await service.page.views.commitment(to_checksum_address(address), index))


@work.get("/cases", response_model=CasePage)
async def cases(
    service: Here, _: OurRun, before: Before = None, limit: Annotated[int, Query(ge=1, le=MAX_CASES)] = 50
) -> Response:
    """Send cases, newest first, and the newest proofs."""
    return document_response(await service.page.views.cases(before, limit))


@work.get("/cases/{case}", response_model=CaseView)
async def one_case(service: Here, _: OurRun, case: CaseId) -> Response:
    """Send one case: charge, votes, deadlines, and what re-runs its evidence."""
    return document_response(await service.page.views.case(case))


@work.get("/checkpoints", response_model=StepPage)
async def checkpoints(
    service: Here, _: OurRun, before: Before = None, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 50
) -> Response:
    """Send steps, newest first: roots on chain, sizes, rewards, cost."""
    return document_response(await service.page.views.steps(before, limit))


@work.get("/checkpoints/{step}", response_model=StepView)
async def checkpoint(service: Here, _: OurRun, step: Index) -> Response:
    """Send one step, and the batch that it was made of."""
    return document_response(await service.page.views.step(step))


@work.get("/rollouts", response_model=RolloutFiles)
async def rollout_files(
    service: Here,
    _: OurRun,
    step: Annotated[int | None, Query(ge=0, lt=1 << 32)] = None,
    node: Annotated[str | None, Query(pattern=r"^0x[0-9a-fA-F]{40}$")] = None,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=MAX_FILES)] = 50,
) -> Response:
    """Send accepted files, newest policy step first: of one step, of one node, or before a step."""
    address = None if node is None else to_checksum_address(node)
    return document_response(await service.page.views.files(step, address, before, limit))


@work.get("/rollouts/compared", response_model=BeforeAndAfter)
async def compared(service: Here, _: OurRun) -> Response:
    """Send an early answer and a late one, to the same task where the files have one in common."""
    return document_response(await service.page.views.compared())


@work.get("/rollouts/{file_hash}", response_model=RolloutView)
async def rollout(
    service: Here, _: OurRun, file_hash: HashPath, position: Annotated[int, Query(ge=0, lt=1 << 32)] = 0
) -> Response:
    """Send one row of an accepted file as text: what a model wrote, and what it is worth."""
    return document_response(await service.page.views.rollout(file_hash, position))


@work.get("/earnings", response_model=DayEarnings)
async def earnings(service: Here, _: OurRun) -> Response:
    """Send what workers that are active now made in the last day."""
    return document_response(await service.page.views.earnings())


@work.get("/badge.svg", response_class=Response, responses=_PICTURE)
async def badge(service: Here, _: OurRun) -> Response:
    """Send a badge with the newest step and held-out score, for other sites."""
    return Response(await service.page.views.badge(), headers=PICTURE_HEADERS, media_type=SVG)


@work.get("/charts/{metric:path}.svg", response_class=Response, responses=_PICTURE)
async def chart(
    service: Here, _: OurRun, metric: Annotated[str, Path(min_length=1, max_length=MAX_METRIC)]
) -> Response:
    """Send a chart of a metric over the whole run, for other sites."""
    return Response(await service.page.views.chart(metric), headers=PICTURE_HEADERS, media_type=SVG)
