"""Look at an open page as people with other eyes, hands and screens do: axe, keyboard, widths, labels, layout shift.

Every check returns findings as sentences; a page without any passes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.async_api import Page

from testbed.browser import HEIGHT, WIDTHS, evaluate, measured

AXE: Final = Path(__file__).resolve().parents[1] / "node_modules" / "axe-core" / "axe.min.js"
SEVERE: Final = ("serious", "critical")
MOST_SHIFT: Final = 0.1
"""Sum of layout shifts that people do not notice (web.dev calls it good)."""
MOST_TABS: Final = 120
"""Elements that are tried with the Tab key."""

_AXE_RUN: Final = """axe.run(document, { resultTypes: ["violations"], runOnly: [
  "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
  .then(({ violations }) => violations.map(({ id, impact, help, nodes }) => ({
    id, impact, help, nodes: nodes.map(node => node.target.join(" ")) })))"""

_TABBABLE: Final = """[...document.querySelectorAll(
  "a[href], button, input, select, textarea, summary, [tabindex], details > summary")]
  .filter(element => element.tabIndex >= 0 && !element.disabled && element.type !== "hidden"
    && element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true }))"""

_FOCUSED: Final = """(() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  element.musterTabbed = true;
  const style = getComputedStyle(element), box = element.getBoundingClientRect();
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  return { name: `${element.tagName} ${(element.textContent || element.name || "").trim().slice(0, 40)}`,
    shown: outlined || style.boxShadow !== "none", inside: box.bottom > 0 && box.top < innerHeight };
})()"""

_PUTTING: Final = ("prepend", "replaceChildren")
"""Methods by which a live page puts new elements in the place of others."""
_HOLD: Final = f"""void (() => {{
  window.musterHeld = {list(_PUTTING)}.map(name => [name, Element.prototype[name]]);
  for (const [name] of musterHeld) Element.prototype[name] = () => {{}};
}})()"""
_LET_GO: Final = "void musterHeld.forEach(([name, method]) => { Element.prototype[name] = method; })"

_BASICS: Final = """(() => {
  const found = [];
  const one = (selector, what) => {
    const count = document.querySelectorAll(selector).length;
    if (count !== 1) found.push(`${count} ${what}`);
  };
  one("h1", "first headings");
  one("main", "main parts");
  one("head > title", "titles");
  one('meta[name="viewport"]', "viewports");
  one('meta[name="description"]', "descriptions");
  if (!document.documentElement.lang) found.push("no language");
  if (document.doctype === null) found.push("no doctype");
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!field.labels.length && !field.getAttribute("aria-label")) found.push(`a field without a label: ${field.name}`);
  for (const image of document.querySelectorAll("img"))
    if (!image.hasAttribute("alt")) found.push(`a picture without a text: ${image.src}`);
  const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) found.push(`two elements named ${id}`);
  for (const link of document.querySelectorAll('a[href^="#"]'))
    if (!document.getElementById(link.hash.slice(1))) found.push(`a link to nowhere: ${link.hash}`);
  return found;
})()"""


async def axe(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical: rule, what it says, and where."""
    if not await evaluate(page, '"axe" in window'):
        await evaluate(page, AXE.read_text(encoding="utf-8") + "; true")
    found = await evaluate(page, _AXE_RUN)
    severe = [one for one in found if one["impact"] in SEVERE]
    return [f"{one['impact']} {one['id']}: {one['help']}: {', '.join(one['nodes'][:5])}" for one in severe]


async def basics(page: Page) -> list[str]:
    """Return what any page must have and this one lacks: one heading, one main part, labels, texts of pictures."""
    return await evaluate(page, _BASICS)


async def shift(page: Page) -> list[str]:
    """Return whether the page's parts have moved by more than people overlook."""
    moved = (await measured(page)).shift
    return [f"the layout shifted by {moved:.3f}; at most {MOST_SHIFT}"] if moved > MOST_SHIFT else []


async def widths(page: Page) -> list[str]:
    """Return at which widths the page scrolls sideways, and what sticks out. Leaves it at the widest."""
    found = []
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        wide = await evaluate(page, "document.documentElement.scrollWidth")
        if wide > width:
            out = f"[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > {width + 1})"
            names = await evaluate(page, f"{out}.map(e => `${{e.tagName}}.${{e.className}}`).slice(0, 5).join(', ')")
            found.append(f"{wide} px wide on a screen of {width}: {names}")
    return found


async def keyboard(page: Page, most: int = MOST_TABS) -> list[str]:
    """Return what the Tab key does not reach, or reaches without showing it, within the first `most` elements.

    Meanwhile a live page keeps its elements: each is tried once, however long that takes.
    """
    await evaluate(page, _HOLD)
    try:
        return await _tabbed(page, most)
    finally:
        await evaluate(page, _LET_GO)


async def _tabbed(page: Page, most: int) -> list[str]:
    await evaluate(page, "document.activeElement?.blur(); scrollTo(0, 0)")
    wanted = min(most, await evaluate(page, f"{_TABBABLE}.length"))
    found = list[str]()
    for _ in range(wanted):
        await page.keyboard.press("Tab")
        focused = await evaluate(page, _FOCUSED)
        if focused is None:
            break  # the end of the page
        if not focused["shown"]:
            found.append(f"focus is not shown on {focused['name']}")
        if not focused["inside"]:
            found.append(f"focus is out of sight on {focused['name']}")
    missed = f"{_TABBABLE}.slice(0, {wanted}).filter(e => !e.musterTabbed).map(e => e.outerHTML.slice(0, 80))"
    found += [f"the Tab key does not reach {element}" for element in (await evaluate(page, missed))[:10]]
    return found


async def picture(page: Page, path: Path) -> None:
    """Take a picture of the whole page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=path, full_page=True)
