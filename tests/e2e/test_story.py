"""A run as people watch it: a cheater is convicted, a newcomer joins and is paid, the page comes back.

The tests follow each other on one recorded swarm (testbed/runs/recorded_swarm.py), whose chain goes on here. A witness
opened the overview while the cheater was tried, and never reloads it. That the page's command makes a node which works:
tests/integration/test_up_story.py, and tests/integration/test_printed.py on a live swarm.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page

from muster.contracts.registry import Role
from muster.protocol.messages import StepReport
from testbed import page_checks
from testbed.browser import Visitor, evaluate, measured, visiting, wait_until
from testbed.paths import ROOT
from testbed.runs.recorded_swarm import CHEATER, Played, Recording, playing
from testbed.runs.run_fixture import Explorer
from testbed.runs.story import Story
from testbed.waiting import until

GUILTY = re.compile("(?<!not )guilty")
NEWCOMER = "newcomer"
MINUTE = 60
STATE = 'document.getElementById("link-state").dataset.state'
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
def swarm(browser: Browser, recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with playing(recording, tmp_path_factory.mktemp("played")) as played:
        yield played


@pytest.fixture(scope="module")
def explorer(swarm: Played) -> Iterator[Explorer]:
    with Explorer(swarm.run_fixture, swarm.run_fixture.folder / "explorer", swarm.orchestrator.url) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def witness(browser: Browser, explorer: Explorer) -> AsyncIterator[Witness]:
    async with visiting(browser, explorer.host) as visitor:
        page = await visitor.open("/")
        await evaluate(page, "window.musterOpened = 1")
        yield Witness(visitor, page)


async def test_the_cheaters_conviction_appears_by_itself(
    browser: Browser, swarm: Played, explorer: Explorer, witness: Witness
) -> None:
    cheater = swarm.run_fixture.key(CHEATER).address
    line = witness.page.locator(f'#feed li a[href="/nodes/{cheater}"]').filter(has_text="is convicted")
    assert await line.count() == 0
    await asyncio.to_thread(swarm.convict)
    await line.wait_for()
    assert "of its stake are gone, its pay is void" in await line.inner_text()
    assert await witness.page.locator("#feed li.is-bad").count() >= 1
    assert await witness.stays()
    # What the feed links to says the same.
    async with visiting(browser, explorer.host) as visitor:
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


async def test_a_newcomer_copies_the_command_and_watches_its_work(
    browser: Browser, swarm: Played, explorer: Explorer, witness: Witness
) -> None:
    address = swarm.run_fixture.key(NEWCOMER).address
    async with visiting(browser, explorer.host, permissions=["clipboard-read", "clipboard-write"]) as visitor:
        # 1. Copy the command as a person does.
        page = await visitor.open("/")
        await page.locator("aside.join button.copy").click()
        await wait_until(page, 'document.querySelector("aside.join button.copy").textContent === "Copied"')
        assert await evaluate(page, "navigator.clipboard.readText()") == f"muster up {swarm.orchestrator.url}"
        # 2. Join, and watch the list of workers: a new one appears without a reload.
        await page.goto(f"{explorer.url}/leaderboard?list=workers&order=since")
        await evaluate(page, "window.musterOpened = 1")
        step = await _joins(swarm)
        await page.locator("table.board tr").filter(has=page.locator(f'a[href="/nodes/{address}" i]')).wait_for()
        assert await evaluate(page, "window.musterOpened") == 1
        # 3. Its own page: the first accepted work, and when that can be claimed.
        await page.goto(f"{explorer.url}/nodes/{address}")
        await evaluate(page, "window.musterOpened = 1")
        await _works(swarm, step)
        await page.locator('[data-fragment="commitments"] .status.is-accepted').first.wait_for()
        countdown = page.locator('[data-fragment="money"] .countdown').first
        await countdown.wait_for()
        first = await countdown.inner_text()
        assert first.startswith("in ")
        async with swarm.run_fixture.local_chain() as dev:
            await dev.advance(MINUTE)
        await until(lambda: _differs(countdown, first), "the countdown goes on")
        assert await evaluate(page, "window.musterOpened") == 1
        assert await page_checks.axe(page) == []
        joined = witness.page.locator(f'#feed li a[href="/nodes/{address}" i]').filter(has_text="joins as a worker")
        await joined.wait_for()
        assert (visitor.problems, visitor.elsewhere) == ([], [])


async def _joins(swarm: Played) -> int:
    """Register the newcomer, and publish the step at which it may begin. Return that step."""
    fixture = swarm.run_fixture
    async with fixture.local_chain() as dev:
        await dev.fund([fixture.key(name).address for name in (NEWCOMER, f"operator of {NEWCOMER}")])
    await fixture.join(NEWCOMER, Role.WORKER)
    async with fixture.chain("stranger") as chain:
        newest = await chain.latest_checkpoint(fixture.run)
    assert newest is not None
    for step in (newest.step + 1, newest.step + 2):
        await fixture.publish(step)
    return newest.step + 2


async def _works(swarm: Played, step: int) -> None:
    """Commit to work of the newcomer, which two validators that are called accept."""
    story = Story(swarm.run_fixture, swarm.orchestrator)
    await story.work(NEWCOMER, 0, step)
    await story.accept(NEWCOMER, 0, step=step)


async def _differs(element: Locator, text: str) -> bool:
    return await element.inner_text() != text


async def test_the_page_comes_back_after_a_restart(explorer: Explorer, witness: Witness) -> None:
    page, before = witness.page, len(witness.visitor.problems)
    assert await evaluate(page, STATE) == "live"
    block = int((await page.inner_text('[data-live="block"]')).replace(",", ""))
    await asyncio.to_thread(explorer.kill)
    await wait_until(page, f'{STATE} === "lost"')
    await asyncio.to_thread(explorer.start)
    await wait_until(page, f'{STATE} === "live"')

    async def further() -> bool:
        return int((await page.inner_text('[data-live="block"]')).replace(",", "")) > block + 2

    await until(further, "blocks go on")
    assert await witness.stays()
    # The only new problems are the browser's connection errors.
    problems = witness.visitor.problems[before:]
    assert [one for one in problems if explorer.host not in one or "ERR_" not in one] == []
    del witness.visitor.problems[before:]


async def test_steps_are_drawn_as_they_come(swarm: Played, explorer: Explorer, witness: Witness) -> None:
    reported = await asyncio.to_thread(explorer.json, f"/v1/runs/{explorer.run}/metrics")
    newest = reported["newest"]
    async with swarm.client("trainer") as trainer:
        await trainer.post_step(StepReport(run=swarm.run_fixture.run, step=newest + 1, metrics={"reward": 0.75}))
    label = 'document.querySelector("#chart-reward .plot").getAttribute("aria-label")'
    await wait_until(witness.page, f"Number(({label}.match(/step ([0-9]+)$/) || [])[1]) > {newest}")
    assert await witness.stays()


async def test_the_overview_stayed_open_without_an_error(witness: Witness) -> None:
    assert (witness.visitor.problems, witness.visitor.elsewhere) == ([], [])
    assert (await measured(witness.page)).violations == ()
    assert await page_checks.shift(witness.page) == []
    assert await page_checks.axe(witness.page) == []


async def test_the_recorded_files_are_read_as_text(browser: Browser, swarm: Played, explorer: Explorer) -> None:
    (accepted, *_) = swarm.recording.log.reports[0].batch
    async with visiting(browser, explorer.host) as visitor:
        page = await visitor.open(f"/rollouts/{accepted}?position=0")
        assert await page.locator("pre.model").count() >= 2, "a prompt, and what the engine made of it"
        assert await page_checks.axe(page) == []
        assert (visitor.problems, visitor.elsewhere) == ([], [])
