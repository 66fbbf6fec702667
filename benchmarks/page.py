"""The explorer's page in a real browser at scale, what watchers cost the workers, and a newcomer's first minutes.

    python benchmarks/page.py [--json] [--only load,pages,cost,newcomer] [--fresh-clone]

All but `newcomer` is measured over a synthetic run of 100,000 steps, 5,000 nodes and 1,600,000 commitments in the
databases of a real orchestrator and a real explorer (`testbed/big_run`), which take minutes to make and 12 GB of disk.
Every load of the overview begins with an empty browser. `page_load` is the later of its largest paint and the moment at
which its charts are drawn; `page_bytes` what came over the wire until then. `axe`, `overflow` and `checks` look at
every page, the first at each width, light and dark. `page_cost` is described in `benchmarks/page_cost.py`,
`join_minutes` in `benchmarks/page_newcomer.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, CDPSession

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.page_cost import cost_figures
from benchmarks.page_newcomer import measure_newcomers, measure_setup, newcomer_figures
from benchmarks.report import Figure, figure, none, parser, show
from testbed import page_checks
from testbed.big_run.process import BigRun, big_run
from testbed.big_run.shape import Shape
from testbed.browser import WIDTHS, measured, open_browser, visiting

PARTS: Final = ("load", "pages", "cost", "newcomer")
LOAD_TARGET: Final = 1.0
BYTES_TARGET: Final = 300.0
PAGE_NAMES: Final = (
    *("overview", "workers", "validators", "others", "worker", "cheater", "validator", "operator", "trainer"),
    *("commitment", "rejected"),
    *("court", "case", "rollouts", "rollout", "events", "checkpoints", "step", "join", "explain", "docs"),
)
"""One page of each kind."""


@dataclass
class PageLoad:
    """One load of the overview by an empty browser."""

    largest: float
    drawn: float
    bytes: int = 0
    requests: int = 0

    @property
    def seconds(self) -> float:
        return max(self.largest, self.drawn)


@dataclass
class PageFindings:
    """Findings over all pages."""

    pages: int = 0
    axe: list[str] = field(default_factory=list)
    overflow: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    made.add_argument("--fresh-clone", action="store_true", help="time the set-up of a fresh clone too")
    made.add_argument("--loads", type=int, default=9, help="of the overview")
    made.add_argument("--watchers", type=int, default=500)
    made.add_argument("--newcomers", type=int, default=5, help="who join one after the other")
    made.add_argument("--seconds", type=float, default=30.0, help="of each round with or without watchers")
    for name in ("steps", "nodes", "commitments"):
        made.add_argument(f"--{name}", type=int, default=getattr(Shape, name))
    options = made.parse_args(arguments)
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        made.error(f"unknown parts: {', '.join(sorted(unknown))}")
    found: list[Figure] = []
    if set(parts) - {"newcomer"}:
        found += at_scale(options, parts)
    if "newcomer" in parts:
        found += newcomer(options.newcomers, fresh_clone=options.fresh_clone)
    about = f"{options.steps} steps, {options.nodes} nodes, {options.commitments} commitments"
    return show(found, as_json=options.json, about=[about])


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)


def at_scale(options: argparse.Namespace, parts: Sequence[str]) -> list[Figure]:
    """Return the figures that are measured over a synthetic run."""
    shape = Shape(steps=options.steps, nodes=options.nodes, commitments=options.commitments)
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="muster-page-") as folder, big_run(Path(folder), shape, say) as big:
        big.start()
        found += asyncio.run(in_browser(big, options.loads if "load" in parts else 0, look="pages" in parts))
        if "cost" in parts:
            found += cost_figures(big, options.watchers, options.seconds)
    return found


def newcomer(count: int, *, fresh_clone: bool) -> list[Figure]:
    """Return the figures of a newcomer's first minutes."""
    with tempfile.TemporaryDirectory(prefix="muster-newcomer-") as folder:
        setup = measure_setup(Path(folder) / "clone", say) if fresh_clone else None
        return newcomer_figures(measure_newcomers(Path(folder), count, say), setup)


async def in_browser(big: BigRun, times: int, *, look: bool) -> list[Figure]:
    """Return the figures that a browser measures: of so many loads, and of a look at each page."""
    found = list[Figure]()
    if not times and not look:
        return found
    async with open_browser() as browser:
        if times:
            found += load_figures([await load_overview(browser, big.host) for _ in range(times)])
        if look:
            found += finding_figures(await look_at_pages(browser, big))
    return found


