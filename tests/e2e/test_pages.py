"""Every page in a real browser: it loads without errors, contacts no other host, and is accessible."""

from __future__ import annotations

import json
import re
from urllib.parse import urljoin

import pytest
from playwright.async_api import Browser

from benchmarks.page import PAGE_NAMES, pages_of
from explorer.render import number
from muster.protocol.messages import StepReport
from testbed import page_checks
from testbed.big_run.process import BigRun
from testbed.browser import WIDTHS, evaluate, measured, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")
SLOW = pytest.mark.slow

SAME = re.compile(r"0x[0-9a-f]+|[0-9]+")
"""What differs in links of one kind."""


@SLOW
@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_a_page_passes_every_check(browser: Browser, big: BigRun, name: str) -> None:
    """In the light at a desk's width; `make test` looks so at pages of hostile text (test_hostile.py)."""
    async with visiting(browser, big.host) as visitor:
        page = await visitor.open(pages_of(big)[name])
        checks = (page_checks.shift, page_checks.axe, page_checks.basics, page_checks.widths, page_checks.keyboard)
        assert [finding for check in checks for finding in await check(page)] == []
        assert (visitor.problems, visitor.elsewhere) == ([], [])
        assert (await measured(page)).violations == ()
        assert await page.title() != ""


@SLOW
@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_a_page_passes_axe_in_the_dark_and_further_down(browser: Browser, big: BigRun, name: str) -> None:
    async with visiting(browser, big.host, dark=True) as visitor:
        for width in WIDTHS:
            page = await visitor.open(pages_of(big)[name], width=width)
            assert await page_checks.axe(page) == []
        assert await page_checks.keyboard(page) == []
        background = await evaluate(page, "getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", background)[:3])) < 200, background


@pytest.mark.parametrize("most", [pytest.param(3, id="some of each kind"), pytest.param(None, id="all", marks=SLOW)])
async def test_every_link_leads_somewhere_and_what_is_linked_as_json_is_json(
    browser: Browser, hostile: BigRun, most: int | None
) -> None:
    async with visiting(browser, hostile.host, scripts=False) as visitor:
        # 1. Collect the links by their kinds: they are in the pages as these are sent.
        kinds: dict[str, dict[str, str]] = {}
        documents = set[str]()
        for path in pages_of(hostile).values():
            page = await visitor.open(path)
            hrefs = await evaluate(
                page, '[...document.querySelectorAll("a[href], img[src]")].map(e => e.href || e.src)'
            )
            figures = '[...document.querySelectorAll("a.json, a.figure")].map(a => a.href)'
            documents |= {href for href in await evaluate(page, figures) if not href.endswith(".svg")}
            await page.close()
            for href in hrefs:
                kept = (f"{hostile.orchestrator.url}/v1/{kind}" for kind in ("files/", "evidence/", "runs/"))
                ours = f"http://{hostile.host}/", *kept
                assert href.startswith(ours), f"{path} links to {href}"
                named = re.search(r"/(?:evidence|files|rollouts)/(0x[0-9a-f]{64})", href)
                if named is None or named[1] in hostile.written:  # only a few files are there
                    address = href.partition("#")[0]
                    kinds.setdefault(SAME.sub("*", address), {})[address] = path
        assert sum(map(len, kinds.values())) > 200
        assert len(documents) > 20
        # 2. Follow them.
        for href, path in [link for links in kinds.values() for link in list(links.items())[:most]]:
            reply = await visitor.context.request.get(href)
            assert reply.status == 200, f"{path}: {reply.status} {href}"
            if href in documents:
                assert reply.headers["content-type"] == "application/json", href
                assert json.loads(await reply.body()), href


async def test_robots_txt_allows_only_pages(browser: Browser, hostile: BigRun) -> None:
    async with visiting(browser, hostile.host) as visitor:

        async def read(path: str) -> str:
            return await (await visitor.context.request.get(f"http://{hostile.host}{path}")).text()

        assert await read("/robots.txt") == "User-agent: *\nDisallow: /v1/\nDisallow: /metrics\n"
        metrics = await read("/metrics")
        assert "muster_" in metrics
        assert "_created" not in metrics


# --- Without scripts


async def test_without_scripts_the_numbers_are_there(browser: Browser, hostile: BigRun) -> None:
    async with visiting(browser, hostile.host, scripts=False) as visitor:
        page = await visitor.open("/")
        text = await page.inner_text("main")
        reply = await visitor.context.request.get(urljoin(page.url, f"/v1/runs/{hostile.run_fixture.run}/overview"))
        overview = await reply.json()
        numbers = [
            number(overview["step"]),
            number(overview["workers"]),
            number(overview["validators"]),
            number(overview["metrics"]["reward"], 3),
        ]
        assert [one for one in numbers if one not in text] == []
        assert "<img src=x onerror=" in text, "what the owner says of it"
        pictures = page.locator("noscript img, .plot img")
        assert await pictures.count() >= 5
        await pictures.first.scroll_into_view_if_needed()
        assert (visitor.problems, visitor.elsewhere) == ([], [])


async def test_the_search_finds_a_worker_without_scripts(browser: Browser, hostile: BigRun) -> None:
    address = hostile.rows.members.workers[7]
    async with visiting(browser, hostile.host, scripts=False) as visitor:
        page = await visitor.open("/leaderboard")
        await page.fill("input[type=search]", address)
        await page.press("input[type=search]", "Enter")
        await page.wait_for_url("**search=**")
        rows = page.locator("table.board tbody tr")
        assert await rows.count() == 1
        assert address in await rows.first.inner_html()


# --- Live updates


async def test_new_blocks_and_steps_come_by_themselves(browser: Browser, hostile: BigRun) -> None:
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open("/")
        await evaluate(page, "window.musterMarker = 1")
        block = await page.inner_text('[data-live="block"]')
        await page.locator(f'[data-live="block"]:not(:text-is("{block}"))').wait_for()
        async with hostile.run_fixture.client(hostile.orchestrator.url, "trainer") as client:
            report = StepReport(run=hostile.run_fixture.run, step=hostile.shape.steps + 1, metrics={"reward": 0.875})
            await client.post_step(report)
        await page.locator('[data-live="reward"]:text-is("0.875")').wait_for()
        line = page.locator("#feed li").filter(has_text=f"Step {hostile.shape.steps + 1}")
        await line.wait_for()
        assert await evaluate(page, "window.musterMarker") == 1, "it was never loaded again"
        assert (visitor.problems, visitor.elsewhere) == ([], [])
