"""Send what changes to everybody who watches, as server-sent events."""

from __future__ import annotations

from pydantic import Field

from muster.protocol.messages import Message
from orchestrator.summary import EventLine


class LiveState(Message):
    """What a watcher gets: all of it at first, and again whenever something changed."""

    time: float
    block: int
    block_time: int
    step: int | None
    finished: bool
    blocked: str
    wanted: bool
    waiting_groups: int
    workers: int
    validators: int
    accepted: int
    pending: int
    rejected: int
    open_cases: int
    convicted: int
    tokens_per_second: float
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Of the newest report."""
    metrics_step: int | None = None
    events: list[EventLine] = Field(default_factory=list)
    """New since the last message; at first the newest ones."""
    skipped: int = 0
    """Events that were too many to send."""
