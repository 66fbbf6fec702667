"""Send readers of what the explorer shows to the explorer: pages, pictures, and the documents they are made of."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from muster.runtime import problems
from orchestrator.routing import Here

PAGES: Final = ("leaderboard", "events", "join", "explain", "docs", "robots.txt")
BELOW: Final = ("nodes", "operators", "court", "steps", "rollouts", "static")
DOCUMENTS: Final = (
    *("overview", "summary", "events", "feed", "live", "metrics", "series", "workers", "validators", "others"),
    "earnings",
)
DOCUMENTS_BELOW: Final = ("nodes", "addresses", "cases", "checkpoints", "rollouts", "charts")
_PATHS: Final = (
    "/",
    *(f"/{name}" for name in (*PAGES, *BELOW)),
    *(f"/{name}/{{rest:path}}" for name in BELOW),
    *(f"/v1/runs/{{run}}/{name}" for name in (*DOCUMENTS, *DOCUMENTS_BELOW)),
    *(f"/v1/runs/{{run}}/{name}/{{rest:path}}" for name in DOCUMENTS_BELOW),
)

shown_elsewhere = APIRouter(include_in_schema=False)


async def send_on(request: Request, service: Here) -> Response:
    """Send a reader to the same address of the explorer that the settings name."""
    explorer = service.settings.orchestrator.explorer_url.rstrip("/")
    if not explorer:
        hint = f"anybody can run one: muster explorer {service.settings.orchestrator.url}"
        raise problems.moved("pages and their documents are an explorer's, and the settings name none", hint)
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{explorer}{request.url.path}{query}", 308)


for _path in _PATHS:
    shown_elsewhere.get(_path)(send_on)
