"""Whatever strangers write is text: what the model says, names, devices, relays, metrics, the owner's own words.

Much of it is refused where it arrives. Here it stands in the database and in files as if it had not been (conftest.py).
"""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page

from benchmarks.page import PAGE_NAMES, pages_of
from explorer.render import shown
from explorer.rows import MAX_TEXT
from testbed import page_checks
from testbed.big_run.process import BigRun
from testbed.browser import evaluate, measured, visiting
from testbed.samples.texts import HOSTILE, WRITTEN

pytestmark = pytest.mark.asyncio(loop_scope="session")

FEW_TABS = 24
"""Elements of each page that are tried with the Tab key."""
INVISIBLE = (
    r"/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/"
)
"""Characters that hide or reorder text. No page contains one."""

FIND_UNSAFE = f"""(() => {{
  const found = [];
  const walker = document.createTreeWalker(document, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if ({INVISIBLE}.test(walker.currentNode.data))
    found.push(`text: ${{walker.currentNode.data.slice(0, 60)}}`);
  for (const element of document.querySelectorAll("*")) for (const {{ name, value }} of element.attributes) {{
    if (name.startsWith("on")) found.push(`a handler: ${{name}}`);
    if ({INVISIBLE}.test(value)) found.push(`${{element.tagName}} ${{name}} ${{value.slice(0, 60)}}`);
    if (["href", "src", "action", "xlink:href"].includes(name) && !/^(https?:|\\/|#|[^:]*$)/.test(value))
      found.push(`${{name}}: ${{value.slice(0, 60)}}`);
  }}
  for (const script of document.scripts) if (!script.src || new URL(script.src).host !== location.host)
    found.push("a script of somebody else");
  for (const kind of ["iframe", "object", "embed", "base", "style", "img[src='x']", "meta[http-equiv]"])
    if (document.querySelector(kind)) found.push(kind);
  if (document.title.startsWith("taken")) found.push("the title");
  return found;
}})()"""
"""Returns what of a page is more than text: handlers, scripts, frames, invisible characters, links of other kinds."""


async def expect_only_text(page: Page, problems: list[str], elsewhere: list[str]) -> None:
    assert await evaluate(page, FIND_UNSAFE) == []
    assert (await measured(page)).violations == ()
    assert (problems, elsewhere) == ([], [])


@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_hostile_text_adds_nothing_but_text_to_a_page(browser: Browser, hostile: BigRun, name: str) -> None:
    """Nor does it take anything from it: a page of it passes the checks that every page passes."""
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open(pages_of(hostile)[name])
        checks = (page_checks.shift, page_checks.axe, page_checks.basics)
        assert [finding for check in checks for finding in await check(page)] == []
        assert await page_checks.keyboard(page, FEW_TABS) == []
        assert await page.title() != ""
        await expect_only_text(page, visitor.problems, visitor.elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGE_NAMES)
async def test_a_page_of_hostile_text_fits_every_width(browser: Browser, hostile: BigRun, name: str) -> None:
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open(pages_of(hostile)[name])
        assert await page_checks.widths(page) == []


@pytest.mark.parametrize("row", range(len(WRITTEN)))
async def test_model_output_is_shown_as_text(browser: Browser, hostile: BigRun, row: int) -> None:
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open(f"/rollouts/{hostile.written[0]}?position={row}")
        texts = [await one.inner_text() for one in await page.locator("pre.model").all()]
        assert [text.strip() for text in texts] == [shown(WRITTEN[row][:MAX_TEXT], MAX_TEXT).strip()] * 3
        await expect_only_text(page, visitor.problems, visitor.elsewhere)


async def test_a_line_of_a_megabyte_neither_widens_nor_slows_the_page(browser: Browser, hostile: BigRun) -> None:
    assert len(WRITTEN[-1]) == 1 << 20
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open(f"/rollouts/{hostile.written[0]}?position={len(WRITTEN) - 1}")
        assert await page_checks.widths(page) == []
        assert len(await page.content()) < 200_000
        assert "Some of it is too long to be shown" in await page.inner_text("main")


async def test_the_owners_words_are_text(browser: Browser, hostile: BigRun) -> None:
    async with visiting(browser, hostile.host) as visitor:
        page = await visitor.open("/")
        assert await page.inner_text("h1") == shown(HOSTILE[0])
        about = await page.inner_text(".about")
        assert "<img src=x onerror=" in about
        assert "\\u202e" in about
        assert "\\x1b[31mred" in about


async def test_hostile_pages_are_plain_text_without_scripts(browser: Browser, hostile: BigRun) -> None:
    async with visiting(browser, hostile.host, scripts=False) as visitor:
        for path in pages_of(hostile).values():
            page = await visitor.open(path)
            assert (await page.inner_text("h1")).strip(), path
            assert await evaluate(page, FIND_UNSAFE) == []
            await page.close()
        assert (visitor.problems, visitor.elsewhere) == ([], [])


async def test_browsers_never_take_json_or_files_for_a_page(browser: Browser, hostile: BigRun) -> None:
    run = hostile.run_fixture.run
    async with visiting(browser, hostile.host) as visitor:
        for path in ("overview", "workers", "others", f"rollouts/{hostile.written[0]}", "events"):
            reply = await visitor.context.request.get(f"{hostile.explorer.url}/v1/runs/{run}/{path}")
            assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
            assert reply.headers["x-content-type-options"] == "nosniff"
        name = hostile.written[0]
        reply = await visitor.context.request.get(f"{hostile.orchestrator.url}/v1/files/{name}")
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.headers["x-content-type-options"] == "nosniff"
