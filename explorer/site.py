"""Answer with pages: rendered once in KEPT_SECONDS however many ask, under a strict content security policy.

The policy allows the page's own sheet, scripts, pictures and connections, and nothing else: no inline
script or style, no other host, no frame. Text that strangers can write reaches a page as text only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from explorer.assets import Assets, compressed, pack
from explorer.overview import RunIdentity
from explorer.render import environment
from muster.errors import RefusedError
from muster.runtime.kept import KeptAnswers

KEPT_SECONDS: Final = 2.0
"""Age of a page that is given again instead of being rendered again."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
PAGES: Final = (
    ("/", "Overview"),
    ("/leaderboard", "Leaderboard"),
    ("/rollouts", "Rollouts"),
    ("/steps", "Checkpoints"),
    ("/court", "Courtroom"),
    ("/join", "Join"),
)


@dataclass(frozen=True)
class Page:
    path: str
    template: str
    here: str = ""
    """Path of the page, among PAGES, that it belongs to."""
    refresh: int = 0
    """Seconds after a change of the run after which scripts fetch it again; 0: never."""


PROBLEM: Final = Page("", "problem.html")


class Site:
    """The pages of one run. One per service."""

    def __init__(
        self,
        known: RunIdentity,
        url: str,
        chain_time: Callable[[], int],
        stale_since: Callable[[], float | None] = lambda: None,
        explorer: str = "",
    ) -> None:
        """`url` is the orchestrator's own; `chain_time` returns the chain's second that was read last.

        stale_since: returns since which Unix second the chain is not read; None while it is. explorer: URL of the
        block explorer that hashes and addresses link to; empty for none.
        """
        self.assets = Assets()
        self._known = known
        self._url = url
        self._chain_time = chain_time
        self.stale_since = stale_since
        self._explorer = explorer.rstrip("/")
        self._templates = environment()
        self._kept = KeptAnswers(KEPT_SECONDS)

    async def respond(self, request: Request, page: Page, make: Callable[[], Awaitable[dict[str, Any]]]) -> Response:
        """Answer with a page, or with what was made for the same address just now.

        make: returns what the template shows; its values may name another `template`.
        """
        status, plain, packed = await self._kept.get(
            str(request.url.replace(scheme="", netloc="")), lambda: self._render(page, make)
        )
        response = compressed(request, plain, packed, "text/html; charset=utf-8", HEADERS)
        response.status_code = status
        return response

    async def _render(self, page: Page, make: Callable[[], Awaitable[dict[str, Any]]]) -> tuple[int, bytes, bytes]:
        status = 200
        try:
            values = {"template": page.template, **await make()}
        except RefusedError as error:
            title, status, page = error.title or HTTPStatus(error.status).phrase, error.status, PROBLEM
            values = {"template": page.template, "title": title, "detail": str(error), "hint": error.hint}
        text = self._templates.get_template(values["template"]).render(site=self._site(page), **values)
        plain = text.encode("utf-8", "backslashreplace")  # a model may have written half of a pair of surrogates
        return status, plain, pack(plain)

    def _site(self, page: Page) -> dict[str, Any]:
        known = self._known
        return {
            "run": known.run,
            "chain_id": known.chain_id,
            "title": known.title,
            "url": self._url,
            "static": self.assets.base,
            "api": f"/v1/runs/{known.run}",
            "pages": PAGES,
            "here": page.here,
            "refresh": page.refresh,
            "made": time.time(),
            "chain_time": self._chain_time(),
            "stale_since": self.stale_since(),
            "explorer": self._explorer,
        }
