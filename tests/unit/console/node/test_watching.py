"""A status that is shown again and again: what fails in between is said below it, and the last good one stays."""

from __future__ import annotations

from typing import Any

import pytest

from muster.console.node.watching import watch
from muster.console.session import Options, Session
from muster.errors import ConfigError, UnreachableError, UsageError


class EndedError(Exception):
    """The test has seen enough."""


def reader(*answers: Any) -> Any:
    left = list(answers)

    async def read(session: Session) -> dict[str, Any]:
        answer = left.pop(0) if left else EndedError()
        if isinstance(answer, Exception):
            raise answer
        session.note(f"note {answer['gas']}")
        return answer

    return read


async def test_the_last_good_status_stays(capsys: pytest.CaptureFixture[str]) -> None:
    read = reader({"gas": 1}, UnreachableError("no answer"), {"gas": 2})
    with pytest.raises(EndedError):
        await watch(Session(Options()), read, seconds=0.001)
    shown = capsys.readouterr()
    lines = [line.rstrip() for line in shown.out.splitlines() if not line.startswith("20")]
    assert lines == ["gas  1", "note 1", "gas  1", "not read again: no answer", "gas  2", "note 2"]
    assert shown.err == ""


async def test_a_first_reading_that_fails_ends_it() -> None:
    with pytest.raises(ConfigError, match="has joined no run"):
        await watch(Session(Options()), reader(ConfigError("has joined no run")))
    with pytest.raises(UsageError, match="--json"):
        await watch(Session(Options(json=True)), reader())
