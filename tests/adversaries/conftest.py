"""The validator's verification context, for as long as the session."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from testbed.adversaries.lab import AdversaryLab
from testbed.adversaries.pipeline import LocalContext


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def context(lab: AdversaryLab) -> AsyncIterator[LocalContext]:
    running = LocalContext(lab)
    yield running
    await running.close()
