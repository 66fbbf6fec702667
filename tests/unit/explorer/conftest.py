"""What tests of the explorer's parts share: its database is SQLite's, whatever an orchestrator's is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest


@pytest.fixture(scope="module")
def new_database_url(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """`new_database_url()`: the URL of a new, empty database."""
    folder, names = tmp_path_factory.mktemp("databases"), count()
    return lambda: f"sqlite:///{folder}/{next(names)}/explorer.db"
