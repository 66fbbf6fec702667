"""What docs and page tell people to type is typed as it stands, from the wheel, in empty homes, beside a live swarm.

`testbed/printed.toml` says what the placeholders mean, and why a line is not typed. The tests share one swarm with a
conviction: a visitor, who has a URL and nothing else, a volunteer and a validator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import page_checks
from testbed.browser import find_browser, open_browser, visiting
from testbed.paths import ROOT
from testbed.printed import Reader, Typed, conviction, lines_of, type_as_visitor, unpacked_wheel
from testbed.processes import Process
from testbed.runs.swarms import LiveSwarm, live_swarm
from testbed.waiting import wait_until

pytestmark = pytest.mark.slow
CONVICTION_SECONDS = 420.0
PICTURE = ROOT / "cache" / "e2e" / "readme.png"


@pytest.fixture(scope="module")
def swarm(built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSwarm]:
    """A small swarm that has convicted its cheater."""
    with live_swarm(tmp_path_factory.mktemp("live"), "--workers", "1", "--cheaters", "1", "--seed", "0") as running:
        wait_until(lambda: conviction(running), "a conviction", CONVICTION_SECONDS)
        yield running


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this tree."""
    return unpacked_wheel(tmp_path_factory.mktemp("wheel"))


def untrue(typed: list[Typed]) -> str:
    """Return the lines that ended otherwise than they should, and what they said; empty where all are true."""
    return "\n".join(f"{one.typed}: {one.status}\n{one.said[-2_000:]}" for one in typed if not one.is_true)


def test_a_visitor_types_what_page_and_tour_show(swarm: LiveSwarm, package: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "visitor", package, conviction(swarm))
    typed = type_as_visitor(swarm, reader)
    assert not untrue(typed)
    assert len(typed) >= 12
    left = {path.name for path in reader.home.glob(".muster/*")}
    assert not left & {"keys", "nodes"}, "a reader needs neither"


def test_a_volunteer_types_what_join_and_keep_it_running_show(swarm: LiveSwarm, package: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "volunteer", package, conviction(swarm))
    join, keep = "docs/use/join.md", "docs/use/keep-it-running.md"
    lines = lines_of(join)
    joined, leaving = lines.index("muster up URL") + 1, lines.index("muster worker retire --operator operator")
    typed = reader.follow(join, lines[:joined])
    assert not untrue(typed)
    with Process([reader.program, "up"], tmp_path / "up.log", folder=reader.home, environment=reader.environment):
        wait_until(lambda: reader.type("muster worker why 0").is_true, "its first commitment", CONVICTION_SECONDS)
        typed += reader.follow(join, lines[joined:leaving])
        typed += reader.follow(keep)
        typed += reader.follow(join, lines[leaving:])
    assert not untrue(typed)
    assert len(typed) >= 17


@pytest.mark.skipif(find_browser() is None, reason="no browser is installed: scripts/setup --tests")
def test_the_readme_shows_the_page_of_this_swarm(swarm: LiveSwarm) -> None:
    """As much of it as a laptop shows, once the volunteer has joined."""
    asyncio.run(_take_picture(swarm))
    assert PICTURE.stat().st_size > 50_000, "a picture of an empty page is smaller"


async def _take_picture(swarm: LiveSwarm) -> None:
    async with open_browser() as browser, visiting(browser, swarm.host) as visitor:
        page = await visitor.open("/")
        assert await page_checks.axe(page) == []
        await page.set_viewport_size({"width": 1280, "height": 930})
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=PICTURE)
        assert (visitor.problems, visitor.elsewhere) == ([], [])


def test_a_validator_types_what_its_page_shows(swarm: LiveSwarm, package: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "validator", package, conviction(swarm))
    typed = reader.follow("docs/use/validate.md")
    assert not untrue(typed)
    assert len(typed) >= 8
