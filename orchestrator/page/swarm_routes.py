"""Route requests about the whole run: what its page shows of the swarm, as JSON, and the stream that keeps it live."""

from __future__ import annotations

from typing import Annotated

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Header, Query, Request, Response

from orchestrator import problems
from orchestrator.page.addresses import AddressView
from orchestrator.page.assets import compressed
from orchestrator.page.feed import KINDS
from orchestrator.page.feed_log import EventFeed
from orchestrator.page.leaderboard import (
    MAX_LINES,
    Others,
    ValidatorOrder,
    ValidatorPage,
    WorkerOrder,
    WorkerPage,
)
from orchestrator.page.overview import Overview
from orchestrator.page.series import MAX_POINTS, MAX_SERIES, MetricList, SeriesPage
from orchestrator.problems import documented
from orchestrator.routing import AddressPath, Before, Here, OurRun, Search, document_response
from orchestrator.tables import MAX_METRIC

swarm = APIRouter(prefix="/v1/runs/{run}", tags=["page"], responses=documented(404, 422, 503))

Offset = Annotated[int, Query(ge=0, lt=1 << 31)]
Limit = Annotated[int, Query(ge=1, le=MAX_LINES)]
Step = Annotated[int, Query(ge=0, lt=1 << 32)]
Kind = Annotated[str, Query(max_length=24, pattern=f"^({'|'.join(KINDS)})?$")]
"""Of events; empty for all."""
MetricName = Annotated[str, Query(min_length=1, max_length=MAX_METRIC)]


@swarm.get("/overview", response_model=Overview)
async def overview(service: Here, _: OurRun) -> Response:
    """Send what the run trains, how far it is, who works for it and what it waits for."""
    return document_response(await service.page.boards.overview())


@swarm.get("/metrics", response_model=MetricList)
async def metrics(service: Here, _: OurRun) -> Response:
    """Send the names of the metrics that charts can show."""
    return document_response(await service.page.boards.metrics())


@swarm.get("/series", response_model=SeriesPage)
async def series(
    request: Request,
    service: Here,
    _: OurRun,
    name: Annotated[list[MetricName], Query(min_length=1, max_length=MAX_SERIES)],
    first: Step = 0,
    last: Annotated[int | None, Query(ge=0, lt=1 << 32)] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 500,
) -> Response:
    """Send metrics over the steps from `first` to `last`, by default to the newest, in at most so many points."""
    if last is not None and last < first:
        raise problems.malformed(f"the steps end at {last}, before they begin at {first}")
    plain, packed = await service.page.boards.series_json(name, first, last, points)
    return compressed(request, plain, packed, "application/json", {})


@swarm.get("/workers", response_model=WorkerPage)
async def workers(
    service: Here,
    _: OurRun,
    order: WorkerOrder = "accepted",
    offset: Offset = 0,
    limit: Limit = 100,
    search: Search = "",
) -> Response:
    """Send workers in an order, those that a search finds by name or address, from `offset` on."""
    return document_response(await service.page.boards.workers(order, offset, limit, search))


@swarm.get("/validators", response_model=ValidatorPage)
async def validators(
    service: Here,
    _: OurRun,
    order: ValidatorOrder = "inspections",
    offset: Offset = 0,
    limit: Limit = 100,
    search: Search = "",
) -> Response:
    """Send validators in an order, those that a search finds by name or address, from `offset` on."""
    return document_response(await service.page.boards.validators(order, offset, limit, search))


@swarm.get("/others", response_model=Others)
async def others(service: Here, _: OurRun) -> Response:
    """Send who takes part without being a node: trainer, relays, authors of tasks."""
    return document_response(await service.page.boards.others())


@swarm.get("/addresses/{address}", response_model=AddressView)
async def of_address(service: Here, _: OurRun, address: AddressPath) -> Response:
    """Send what an address is in the run, and the nodes that it operates with their sums."""
    return document_response(await service.page.boards.address(to_checksum_address(address)))


@swarm.get("/feed", response_model=EventFeed)
async def feed(service: Here, _: OurRun, kind: Kind = "", before: Before = None, limit: Limit = 100) -> Response:
    """Send all events or those of a kind, newest first, as the sentences that the page shows."""
    return document_response(await service.page.boards.events(kind, before, limit))


@swarm.get(
    "/live",
    response_class=Response,
    responses={200: {"description": "Server-sent events, each a LiveState", "content": {"text/event-stream": {}}}},
)
async def live(
    service: Here, _: OurRun, last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=64)] = ""
) -> Response:
    """Send the state of the run, and again whenever it changes, with what happened since."""
    return await service.page.hub.stream(last_event_id)
