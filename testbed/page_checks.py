"""Look at an open page as people with other eyes, hands and screens do: axe, keyboard, widths, labels, layout shift.

Every check returns findings as sentences; a page without any passes. What it runs in the page is in page_checks.js.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page

from testbed.browser import HEIGHT, WIDTHS, evaluate, measured
from testbed.paths import ROOT

AXE: Final = ROOT / "node_modules" / "axe-core" / "axe.min.js"
CHECKS: Final = Path(__file__).with_suffix(".js")
MOST_SHIFT: Final = 0.1
"""Cumulative layout shift that people do not notice (web.dev calls it good)."""
MOST_TABS: Final = 120
"""Elements that are tried with the Tab key."""


async def axe(page: Page) -> list[str]:
    """Return what axe-core finds: how grave, rule, what it says, and where."""
    if not await evaluate(page, '"axe" in window'):
        await evaluate(page, AXE.read_text(encoding="utf-8") + "; true")
    return await _ask(page, "violations()")


async def basics(page: Page) -> list[str]:
    """Return what any page must have and this one lacks: one heading, one main part, labels, texts of pictures."""
    return await _ask(page, "basics()")


async def shift(page: Page) -> list[str]:
    """Return whether the page's parts have moved by more than people overlook."""
    moved = (await measured(page)).shift
    return [f"the layout shifted by {moved:.3f}; at most {MOST_SHIFT}"] if moved > MOST_SHIFT else []


async def widths(page: Page) -> list[str]:
    """Return at which widths the page scrolls sideways, also with text of twice the size, and what sticks out.

    Leaves it at the widest.
    """
    found = []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        for percent, said in ((200, " with text at 200 %"), (100, "")):
            await evaluate(page, f'document.documentElement.style.fontSize = "{percent}%"')
            wide = await evaluate(page, "document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{wide} px wide on a screen of {width}{said}: {await _ask(page, f'wide({width})')}")
    return found


async def keyboard(page: Page, most: int = MOST_TABS) -> list[str]:
    """Return what the Tab key does not reach, or reaches without showing it, within the first `most` elements.

    Meanwhile a live page keeps its elements: each is tried once, however long that takes.
    """
    await _ask(page, "hold()")
    try:
        return await _tabbed(page, most)
    finally:
        await _ask(page, "letGo()")


async def _tabbed(page: Page, most: int) -> list[str]:
    wanted = min(most, await _ask(page, "restart()"))
    found = list[str]()
    for _ in range(wanted):
        await page.keyboard.press("Tab")
        focused = await _ask(page, "focused()")
        if focused is None:
            break  # the end of the page
        if not focused["shown"]:
            found.append(f"focus is not shown on {focused['name']}")
        if not focused["inside"]:
            found.append(f"focus is out of sight on {focused['name']}")
    return found + [f"the Tab key does not reach {element}" for element in (await _ask(page, f"missed({wanted})"))[:10]]


async def _ask(page: Page, question: str) -> Any:
    """Return what a function of page_checks.js says of the page."""
    if not await evaluate(page, '"musterChecks" in window'):
        await evaluate(page, CHECKS.read_text(encoding="utf-8"))
    return await evaluate(page, f"musterChecks.{question}")
