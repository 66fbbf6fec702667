"""Route requests of browsers: translate an address into the documents of a page."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.metadata import metadata
from typing import Annotated, Any, Final, Literal, get_args

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Query, Request, Response

from muster.constants import WINDOW_HOURS
from muster.errors import RefusedError
from muster.protocol.incentives import SEALED_HOURS
from muster.protocol.metric_names import LENGTH, REWARD, UNENDED
from muster.protocol.term_words import ZERO_ADDRESS, term_lines
from orchestrator import problems
from orchestrator.page.feed import state_sentence
from orchestrator.page.leaderboard import ValidatorOrder, WorkerOrder
from orchestrator.page.render import strip
from orchestrator.page.site import Page
from orchestrator.page.swarm_routes import Kind
from orchestrator.page.words import SECTIONS, anchor_of
from orchestrator.routing import AddressPath, Before, CaseId, HashPath, Here, Index, Search
from orchestrator.service import OrchestratorService

LINES: Final = 100
"""Of a leaderboard, on one page."""
LISTED: Final = 50
"""Steps, cases, commitments or files on one page."""
FILES: Final = 200
"""Of a batch, on the page of its step; the JSON has more."""
MAX_PARTS: Final = 6
"""Parts of a reward that have a curve."""
REFRESH_SECONDS: Final = 8
"""Time from a change of the run until the script of a page about one thing fetches it again."""
LIST_REFRESH_SECONDS: Final = 20
"""The same of a list."""

Values = Callable[..., Awaitable[dict[str, Any]]]
Route = Callable[..., Awaitable[Response]]

pages = APIRouter(include_in_schema=False)


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


def page(path: str, template: str, here: str = "", refresh: int = 0) -> Callable[[Values], Route]:
    """Route requests for a page: the function returns what its template shows, once for all who ask at a time.

    The values may name another `template`.

    here, refresh: those of `Page`.
    """

    def route(values: Values) -> Route:
        async def respond(request: Request, service: OrchestratorService, **asked: Any) -> Response:
            async def make() -> Page:
                made = await values(service, **asked)
                return Page(made.get("template", template), here, refresh, values=made)

            return await service.page.site.respond(request, make)

        own = inspect.signature(values, eval_str=True)
        request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
        signature = own.replace(parameters=[request, *own.parameters.values()], return_annotation=Response)
        respond.__signature__ = signature  # type: ignore[attr-defined]
        return pages.get(path)(respond)

    return route


@page("/", "overview.html", "/", LIST_REFRESH_SECONDS)
async def overview(service: Here) -> dict[str, Any]:
    run, feed = await service.page.boards.overview(), await service.page.boards.feed()
    now, tone = state_sentence(
        step=run.step,
        finished=run.finished,
        blocked=run.blocked,
        demand=run.demand,
        unended=run.metrics.get(UNENDED),
        stale=service.page.site.stale_since() is not None,
    )
    return {"run": run, "feed": feed, "now": now, "tone": tone, "charts": await _charts(service)}


@page("/events", "events.html", "/", LIST_REFRESH_SECONDS)
async def events(service: Here, kind: Kind = "", before: Before = None) -> dict[str, Any]:
    return {"page": await service.page.boards.events(kind, before, LINES)}


async def _charts(service: OrchestratorService) -> dict[str, Any]:
    """Return the metrics of the charts whose curves are not the same in every run: (name, label); and all names."""
    names = (await service.page.boards.metrics()).names
    parts = [name for name in names if name.startswith("rewards/")][:MAX_PARTS]
    return {
        "reported": names,
        "reward": [(REWARD, "reward"), *((name, name.split("/")[1]) for name in parts)],
        "length": [(LENGTH, "length"), ("completions/mean_budget", "budget")],
    }


@page("/leaderboard", "leaderboard.html", "/leaderboard", LIST_REFRESH_SECONDS)
async def leaderboard(
    service: Here,
    chosen: Annotated[Literal["workers", "validators", "others"], Query(alias="list")] = "workers",
    order: Annotated[str, Query(max_length=20)] = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
    search: Search = "",
) -> dict[str, Any]:
    values: dict[str, Any] = {"list": chosen, "order": order, "search": search, "offset": offset or ""}
    if chosen == "workers":
        by_work: WorkerOrder = next((one for one in get_args(WorkerOrder) if one == order), "accepted")
        lines: Any = await service.page.boards.workers(by_work, offset, LINES, search)
    elif chosen == "validators":
        by_verdicts: ValidatorOrder = next((one for one in get_args(ValidatorOrder) if one == order), "inspections")
        lines = await service.page.boards.validators(by_verdicts, offset, LINES, search)
    else:
        lines = await service.page.boards.others()
    return {"list": chosen, "page": lines, "values": values, "limit": LINES}


@page("/nodes/{address}", "node.html", "/leaderboard", REFRESH_SECONDS)
async def node(service: Here, address: AddressPath, before: Before = None) -> dict[str, Any]:
    checksummed = to_checksum_address(address)
    try:
        found = await service.page.views.node(checksummed)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        # No node, but perhaps the trainer, an operator, a contract.
        return {"view": await service.page.boards.address(checksummed), "template": "address.html"}
    listed = await service.page.views.commitments(checksummed, before, LISTED)
    hours = [(line.hour, line.counts.model_dump(exclude={"total"})) for line in found.hours]
    return {"node": found, "commitments": listed.commitments, "before": listed.before, "timeline": strip(hours)}


@page("/operators/{address}", "address.html", "/leaderboard", REFRESH_SECONDS)
async def operator(service: Here, address: AddressPath) -> dict[str, Any]:
    return {"view": await service.page.boards.address(to_checksum_address(address))}


@page("/nodes/{address}/{index}", "commitment.html", "/leaderboard", REFRESH_SECONDS)
async def commitment(service: Here, address: AddressPath, index: Index) -> dict[str, Any]:
    found = await service.page.views.commitment(to_checksum_address(address), index)
    return {"work": found, "now": service.queries.chain.now}


@page("/court", "court.html", "/court", REFRESH_SECONDS)
async def court(service: Here, before: Before = None) -> dict[str, Any]:
    return {"page": await service.page.views.cases(before, LISTED)}


@page("/court/{number}", "case.html", "/court", REFRESH_SECONDS)
async def case(service: Here, number: CaseId) -> dict[str, Any]:
    return {"view": await service.page.views.case(number)}


@page("/steps", "steps.html", "/steps", LIST_REFRESH_SECONDS)
async def steps(service: Here, before: Before = None) -> dict[str, Any]:
    return {"page": await service.page.views.steps(before, LISTED)}


@page("/steps/{number}", "step.html", "/steps")
async def step(service: Here, number: Index) -> dict[str, Any]:
    found, run = await service.page.views.step(number), await service.page.boards.overview()
    newest = max(run.step or 0, run.metrics_step or 0)
    return {"view": found, "files": found.batch[:FILES], "newest": newest}


@page("/rollouts", "rollouts.html", "/rollouts")
async def rollouts(
    service: Here,
    chosen: Annotated[str, Query(alias="step", max_length=10, pattern="^[0-9]*$")] = "",
    before: Before = None,
) -> dict[str, Any]:
    policy_step = int(chosen) if chosen else None
    listed = await service.page.views.files(policy_step, None, before, LISTED)
    return {"compared": await service.page.views.compared(), "page": listed, "values": {"step": policy_step}}


@page("/rollouts/{file_hash}", "rollout.html", "/rollouts")
async def rollout(
    service: Here, file_hash: HashPath, position: Annotated[int, Query(ge=0, lt=1 << 31)] = 0
) -> dict[str, Any]:
    return {"row": await service.page.views.rollout(file_hash, position)}


@page("/join", "join.html", "/join")
async def join(service: Here) -> dict[str, Any]:
    terms = service.queries.terms
    return {
        "terms": terms,
        "pays": [terms.pay_of(number) for number in range(len(terms.classes))],
        "earnings": await service.page.views.earnings(),
        "admitter": "" if terms.admitter == ZERO_ADDRESS else terms.admitter,
        "document": service.join.model_dump_json(indent=2),
        "listed": list(term_lines(terms)),
        "window": WINDOW_HOURS,
        "first_pay": SEALED_HOURS,
    }


@pages.get("/docs")
async def docs(request: Request, service: Here) -> Response:
    async def make() -> Page:
        found: dict[str, list[tuple[str, str, str]]] = {}
        for path, methods in request.app.openapi()["paths"].items():
            for method, what in methods.items():
                line = method.upper(), path, what.get("description", "").partition("\n")[0]
                found.setdefault(what.get("tags", ["service"])[0], []).append(line)
        links = [line.split(", ", 1) for line in metadata("muster").get_all("Project-URL", [])]
        return Page("docs.html", values={"endpoints": found, "links": links})

    return await service.page.site.respond(request, make)


@page("/explain", "explain.html")
async def explain(service: Here) -> dict[str, Any]:
    return {"sections": SECTIONS, "anchor_of": anchor_of}
