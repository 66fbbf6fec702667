"""The validator's bench, for as long as the session."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.adversaries.pipeline import LocalBench
from tests.adversaries.workshop import Workshop


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bench(workshop: Workshop) -> AsyncIterator[LocalBench]:
    running = LocalBench(workshop)
    yield running
    await running.close()