def load_figures(loads: Sequence[PageLoad]) -> list[Figure]:
    """Return how long the overview takes to be there, and how much it is."""
    seconds, sizes = [one.seconds for one in loads], [one.bytes / 1024 for one in loads]
    moments = {
        "largest_paint": [round(one.largest, 3) for one in loads],
        "charts_drawn": [round(one.drawn, 3) for one in loads],
    }
    requests = [one.requests for one in loads]
    return [
        figure("page_load", seconds, target=LOAD_TARGET, unit="s", at_most=True, **moments),
        figure("page_bytes", sizes, ratio=max, target=BYTES_TARGET, unit="KiB", at_most=True, requests=requests),
    ]


def finding_figures(found: PageFindings) -> list[Figure]:
    """Return how many findings there are."""
    return [
        none("axe", found.axe, "findings", pages=found.pages),
        none("overflow", found.overflow, "pages that scroll sideways", pages=found.pages),
        none("checks", found.checks, "findings", pages=found.pages),
    ]


async def load_overview(browser: Browser, host: str) -> PageLoad:
    """PageLoad the overview with an empty browser."""
    async with visiting(browser, host) as visitor:
        page = await visitor.context.new_page()
        session = await visitor.context.new_cdp_session(page)
        async with counting(session) as counted:
            await visitor.use(page, "/")
            sizes = dict(counted)
        seen = await measured(page)
        if visitor.problems or visitor.elsewhere or seen.violations or seen.drawn is None:
            raise SystemExit(f"the overview: {visitor.problems} {visitor.elsewhere} {seen}")
        return PageLoad(seen.largest, seen.drawn, sum(sizes.values()), len(sizes))


@asynccontextmanager
async def counting(session: CDPSession) -> AsyncIterator[dict[str, int]]:
    """Yield the bytes that come over the wire, by request: heads and bodies as they are sent, so compressed."""
    sizes: dict[str, int] = {}

    def add(name: str, event: dict[str, Any]) -> None:
        sizes[event["requestId"]] = sizes.get(event["requestId"], 0) + int(event[name])

    def finish(event: dict[str, Any]) -> None:
        sizes[event["requestId"]] = int(event["encodedDataLength"])  # all of it

    session.on("Network.dataReceived", lambda event: add("encodedDataLength", event))
    session.on("Network.loadingFinished", finish)
    await session.send("Network.enable")
    yield sizes


async def look_at_pages(browser: Browser, big: BigRun) -> PageFindings:
    """Return the findings of axe and the other checks on every page, at each width, light and dark."""
    found = PageFindings()
    for dark, width in product((False, True), WIDTHS):
        async with visiting(browser, big.host, dark=dark) as visitor:
            for path in pages_of(big).values():
                page = await visitor.open(path, width=width)
                where = f"{path}, {width} px{', in the dark' if dark else ''}"
                found.pages += 1
                found.axe += [f"{where}: {one}" for one in await page_checks.axe(page)]
                if not dark:
                    checks = (page_checks.basics, page_checks.shift, page_checks.keyboard)
                    found.checks += [f"{where}: {one}" for check in checks for one in await check(page)]
                if width == WIDTHS[-1]:
                    found.overflow += [f"{where}: {one}" for one in await page_checks.widths(page)]
                await page.close()
            found.checks += visitor.problems + visitor.elsewhere
    return found


def pages_of(big: BigRun) -> dict[str, str]:
    """Return the path of one page of each kind, by PAGE_NAMES."""
    work, members = big.rows.work, big.rows.members
    busy, cheater = members.workers[int(work.worker[-1])], members.workers[int(big.rows.convicted()[0])]
    paths = (
        "/",
        *(f"/leaderboard?list={name}" for name in ("workers", "validators", "others")),
        f"/nodes/{busy}",
        f"/nodes/{cheater}",
        f"/nodes/{members.validators[0]}",
        f"/operators/{members.operators[busy]}",
        f"/nodes/{big.run_fixture.key('trainer').address}",
        f"/nodes/{busy}/{int(work.index[-1])}",
        f"/nodes/{cheater}/0",
        "/court",
        "/court/1",
        "/rollouts",
        f"/rollouts/{big.written[-1]}",
        "/events",
        "/steps",
        f"/steps/{big.shape.steps}",
        "/join",
        "/explain",
        "/docs",
    )
    return dict(zip(PAGE_NAMES, paths, strict=True))


if __name__ == "__main__":
    sys.exit(main())
