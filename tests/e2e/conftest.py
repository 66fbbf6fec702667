"""One browser for all tests that look at the page, and a visitor of a test's own.

Without a browser they are skipped; with MUSTER_BROWSER=required, as .ci/run sets it, they fail.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from benchmarks.testbed.browser import find_browser, open_browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The browser. Whoever uses it runs in the session's event loop."""
    if find_browser() is None and os.environ.get("MUSTER_BROWSER") != "required":
        pytest.skip("no browser is installed: scripts/setup --tests")
    async with open_browser() as opened:
        yield opened
