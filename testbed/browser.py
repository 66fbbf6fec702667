"""Drive a real browser for tests and benchmarks of the explorer's page: Debian's Chromium through Playwright.

A `Visitor` is one person's empty browser. It notes whatever goes wrong in it, every address that it asks for, and what
the page measures of itself: layout shift, largest paint, violations of the security policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from playwright.async_api import (
    Browser,
    BrowserContext,
    CDPSession,
    ConsoleMessage,
    Page,
    Request,
    Response,
    async_playwright,
)

from muster.errors import ConfigError
from testbed.waiting import BOUND

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Programs to drive, the best first (also scripts/set_up.py)."""
FLAGS: Final = (
    "--no-sandbox",  # root may not use it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Without the last ones a browser makes its own requests, which fail in a closed network."""
WIDTHS: Final = (360, 768, 1440)
"""CSS pixels: a phone, a tablet, a desk."""
HEIGHT: Final = 900
ABORTED: Final = "net::ERR_ABORTED"
"""Of a request whose page was left."""

_MEASURE: Final = """
window.musterMeasured = { shift: 0, largest: 0, violations: [] };
const burst = { first: -Infinity, last: -Infinity, sum: 0 };
document.addEventListener("securitypolicyviolation", event => {
  musterMeasured.violations.push(`${event.effectiveDirective}: ${event.blockedURI} (${event.sourceFile})`);
});
new PerformanceObserver(list => {
  for (const { hadRecentInput, startTime, value } of list.getEntries()) {
    if (hadRecentInput) continue;
    const goesOn = startTime - burst.last < 1000 && startTime - burst.first < 5000;
    Object.assign(burst, goesOn ? { sum: burst.sum + value } : { first: startTime, sum: value }, { last: startTime });
    musterMeasured.shift = Math.max(musterMeasured.shift, burst.sum);
  }
}).observe({ type: "layout-shift", buffered: true });
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) musterMeasured.largest = entry.startTime;
}).observe({ type: "largest-contentful-paint", buffered: true });
"""


_sessions: Final[WeakKeyDictionary[Page, CDPSession]] = WeakKeyDictionary()
"""With the debugger of each page."""


def find_browser() -> Path | None:
    """Return the first of BROWSERS that is installed."""
    found = filter(None, map(shutil.which, BROWSERS))
    return next(map(Path, found), None)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Yield a browser with an empty profile. Raises ConfigError where none is installed."""
    program = find_browser()
    if program is None:
        raise ConfigError("no browser is installed", hint="scripts/setup --tests, or apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), env=_environment(), timeout=1000 * BOUND
        )
        try:
            yield browser
        finally:
            await browser.close()


def _environment() -> dict[str, str | float | bool]:
    """Return an environment without proxies: the page is on this machine."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


@dataclass
class Visitor:
    """One person's browser. Pages that it opens are closed with it."""

    context: BrowserContext
    host: str
    """host:port of the page. Every other host is foreign."""
    scripts: bool = True
    """Whether pages may run scripts; those that may not do not load any."""
    problems: list[str] = field(default_factory=list)
    """Errors and warnings of the console, errors of scripts, requests that failed or were refused."""
    urls: list[str] = field(default_factory=list)
    """Every address that was asked for."""

    def __post_init__(self) -> None:
        self.context.set_default_timeout(1000 * BOUND)
        self.context.on("console", self._logged)
        self.context.on("weberror", lambda error: self.problems.append(f"script: {error.error}"))
        self.context.on("request", lambda request: self.urls.append(request.url))
        self.context.on("page", lambda page: page.on("websocket", lambda socket: self.urls.append(socket.url)))
        self.context.on("requestfailed", self._failed)
        self.context.on("response", self._answered)

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _failed(self, request: Request) -> None:
        if request.failure != ABORTED and (self.scripts or request.resource_type != "script"):
            self.problems.append(f"request: {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"answer: {response.status} {response.url}")

    @property
    def elsewhere(self) -> list[str]:
        """Return the addresses of other hosts that were asked for."""
        ours = ("data", "blob", "about")
        parsed = [(url, urlsplit(url)) for url in self.urls]
        return [url for url, parts in parsed if parts.scheme not in ours and parts.netloc != self.host]

    async def open(self, path: str, *, width: int = WIDTHS[-1]) -> Page:
        """Open a page of the host in a new tab, and wait until it is drawn."""
        page = await self.context.new_page()
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        await self.use(page, path)
        return page

    async def use(self, page: Page, path: str) -> None:
        """Go to a page of the host in an open tab, and wait until it is drawn: its script says when."""
        await page.goto(f"http://{self.host}{path}", wait_until="load")
        if self.scripts and await page.locator(".charts[data-series]").count():
            await wait_until(page, 'performance.getEntriesByName("muster-drawn").length > 0')

    async def close(self) -> None:
        await self.context.close()


@asynccontextmanager
async def visiting(
    browser: Browser, host: str, *, scripts: bool = True, dark: bool = False, **options: Any
) -> AsyncIterator[Visitor]:
    """Yield a visitor of a host. scripts: whether pages may run scripts; options: of Playwright's new_context."""
    context = await browser.new_context(
        java_script_enabled=scripts,
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",  # pictures are the same each time
        locale="en-GB",
        timezone_id="UTC",
        **options,
    )
    if scripts:
        await context.add_init_script(_MEASURE)
    visitor = Visitor(context, host, scripts)
    try:
        yield visitor
    finally:
        await visitor.close()


async def evaluate(page: Page, expression: str) -> Any:
    """Return what an expression is worth in the page, awaited.

    By the debugger: Playwright's own way runs `eval`, which a strict security policy of the page refuses.
    """
    if page not in _sessions:
        _sessions[page] = await page.context.new_cdp_session(page)
    given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
    reply = await _sessions[page].send("Runtime.evaluate", given)
    if "exceptionDetails" in reply:
        raise AssertionError(f"{expression[:80]}: {_thrown(reply['exceptionDetails'])}")
    return reply["result"].get("value")


def _thrown(details: Mapping[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


async def wait_until(page: Page, condition: str, seconds: float = BOUND) -> None:
    """Wait until an expression is true in the page. Raises AssertionError when it does not become so in time."""
    wanted = f"""new Promise(done => {{
      const end = performance.now() + {1000 * seconds};
      const check = () => ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(check, 20);
      check();
    }})"""
    if not await evaluate(page, wanted):
        raise AssertionError(f"not true after {seconds:g} s: {condition}")


@dataclass(frozen=True)
class Measured:
    """What a page measured of itself."""

    shift: float
    """Largest sum of layout shifts within five seconds and less than one apart: web.dev's cumulative layout shift.

    So it does not grow with the time that a page stays open."""
    largest: float
    """Seconds from the beginning of navigation to its largest paint so far."""
    violations: Sequence[str]
    """Of the security policy."""
    drawn: float | None
    """Seconds until its charts were drawn."""


async def measured(page: Page) -> Measured:
    """Return what the page has measured so far."""
    marks = 'performance.getEntriesByName("muster-drawn").map(mark => mark.startTime)'
    found = await evaluate(page, f"({{ ...musterMeasured, marks: {marks} }})")
    drawn = found["marks"][0] / 1000 if found["marks"] else None
    return Measured(found["shift"], found["largest"] / 1000, tuple(found["violations"]), drawn)
