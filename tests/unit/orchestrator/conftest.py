"""What tests of the orchestrator's parts share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.ledger.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An empty database of a run."""
    opened = await Database.open(database_url, "run 1 of 0xab on chain 31337")
    yield opened
    await opened.close()
