"""Route requests of browsers: translate an address into the documents of a page."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Query, Request, Response

from muster.constants import BASIS_POINTS, WINDOW_HOURS
from muster.protocol.incentives import SEALED_HOURS
from muster.protocol.metric_names import LENGTH, REWARD
from muster.protocol.terms import Terms
from muster.protocol.terms_file import MONEY, NOBODY, terms_document
from muster.runtime.units import Tokens
from orchestrator import problems
from orchestrator.page.feed import state_sentence
from orchestrator.page.leaderboard import ValidatorOrder, WorkerOrder
from orchestrator.page.render import strip
from orchestrator.page.site import Page
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

pages = APIRouter(include_in_schema=False)


@pages.get("/static/{version}/{path:path}")
async def static(request: Request, service: Here, path: str) -> Response:
    found = service.page.site.assets.response(request, path)
    if found is None:
        raise problems.not_found(f"no file {path[:100]!r} belongs to the page")
    return found


@pages.get("/")
async def overview(request: Request, service: Here) -> Response:
    async def make() -> Page:
        run, feed = await service.page.boards.overview(), await service.page.boards.feed()
        now, tone = state_sentence(step=run.step, finished=run.finished, blocked=run.blocked, demand=run.demand)
        values = {"run": run, "feed": feed, "now": now, "tone": tone, "charts": await _charts(service)}
        return Page("overview.html", "/", LIST_REFRESH_SECONDS, values=values)

    return await service.page.site.respond(request, make)


async def _charts(service: OrchestratorService) -> dict[str, list[tuple[str, str]]]:
    """Return the metrics of the charts whose curves are not the same in every run: (name, label)."""
    parts = [name for name in (await service.page.boards.metrics()).names if name.startswith("rewards/")][:MAX_PARTS]
    return {
        "reward": [(REWARD, "reward"), *((name, name.split("/")[1]) for name in parts)],
        "length": [(LENGTH, "length"), ("completions/mean_budget", "budget")],
    }


@pages.get("/leaderboard")
async def leaderboard(
    request: Request,
    service: Here,
    chosen: Annotated[Literal["workers", "validators", "others"], Query(alias="list")] = "workers",
    order: Annotated[str, Query(max_length=20)] = "",
    offset: Annotated[int, Query(ge=0, lt=1 << 31)] = 0,
    search: Search = "",
) -> Response:
    async def make() -> Page:
        values: dict[str, Any] = {"list": chosen, "order": order, "search": search, "offset": offset or ""}
        if chosen == "workers":
            by_work: WorkerOrder = next((one for one in get_args(WorkerOrder) if one == order), "accepted")
            page: Any = await service.page.boards.workers(by_work, offset, LINES, search)
        elif chosen == "validators":
            by_verdicts: ValidatorOrder = next((one for one in get_args(ValidatorOrder) if one == order), "inspections")
            page = await service.page.boards.validators(by_verdicts, offset, LINES, search)
        else:
            page = await service.page.boards.others()
        shown = {"list": chosen, "page": page, "values": values, "limit": LINES}
        return Page("leaderboard.html", "/leaderboard", LIST_REFRESH_SECONDS, values=shown)

    return await service.page.site.respond(request, make)


@pages.get("/nodes/{address}")
async def node(request: Request, service: Here, address: AddressPath, before: Before = None) -> Response:
    async def make() -> Page:
        checksummed = to_checksum_address(address)
        found = await service.page.views.node(checksummed)
        listed = await service.page.views.commitments(checksummed, before, LISTED)
        if found is None or listed is None:
            raise problems.no_node(checksummed, service.run)
        hours = [(line.hour, line.counts.model_dump(exclude={"total"})) for line in found.hours]
        values = {"node": found, "commitments": listed.commitments, "before": listed.before, "timeline": strip(hours)}
        return Page("node.html", "/leaderboard", REFRESH_SECONDS, values=values)

    return await service.page.site.respond(request, make)


@pages.get("/nodes/{address}/{index}")
async def commitment(request: Request, service: Here, address: AddressPath, index: Index) -> Response:
    async def make() -> Page:
        checksummed = to_checksum_address(address)
        found = await service.page.views.commitment(checksummed, index)
        if found is None:
            raise problems.no_commitment(checksummed, index, service.run)
        return Page(
            "commitment.html", "/leaderboard", REFRESH_SECONDS, values={"work": found, "now": service.queries.chain.now}
        )

    return await service.page.site.respond(request, make)


@pages.get("/court")
async def court(request: Request, service: Here, before: Before = None) -> Response:
    async def make() -> Page:
        return Page(
            "court.html", "/court", REFRESH_SECONDS, values={"page": await service.page.views.cases(before, LISTED)}
        )

    return await service.page.site.respond(request, make)


@pages.get("/court/{number}")
async def case(request: Request, service: Here, number: CaseId) -> Response:
    async def make() -> Page:
        found = await service.page.views.case(number)
        if found is None:
            raise problems.no_case(number, service.run)
        return Page("case.html", "/court", REFRESH_SECONDS, values={"view": found})

    return await service.page.site.respond(request, make)


@pages.get("/steps")
async def steps(request: Request, service: Here, before: Before = None) -> Response:
    async def make() -> Page:
        return Page(
            "steps.html",
            "/steps",
            LIST_REFRESH_SECONDS,
            values={"page": await service.page.views.steps(before, LISTED)},
        )

    return await service.page.site.respond(request, make)


@pages.get("/steps/{number}")
async def step(request: Request, service: Here, number: Index) -> Response:
    async def make() -> Page:
        found = await service.page.views.step(number)
        if found is None:
            raise problems.no_step(number, service.run)
        run = await service.page.boards.overview()
        newest = max(run.step or 0, run.metrics_step or 0)
        return Page("step.html", "/steps", values={"view": found, "files": found.batch[:FILES], "newest": newest})

    return await service.page.site.respond(request, make)


@pages.get("/rollouts")
async def rollouts(
    request: Request,
    service: Here,
    chosen: Annotated[str, Query(alias="step", max_length=10, pattern="^[0-9]*$")] = "",
    before: Before = None,
) -> Response:
    async def make() -> Page:
        policy_step = int(chosen) if chosen else None
        listed = await service.page.views.files(policy_step, None, before, LISTED)
        values = {"compared": await service.page.views.compared(), "page": listed, "values": {"step": policy_step}}
        return Page("rollouts.html", "/rollouts", values=values)

    return await service.page.site.respond(request, make)


@pages.get("/rollouts/{file_hash}")
async def rollout(
    request: Request, service: Here, file_hash: HashPath, position: Annotated[int, Query(ge=0, lt=1 << 31)] = 0
) -> Response:
    async def make() -> Page:
        return Page("rollout.html", "/rollouts", values={"row": await service.page.views.rollout(file_hash, position)})

    return await service.page.site.respond(request, make)


@pages.get("/join")
async def join(request: Request, service: Here) -> Response:
    async def make() -> Page:
        terms = service.queries.terms
        values = {
            "terms": terms,
            "pays": [terms.pay_of(number) for number in range(len(terms.classes))],
            "earnings": await service.page.views.earnings(),
            "admitter": "" if terms.admitter == NOBODY else terms.admitter,
            "document": service.join.model_dump_json(indent=2),
            "listed": terms_lines(terms),
            "window": WINDOW_HOURS,
            "first_pay": SEALED_HOURS,
        }
        return Page("join.html", "/join", values=values)

    return await service.page.site.respond(request, make)


@pages.get("/explain")
async def explain(request: Request, service: Here) -> Response:
    async def make() -> Page:
        return Page("explain.html", values={"sections": SECTIONS, "anchor_of": anchor_of})

    return await service.page.site.respond(request, make)


def terms_lines(terms: Terms) -> list[tuple[str, str]]:
    """Return the terms as people read them: money in tokens, classes as sentences."""
    lines = []
    for name, value in terms_document(terms).items():
        if name == "classes":
            told = [
                f"{one['weight_bps'] / BASIS_POINTS:g} × pay for {', '.join(map(str, one['budgets']))} tokens"
                for one in value
            ]
            lines += [(f"class {number}", text) for number, text in enumerate(told)]
        else:
            lines.append((name, str(Tokens(value)) if name in MONEY else str(value)))
    return lines
