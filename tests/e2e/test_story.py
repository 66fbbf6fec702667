"""A live swarm as people see it: a cheater is convicted, a newcomer joins by the page's command, the page comes back.

The tests follow each other on one swarm. A witness opened the overview before any commitment, and never reloads
it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from testbed import page_checks
from testbed.browser import Visitor, evaluate, measured, visiting, wait_until
from testbed.paths import ROOT
from testbed.runs.swarms import LiveSwarm, address_in, live_swarm, newcomer
from testbed.waiting import until

GUILTY = re.compile("(?<!not )guilty")
WORK_SECONDS = 420.0
"""Longest wait for something that a node must do first, which takes a minute where the machine is free."""
STATES = """void (() => {
  const pill = document.getElementById("link-state");
  window.musterStates = [];
  new MutationObserver(() => musterStates.push(pill.dataset.state)).observe(pill, { attributeFilter: ["data-state"] });
})()"""
"""Records every connection state that the page shows, even briefly."""
PICTURES = ROOT / "cache" / "e2e"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Witness:
    """A visitor that keeps the overview open."""

    visitor: Visitor
    page: Page

    async def stays(self) -> bool:
        """Whether the page is the one that was opened, never loaded again."""
        return await evaluate(self.page, "window.musterOpened") == 1


@pytest.fixture(scope="module")
def swarm(browser: Browser, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSwarm]:
    """A small swarm with a cheater; it trains all weights until the tests are done."""
    with live_swarm(tmp_path_factory.mktemp("live"), "--workers", "1", "--cheaters", "1", "--seed", "0") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def witness(browser: Browser, swarm: LiveSwarm) -> AsyncIterator[Witness]:
    async with visiting(browser, swarm.host) as visitor:
        with swarm.holding("cheater"):  # a page that is opened after the conviction has it from the beginning
            page = await visitor.open("/")
            await evaluate(page, "window.musterOpened = 1")
        yield Witness(visitor, page)


async def test_the_cheaters_conviction_appears_by_itself(swarm: LiveSwarm, witness: Witness) -> None:
    cheater = swarm.address_of("cheater")
    line = witness.page.locator(f'#feed li a[href="/nodes/{cheater}"]').filter(has_text="is convicted")
    assert await line.count() == 0
    await line.wait_for(timeout=1000 * WORK_SECONDS)
    assert "of its stake are gone, its pay is void" in await line.inner_text()
    assert await witness.page.locator("#feed li.is-bad").count() >= 1
    assert await witness.stays()
    # What the feed links to says the same.
    async with visiting(swarm_browser(witness), swarm.host) as visitor:
        page = await visitor.open(f"/nodes/{cheater}")
        assert "jailed" in await page.inner_text("h1")
        convicting = page.locator("tr").filter(has_text=GUILTY).filter(has_not_text="moot")
        await convicting.locator('a[href^="/court/"]').first.click()
        await page.wait_for_url("**/court/*")
        assert GUILTY.search(await page.inner_text("h1"))
        assert await page_checks.axe(page) == []
        command = await page.locator(".command code").first.inner_text()
        assert command.startswith("muster slash verify")
        assert (visitor.problems, visitor.elsewhere) == ([], [])


def swarm_browser(witness: Witness) -> Browser:
    found = witness.visitor.context.browser
    assert found is not None
    return found


async def test_a_newcomer_joins_by_the_pages_command(
    browser: Browser, swarm: LiveSwarm, witness: Witness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("newcomer") / "home"
    async with visiting(browser, swarm.host, permissions=["clipboard-read", "clipboard-write"]) as visitor:
        # 1. Copy the command as a person does.
        page = await visitor.open("/")
        await page.locator("aside.join button.copy").click()
        await wait_until(page, 'document.querySelector("aside.join button.copy").textContent === "Copied"')
        command = await evaluate(page, "navigator.clipboard.readText()")
        assert command == f"muster up {swarm.url}"
        # 2. Run it, and watch the list of workers: a new one appears without a reload.
        await page.goto(f"{swarm.url}/leaderboard?list=workers&order=since")
        await evaluate(page, "window.musterOpened = 1")
        with newcomer(command, home) as process:
            made = (lambda: address_in(home), "the newcomer has a node", WORK_SECONDS)
            address = await asyncio.to_thread(process.wait_until, *made)
            row = page.locator("table.board tr").filter(has=page.locator(f'a[href="/nodes/{address}" i]'))
            await row.wait_for(timeout=1000 * WORK_SECONDS)
            assert await evaluate(page, "window.musterOpened") == 1
            # 3. Its own page: the first accepted work, and when that can be claimed.
            await page.goto(f"{swarm.url}/nodes/{address}")
            await evaluate(page, "window.musterOpened = 1")
            accepted = page.locator('[data-fragment="commitments"] .status.is-accepted').first
            await accepted.wait_for(timeout=1000 * WORK_SECONDS)
            countdown = page.locator('[data-fragment="money"] .countdown').first
            await countdown.wait_for()
            first = await countdown.inner_text()
            assert first.startswith("in ")
            await until(lambda: _differs(countdown, first), "the countdown goes on")
            assert await evaluate(page, "window.musterOpened") == 1
            assert await page_checks.axe(page) == []
            await page_checks.picture(page, PICTURES / "newcomer.png")
            assert process.is_running
        joined = witness.page.locator(f'#feed li a[href="/nodes/{address}" i]').filter(has_text="joins as a worker")
        await joined.wait_for()
        assert (visitor.problems, visitor.elsewhere) == ([], [])


async def _differs(element: object, text: str) -> bool:
    return await element.inner_text() != text  # type: ignore[attr-defined]


async def test_the_page_comes_back_after_a_restart(swarm: LiveSwarm, witness: Witness) -> None:
    page, before = witness.page, len(witness.visitor.problems)
    assert await page.locator("#link-state").get_attribute("data-state") == "live"
    block = int((await page.inner_text('[data-live="block"]')).replace(",", ""))
    await evaluate(page, STATES)
    swarm.kill("orchestrator")
    await wait_until(page, 'musterStates.includes("lost") && musterStates.at(-1) === "live"')

    async def further() -> bool:
        return int((await page.inner_text('[data-live="block"]')).replace(",", "")) > block + 2

    await until(further, "blocks go on")
    assert await witness.stays()
    # The only new problems are the browser's connection errors.
    problems = witness.visitor.problems[before:]
    assert [one for one in problems if swarm.host not in one or "ERR_" not in one] == []
    del witness.visitor.problems[before:]


async def test_steps_are_drawn_as_they_come(swarm: LiveSwarm, witness: Witness) -> None:
    reported = await asyncio.to_thread(swarm.get, "/v1/runs/1/metrics")
    newest = reported["newest"]
    label = 'document.querySelector("#chart-reward .plot").getAttribute("aria-label")'
    pattern = f"Number(({label}.match(/step ([0-9]+)$/) || [])[1]) > {newest}"
    await wait_until(witness.page, pattern, WORK_SECONDS)
    assert await witness.stays()


async def test_the_overview_stayed_open_without_an_error(swarm: LiveSwarm, witness: Witness) -> None:
    assert (witness.visitor.problems, witness.visitor.elsewhere) == ([], [])
    assert (await measured(witness.page)).violations == ()
    assert await page_checks.shift(witness.page) == []
    assert await page_checks.axe(witness.page) == []
    await page_checks.picture(witness.page, PICTURES / "live.png")
    # The README's picture: as much as a laptop shows.
    await witness.page.set_viewport_size({"width": 1280, "height": 930})
    await witness.page.screenshot(path=PICTURES / "readme.png")
    assert (PICTURES / "readme.png").stat().st_size > 50_000, "a picture of an empty page is smaller"
