"""Route what the page shows of a run: each document once, as JSON and, where a template shows it, as HTML.

Reads are open to everybody, as in the orchestrator.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from http import HTTPStatus
from importlib.metadata import metadata
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from fastapi import APIRouter, Path, Query, Request, Response

from explorer import pictures
from explorer.addresses import AddressView
from explorer.assets import compressed
from explorer.commitments import CommitmentView, commitment_view
from explorer.courtroom import MAX_CASES, CasePage, CaseView, case_page, case_view
from explorer.earnings import earnings_of
from explorer.feed import KINDS, state_sentence
from explorer.feed_log import EventFeed
from explorer.leaderboard import MAX_LINES, Others, ValidatorOrder, ValidatorPage, WorkerOrder, WorkerPage
from explorer.live import LiveState
from explorer.nodes import MAX_COMMITMENTS, CommitmentPage, NodeView, commitment_page
from explorer.overview import Overview, key_lines
from explorer.render import strip
from explorer.rollouts import MAX_FILES, BeforeAndAfter, RolloutFiles, RolloutView, accepted_files
from explorer.routing import AddressQuery, Before, CaseId, Here, OurRun, Search
from explorer.series import MAX_POINTS, MAX_SERIES, MetricList, SeriesPage
from explorer.service import ExplorerService
from explorer.site import Page
from explorer.steps import MAX_STEPS, StepPage, StepView, step_page, step_view
from explorer.summary import Summary
from explorer.views import EARNINGS_SECONDS, LISTED_SECONDS, PICTURE_SECONDS
from explorer.words import SECTIONS, anchor_of
from muster.constants import WINDOW_HOURS
from muster.errors import RefusedError
from muster.ledger.events import EventPage, events_after
from muster.ledger.tables import MAX_METRIC
from muster.protocol.announcements import DayEarnings
from muster.protocol.incentives import SEALED_HOURS
from muster.protocol.keys import KEY_WORDS, ZERO_ADDRESS
from muster.protocol.metric_names import LENGTH, REWARD, UNENDED
from muster.protocol.term_words import term_lines
from muster.runtime import problems
from muster.runtime.problems import documented
from muster.runtime.routing import AddressPath, HashPath, Index, document_response, json_response

LINES: Final = 100
"""Of a leaderboard or of events, by default."""
LISTED: Final = 50
"""Nodes' commitments, steps, cases or files, by default."""
FILES: Final = 200
"""Of a batch, on the page of its step; the JSON has more."""
MAX_PARTS: Final = 6
"""Parts of a reward that have a curve."""
REFRESH_SECONDS: Final = 8
"""Time from a change of the run until the script of a page about one thing fetches it again."""
LIST_REFRESH_SECONDS: Final = 20
"""The same of a list."""
PICTURE_HEADERS: Final = {
    "Cache-Control": "public, max-age=30",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Of pictures that other sites may show; as a separate document one loads nothing and runs nothing."""
LIVE_HEADERS: Final = {"Cache-Control": "no-cache"}
SVG: Final = "image/svg+xml"
_PICTURE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A picture", "content": {SVG: {"schema": {"type": "string"}}}}
}

Offset = Annotated[int, Query(ge=0, lt=1 << 31)]
Step = Annotated[int, Query(ge=0, lt=1 << 32)]
Kind = Annotated[str, Query(max_length=24, pattern=f"^({'|'.join(KINDS)})?$")]
"""Of events; empty for all."""
MetricName = Annotated[str, Query(min_length=1, max_length=MAX_METRIC)]
Lines = Annotated[int, Query(ge=1, le=MAX_LINES)]

Make = TypeVar("Make", bound=Callable[..., Awaitable[Any]])
Values = Callable[..., Awaitable[dict[str, Any]]]

documents = APIRouter(prefix="/v1/runs/{run}", tags=["page"], responses=documented(404, 422, 503))
pages = APIRouter(include_in_schema=False)


# One document, two forms


def document(path: str, shown: Page | None = None, more: Values | None = None) -> Callable[[Make], Make]:
    """Route requests for the document that a function returns: as JSON, and where it is `shown` as HTML.

    A template has the document as `page`, with as many lines as the default `limit` says, and what `more` returns,
    which is called with the service and the document.
    """

    def route(make: Make) -> Make:
        @wraps(make)
        async def send(run: OurRun, **asked: Any) -> Response:
            return document_response(await make(**asked))

        async def values(service: ExplorerService, **asked: Any) -> dict[str, Any]:
            found = await make(service, **asked)
            return {"page": found, **(await more(service, found) if more else {})}

        _sign(send, make, run=OurRun)
        documents.get(path, response_model=inspect.signature(make, eval_str=True).return_annotation)(send)
        if shown is not None:
            _sign(values, make, without=("limit",))
            page(shown)(values)
        return make

    return route


def page(shown: Page) -> Callable[[Values], Values]:
    """Route requests for a page: the function returns what its template shows, once for all who ask at a time."""

    def route(values: Values) -> Values:
        async def respond(request: Request, service: ExplorerService, **asked: Any) -> Response:
            return await service.page.site.respond(request, shown, lambda: values(service, **asked))

        _sign(respond, values, request=Request)
        pages.get(shown.path)(respond)
        return values

    return route


def _sign(route: Any, make: Callable[..., Any], without: Collection[str] = (), **added: Any) -> None:
    """Let a route take the parameters of a function, with the `added` ones before them."""
    own = inspect.signature(make, eval_str=True)
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=added[name]) for name in added]
    kept = [one for name, one in own.parameters.items() if name not in without]
    route.__signature__ = own.replace(parameters=[*first, *kept], return_annotation=Response)


# The whole run


async def _around_overview(service: ExplorerService, run: Overview) -> dict[str, Any]:
    boards = service.page.boards
    now, tone = state_sentence(
        step=run.step,
        finished=run.finished,
        blocked=run.blocked,
        demand=run.demand,
        unended=run.metrics.get(UNENDED),
        stale=service.page.site.stale_since() is not None,
    )
    charts = _charts((await boards.metrics()).names)
    return {"feed": await boards.feed(), "now": now, "tone": tone, "charts": charts}


def _charts(names: list[str]) -> dict[str, Any]:
    """Return the metrics of the charts whose curves are not the same in every run: (name, label); and all names."""
    parts = [name for name in names if name.startswith("rewards/")][:MAX_PARTS]
    return {
        "reported": names,
        "reward": [(REWARD, "reward"), *((name, name.split("/")[1]) for name in parts)],
        "length": [(LENGTH, "length"), ("completions/mean_budget", "budget")],
    }


@document("/overview", Page("/", "overview.html", "/", LIST_REFRESH_SECONDS), _around_overview)
async def overview(service: Here) -> Overview:
    """Send what the run trains, how far it is, who works for it and what it waits for."""
    return await service.page.boards.overview()


@document("/metrics")
async def metrics(service: Here) -> MetricList:
    """Send the names of the metrics that charts can show."""
    return await service.page.boards.metrics()


@documents.get("/series", response_model=SeriesPage)
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


@document("/workers")
async def workers(
    service: Here, order: WorkerOrder = "accepted", offset: Offset = 0, limit: Lines = LINES, search: Search = ""
) -> WorkerPage:
    """Send workers in an order, those that a search finds by name or address, from `offset` on."""
    return await service.page.boards.workers(order, offset, limit, search)


@document("/validators")
async def validators(
    service: Here, order: ValidatorOrder = "inspections", offset: Offset = 0, limit: Lines = LINES, search: Search = ""
) -> ValidatorPage:
    """Send validators in an order, those that a search finds by name or address, from `offset` on."""
    return await service.page.boards.validators(order, offset, limit, search)


@document("/others")
async def others(service: Here) -> Others:
    """Send who takes part without being a node: trainer, relays, authors of tasks."""
    return await service.page.boards.others()


@page(Page("/leaderboard", "leaderboard.html", "/leaderboard", LIST_REFRESH_SECONDS))
async def leaderboard(
    service: Here,
    chosen: Annotated[Literal["workers", "validators", "others"], Query(alias="list")] = "workers",
    order: Annotated[str, Query(max_length=20)] = "",
    offset: Offset = 0,
    search: Search = "",
) -> dict[str, Any]:
    values: dict[str, Any] = {"list": chosen, "order": order, "search": search, "offset": offset or ""}
    if chosen == "workers":
        by_work: WorkerOrder = next((one for one in get_args(WorkerOrder) if one == order), "accepted")
        lines: Any = await workers(service, by_work, offset, search=search)
    elif chosen == "validators":
        by_verdicts: ValidatorOrder = next((one for one in get_args(ValidatorOrder) if one == order), "inspections")
        lines = await validators(service, by_verdicts, offset, search=search)
    else:
        lines = await others(service)
    return {"list": chosen, "page": lines, "values": values, "limit": LINES}


@document("/addresses/{address}", Page("/operators/{address}", "address.html", "/leaderboard", REFRESH_SECONDS))
async def of_address(service: Here, address: AddressPath) -> AddressView:
    """Send what an address is in the run, and the nodes that it operates with their sums."""
    return await service.page.boards.address(address)


@document("/feed", Page("/events", "events.html", "/", LIST_REFRESH_SECONDS))
async def feed(service: Here, kind: Kind = "", before: Before = None, limit: Lines = LINES) -> EventFeed:
    """Send all events or those of a kind, newest first, as the sentences that the page shows."""
    return await service.page.boards.events(kind, before, limit)


@documents.get("/live", response_model=LiveState)
async def live(request: Request, service: Here, _: OurRun) -> Response:
    """Send the state of the run with the newest events, a second old; 304 to who has it already, by its ETag."""
    tag, plain, packed = await service.page.views.live(service.page.boards)
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag, **LIVE_HEADERS})
    return compressed(request, plain, packed, "application/json", {"ETag": tag, **LIVE_HEADERS})


# Nodes and their work


@document("/nodes/{address}")
async def node(service: Here, address: AddressPath) -> NodeView:
    """Send one node: its work, what became of it, and its money by the hour."""
    return await service.page.views.node(address)


@document("/nodes/{address}/commitments")
async def commitments(
    service: Here,
    address: AddressPath,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=MAX_COMMITMENTS)] = LISTED,
) -> CommitmentPage:
    """Send a node's commitments, newest first."""
    return await service.page.views.read(commitment_page, address, before, limit)


@page(Page("/nodes/{address}", "node.html", "/leaderboard", REFRESH_SECONDS))
async def node_or_address(service: Here, address: AddressPath, before: Before = None) -> dict[str, Any]:
    try:
        found = await node(service, address)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        # No node, but perhaps the trainer, an operator, a contract.
        return {"page": await of_address(service, address), "template": "address.html"}
    listed = await commitments(service, address, before)
    hours = [(line.hour, line.counts.model_dump(exclude={"total"})) for line in found.hours]
    return {"node": found, "commitments": listed.commitments, "before": listed.before, "timeline": strip(hours)}


@document(
    "/nodes/{address}/commitments/{index}",
    Page("/nodes/{address}/{index}", "commitment.html", "/leaderboard", REFRESH_SECONDS),
)
async def commitment(service: Here, address: AddressPath, index: Index) -> CommitmentView:
    """Send one commitment: what was drawn, what validators measured, and what reproduces it."""
    return await service.page.views.read(commitment_view, address, index)


# The court


@document("/cases", Page("/court", "court.html", "/court", REFRESH_SECONDS))
async def cases(
    service: Here, before: Before = None, limit: Annotated[int, Query(ge=1, le=MAX_CASES)] = LISTED
) -> CasePage:
    """Send cases, newest first, and the newest proofs."""
    return await service.page.views.read(case_page, before, limit)


@document("/cases/{case}", Page("/court/{case}", "case.html", "/court", REFRESH_SECONDS))
async def one_case(service: Here, case: CaseId) -> CaseView:
    """Send one case: charge, votes, deadlines, and what re-runs its evidence."""
    return await service.page.views.read(case_view, case)


# Steps


@document("/checkpoints", Page("/steps", "steps.html", "/steps", LIST_REFRESH_SECONDS))
async def checkpoints(
    service: Here, before: Before = None, limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = LISTED
) -> StepPage:
    """Send steps, newest first: roots on chain, sizes, rewards, cost."""
    relays = service.current.urls
    return await service.page.views.read(step_page, relays, before, limit, seconds=LISTED_SECONDS)


async def _around_step(service: ExplorerService, found: StepView) -> dict[str, Any]:
    run = await service.page.boards.overview()
    return {"files": found.batch[:FILES], "newest": max(run.step or 0, run.metrics_step or 0)}


@document("/checkpoints/{step}", Page("/steps/{step}", "step.html", "/steps"), _around_step)
async def checkpoint(service: Here, step: Index) -> StepView:
    """Send one step, and the batch that it was made of."""
    relays = service.current.urls
    return await service.page.views.read(step_view, relays, step, seconds=LISTED_SECONDS)


# Rollouts


@document("/rollouts")
async def rollout_files(
    service: Here,
    step: Annotated[int | None, Query(ge=0, lt=1 << 32)] = None,
    node: AddressQuery = None,
    before: Before = None,
    limit: Annotated[int, Query(ge=1, le=MAX_FILES)] = LISTED,
) -> RolloutFiles:
    """Send accepted files, newest policy step first: of one step, of one node, or before a step."""
    return await service.page.views.read(accepted_files, step, node, before, limit, seconds=LISTED_SECONDS)


@document("/rollouts/compared")
async def compared(service: Here) -> BeforeAndAfter:
    """Send an early answer and a late one, to the same task where the files have one in common."""
    return await service.page.views.compared()


@page(Page("/rollouts", "rollouts.html", "/rollouts"))
async def rollouts(
    service: Here,
    chosen: Annotated[str, Query(alias="step", max_length=10, pattern="^[0-9]*$")] = "",
    before: Before = None,
) -> dict[str, Any]:
    policy_step = int(chosen) if chosen else None
    listed = await rollout_files(service, policy_step, before=before)
    return {"compared": await compared(service), "page": listed, "values": {"step": policy_step}}


@document("/rollouts/{file_hash}", Page("/rollouts/{file_hash}", "rollout.html", "/rollouts"))
async def rollout(
    service: Here, file_hash: HashPath, position: Annotated[int, Query(ge=0, lt=1 << 32)] = 0
) -> RolloutView:
    """Send one row of an accepted file as text: what a model wrote, and what it is worth."""
    return await service.page.views.rollout(file_hash, position)


# The run for programs


@documents.get("/summary", response_model=Summary)
async def summary(service: Here, _: OurRun) -> Response:
    """Send everything that a live view shows, half a second old, or a few seconds in a large run."""
    return json_response(await service.page.boards.summary_json())


@documents.get("/events")
async def events(service: Here, _: OurRun, after: Annotated[int, Query(ge=0, lt=1 << 53)] = 0) -> EventPage:
    """Send the events after an event's id."""
    return await service.database.read(lambda connection: events_after(connection, after))


# Joining, and charts for other sites


@document("/earnings")
async def earnings(service: Here) -> DayEarnings:
    """Send what workers that are active now made in the last day."""
    return await service.page.views.read(earnings_of, seconds=EARNINGS_SECONDS)


@page(Page("/join", "join.html", "/join"))
async def join(service: Here) -> dict[str, Any]:
    terms, keys = service.queries.terms, service.queries.keys_now
    return {
        "terms": terms,
        "pays": [terms.pay_of(number) for number in range(len(terms.classes))],
        "earnings": await earnings(service),
        "key_words": KEY_WORDS,
        "nobody": ZERO_ADDRESS,
        "keys": key_lines(service.queries.keys, service.queries.chain.now),
        "admitter": "" if keys.admitter == ZERO_ADDRESS else keys.admitter,
        "document": service.join.model_dump_json(indent=2),
        "listed": list(term_lines(terms)),
        "window": WINDOW_HOURS,
        "first_pay": SEALED_HOURS,
    }


@documents.get("/charts/{metric:path}.svg", response_class=Response, responses=_PICTURE)
async def chart(
    service: Here, _: OurRun, metric: Annotated[str, Path(min_length=1, max_length=MAX_METRIC)]
) -> Response:
    """Send a chart of a metric over the whole run, for other sites."""
    svg = await service.page.views.read(pictures.chart, metric, seconds=PICTURE_SECONDS)
    return Response(svg, headers=PICTURE_HEADERS, media_type=SVG)


# Pages of words, and files


@page(Page("/explain", "explain.html"))
async def explain(service: Here) -> dict[str, Any]:
    return {"sections": SECTIONS, "anchor_of": anchor_of}


@pages.get("/docs")
async def docs(request: Request, service: Here) -> Response:
    async def make() -> dict[str, Any]:
        found: dict[str, list[tuple[str, str, str]]] = {}
        for path, methods in request.app.openapi()["paths"].items():
            for method, what in methods.items():
                line = method.upper(), path, what.get("description", "").partition("\n")[0]
                found.setdefault(what.get("tags", ["service"])[0], []).append(line)
        links = [line.split(", ", 1) for line in metadata("muster").get_all("Project-URL", [])]
        return {"endpoints": found, "links": links}

    return await service.page.site.respond(request, Page("/docs", "docs.html"), make)


@pages.get("/robots.txt")
async def robots() -> Response:
    """Let search engines read the pages, and neither documents nor files."""
    return Response("User-agent: *\nDisallow: /v1/\nDisallow: /metrics\n", media_type="text/plain")


@pages.get("/static/{version}/{path:path}")
async def static(request: Request, service: Here, path: str) -> Response:
    found = service.page.site.assets.response(request, path)
    if found is None:
        raise problems.not_found(f"no file {path[:100]!r} belongs to the page")
    return found
