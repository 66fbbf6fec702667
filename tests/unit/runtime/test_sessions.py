"""A database behind a pooler is taken only where each connection has a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import pytest

from muster.errors import ConfigError
from muster.runtime.sessions import check_sessions

Lends = Callable[[int], int]
"""Returns the session that a statement of this connection runs in."""


class Pooler:
    """An engine whose connections get sessions as a pooler lends them."""

    def __init__(self, lends: Lends) -> None:
        self._lends, self._numbers = lends, count()

    def execution_options(self, **_: str) -> Pooler:
        return self

    @contextmanager
    def connect(self) -> Iterator[Pooler]:
        self._number = next(self._numbers)
        made = Pooler(self._lends)
        made._number = self._number
        yield made

    def exec_driver_sql(self, _: str) -> Any:
        found = self._lends(self._number)
        return type("Result", (), {"scalar": lambda _: found})()


def in_turn(sessions: int) -> Lends:
    turns = count()
    return lambda _: next(turns) % sessions


@pytest.mark.parametrize("lends", [lambda _: 7, in_turn(1), in_turn(2), in_turn(3), in_turn(8)])
def test_pooler_that_lends_sessions_is_refused(lends: Lends) -> None:
    with pytest.raises(ConfigError, match="a pooler whose connections share sessions") as refused:
        check_sessions(cast(Any, Pooler(lends)))
    assert "pool_mode = session" in refused.value.hint


def test_connections_with_sessions_of_their_own_are_taken() -> None:
    check_sessions(cast(Any, Pooler(lambda number: number)))
