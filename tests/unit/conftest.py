"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.suite import kept_logging as suite


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Leave pytest's own handlers as they were, for a test that sets up logging."""
    with suite.kept_logging():
        yield
