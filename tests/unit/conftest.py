"""What several unit tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from muster.ledger.database import Database
from testbed.suite import kept_logging as suite


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An empty database of a run."""
    opened = await Database.open(database_url, "run 1 of 0xab on chain 31337")
    yield opened
    await opened.close()


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Leave pytest's own handlers as they were, for a test that sets up logging."""
    with suite.kept_logging():
        yield
