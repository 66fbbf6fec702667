"""One browser for all tests that look at the page, and a synthetic run with a page of every kind.

Without a browser the tests are skipped; with MUSTER_BROWSER=required, as .ci/run sets it, they fail.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from testbed.big_run.process import BigRun, big_run
from testbed.big_run.shape import Shape
from testbed.browser import find_browser, open_browser

SMALL = Shape(steps=200, nodes=120, commitments=2_000, step_seconds=2_400, at_work=30)
"""Five days with everything that a run has: claims, convictions, lost cases, an open one."""
ABOUT = {"title": "Sums", "about": "Trains a small model to add.\nFor everybody."}


@pytest.fixture(scope="session", autouse=True)
def _required() -> None:
    if find_browser() is None and os.environ.get("MUSTER_BROWSER") != "required":
        pytest.skip("no browser is installed: scripts/setup --tests")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(_required: None) -> AsyncIterator[Browser]:
    """The browser. Tests that use it run in the session's event loop."""
    async with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def big(_required: None, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A synthetic run, small, behind a running orchestrator."""
    with big_run(tmp_path_factory.mktemp("big"), SMALL, **ABOUT) as made:
        made.orchestrator.start()
        yield made
