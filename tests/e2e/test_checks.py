"""Each page check finds its fault on a page that has it, and all pass on a page without faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest
from playwright.async_api import Browser, Page

from testbed import page_checks
from testbed.browser import evaluate, measured, visiting, wait_until
from testbed.http import Reply, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
GOOD = """<!doctype html><html lang="en"><head><title>A page</title><meta name="viewport" content="width=device-width">
<meta name="description" content="x"><link rel="icon" href="data:,">
<style>body { background: #fff; color: #000 }</style></head>
<body><main><h1>A page</h1><p>Text, and <a href="/">a link</a>.</p></main></body></html>"""


@contextmanager
def serving_page(html: str) -> Iterator[str]:
    """A server of one page; yields its host and port."""

    def answer(request: BaseHTTPRequestHandler) -> Reply:
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": POLICY}
        return Reply(html.encode(), headers=headers) if request.path == "/" else Reply(b"nothing", 404, headers)

    with serving(answer) as url:
        yield url.removeprefix("http://")


@contextmanager
def with_body(body: str, style: str = "") -> Iterator[str]:
    with serving_page(GOOD.replace("</main>", f"{body}</main>").replace("</style>", f"{style}</style>")) as host:
        yield host


CHECKS = (page_checks.axe, page_checks.basics, page_checks.shift, page_checks.widths, page_checks.keyboard)


async def test_a_good_page_has_no_findings(browser: Browser) -> None:
    with serving_page(GOOD) as host:
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            assert [finding for check in CHECKS for finding in await check(page)] == []
            assert (visitor.problems, visitor.elsewhere) == ([], [])
            assert visitor.urls == [f"http://{host}/"]
            found = await measured(page)
            assert (found.shift, found.violations, found.drawn) == (0, (), None)
            assert found.largest > 0


FAULTS: list[tuple[Callable[[Page], Awaitable[list[str]]], str, str, str]] = [
    (page_checks.axe, '<p style="color: #bbb">pale</p>', "", "serious color-contrast"),
    (page_checks.axe, '<img src="data:,">', "", "critical image-alt"),
    (page_checks.axe, "<h4>Below nothing</h4>", "", "moderate heading-order"),
    (page_checks.basics, "<h1>Another</h1>", "", "2 first headings"),
    (page_checks.basics, '<input name="nameless">', "", "a field without a label: nameless"),
    (page_checks.basics, '<a href="#nowhere">link</a>', "", "a link to nowhere: #nowhere"),
    (page_checks.basics, '<p id="a"></p><p id="a"></p>', "", "two elements named a"),
    (page_checks.widths, '<p class="long" style="width: 800px">x</p>', "", "808 px wide on a screen of 360: P.long"),
    (page_checks.widths, '<p class="long" style="width: 20rem">x</p>', "", "648 px wide on a screen of 360 with text"),
    (page_checks.keyboard, "<button>Dim</button>", ":focus { outline: none }", "focus is not shown on BUTTON Dim"),
    (
        page_checks.keyboard,
        '<div tabindex="0">last</div><button tabindex="0" inert>Never</button>',
        "",
        'the Tab key does not reach <button tabindex="0"',
    ),
    (
        page_checks.keyboard,
        '<a href="/" style="position: fixed; left: 0; top: -500px">Up there</a>',
        "",
        "focus is out of sight on A Up there",
    ),
]


@pytest.mark.parametrize(("check", "body", "style", "finding"), FAULTS, ids=[fault[-1] for fault in FAULTS])
async def test_a_fault_is_found(
    browser: Browser, check: Callable[[Page], Awaitable[list[str]]], body: str, style: str, finding: str
) -> None:
    with with_body(body, style) as host:
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            found = await check(page)
            assert any(one.startswith(finding) for one in found), found


async def test_a_live_page_may_change_while_its_elements_are_tried(browser: Browser) -> None:
    with with_body('<p><a href="/a">a</a></p><p><a href="/b">b</a></p>') as host:
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            copies = "[...main.childNodes].map(node => node.cloneNode(true))"
            await evaluate(page, "window.main = document.querySelector('main'); window.changes = 0; void 0")
            await evaluate(
                page, f"addEventListener('keydown', () => {{ main.replaceChildren(...{copies}); changes++; }})"
            )
            assert await page_checks.keyboard(page) == []
            assert await evaluate(page, "changes") == 3
            await evaluate(page, "main.replaceChildren()")
            assert await evaluate(page, "main.childNodes.length") == 0, "afterwards it changes"


async def test_parts_that_move_are_found(browser: Browser) -> None:
    with with_body('<p id="moves">text</p>' + "<p>more</p>" * 20) as host:
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            assert await page_checks.shift(page) == []
            await evaluate(page, 'document.getElementById("moves").style.height = "400px"')
            await wait_until(page, "musterMeasured.shift > 0")
            (found,) = await page_checks.shift(page)
            assert found.startswith("the layout shifted by 0.")


async def test_a_visitor_notes_what_goes_wrong(browser: Browser) -> None:
    with (
        with_body("") as elsewhere,
        with_body(f'<iframe src="http://{elsewhere}/"></iframe><script>alert(1)</script>') as host,
    ):
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            await evaluate(page, "void setTimeout(() => missing(), 0)")
            await evaluate(page, 'void console.warn("a warning")')
            await evaluate(page, 'fetch("/nothing").catch(() => 1)')
            await wait_until(page, "musterMeasured.violations.length >= 3")
            found = await measured(page)
            assert {line.split(":")[0] for line in found.violations} == {"frame-src", "script-src-elem", "connect-src"}
            shown = " ".join(visitor.problems)
            assert "a warning" in shown
            assert "missing is not defined" in shown
            assert "Refused to" in shown or "violates" in shown


async def test_requests_to_other_hosts_and_refusals_are_noted(browser: Browser) -> None:
    with with_body("") as elsewhere, with_body("") as host:
        async with visiting(browser, host) as visitor:
            page = await visitor.open("/")
            await page.goto(f"http://{elsewhere}/")
            await page.goto(f"http://{host}/nothing")
            assert visitor.elsewhere == [f"http://{elsewhere}/"]
            assert f"answer: 404 http://{host}/nothing" in visitor.problems


async def test_without_scripts_a_page_is_read_as_it_came(browser: Browser) -> None:
    with with_body("<noscript>no scripts</noscript>") as host:
        async with visiting(browser, host, scripts=False) as visitor:
            page = await visitor.open("/")
            assert "no scripts" in await page.inner_text("main")
