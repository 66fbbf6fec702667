"""The poll loop: its interval, its waits, its log lines and the errors that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from muster.errors import ConfigError, RevertError, UnreachableError
from muster.runtime import loop as loop_module
from muster.runtime.loop import AGAIN, IDLE, PollLoop, Waiting, wait_for_event

LONG = 60.0


class Log:
    """A log that keeps its lines by level."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", {"event": event, **values}))

    def debug(self, event: str, **values: Any) -> None:
        self.lines.append(("debug", {"event": event, **values}))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", {"event": event, **values}))


def polls(*outcomes: Any) -> Callable[[], Awaitable[Any]]:
    """A poll that returns these, or raises those that are errors, and is cancelled after the last."""
    left = iter(outcomes)

    async def poll() -> Any:
        outcome = next(left, asyncio.CancelledError())
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return poll


async def test_it_polls_again_at_once_while_there_is_more() -> None:
    log = Log()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(PollLoop(log, "follow", LONG).run(polls(AGAIN, AGAIN)), 5)
    assert log.lines == []


async def test_it_waits_without_a_log_line_when_nothing_is_due() -> None:
    log = Log()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(PollLoop(log, "follow", LONG).run(polls(IDLE)), 0.05)
    assert log.lines == []


async def test_an_event_that_is_set_during_a_poll_ends_the_wait_after_it() -> None:
    event, polled = asyncio.Event(), 0

    async def poll() -> Waiting:
        nonlocal polled
        polled += 1
        if polled == 3:
            raise asyncio.CancelledError
        event.set()
        return Waiting("no work")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(PollLoop(Log(), "commit", LONG).run(poll, event), 5)


async def test_a_reason_is_logged_once_a_minute_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = Log(), [0.0]
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: now[0])

    async def wait(_event: asyncio.Event, _seconds: float) -> None:
        now[0] += 30

    monkeypatch.setattr(loop_module, "wait_for_event", wait)
    no_work, gone = Waiting("no work"), UnreachableError("no answer")
    with pytest.raises(asyncio.CancelledError):
        await PollLoop(log, "commit", LONG).run(polls(no_work, no_work, no_work, gone, gone))
    assert log.lines == [
        ("info", {"event": "waiting", "what": "commit", "reason": "no work"}),
        ("info", {"event": "waiting", "what": "commit", "reason": "no work", "times": 2}),
        ("warning", {"event": "waiting", "what": "commit", "reason": "no answer"}),
    ]


async def test_it_says_once_when_it_goes_on_and_again_why_it_waits() -> None:
    log = Log()
    with pytest.raises(asyncio.CancelledError):
        await PollLoop(log, "commit", 0.001).run(polls(Waiting("no work"), AGAIN, IDLE, Waiting("no work")))
    assert log.lines == [
        ("info", {"event": "waiting", "what": "commit", "reason": "no work"}),
        ("debug", {"event": "goes on", "what": "commit"}),
        ("debug", {"event": "waiting", "what": "commit", "reason": "no work"}),
    ]


async def test_transient_errors_are_tried_again_until_there_is_a_result() -> None:
    assert await PollLoop(Log(), "prepare", 0.001).until_done(polls(UnreachableError("gone"), 7)) == 7


@pytest.mark.parametrize("error", [ConfigError("wrong key"), RevertError("no", name="Jailed", values={})])
async def test_operator_error_ends_the_loop(error: Exception) -> None:
    with pytest.raises(type(error)):
        await PollLoop(Log(), "commit", 0.001, fatal=(RevertError,)).run(polls(error))


async def test_a_wait_for_an_event_is_bounded() -> None:
    await asyncio.wait_for(wait_for_event(asyncio.Event(), 0.01), 5)
