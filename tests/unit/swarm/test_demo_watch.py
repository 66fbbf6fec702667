"""A demo waits as long as it gets news of any kind, and no longer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from muster.errors import UnreachableError
from muster.swarm.running import RunningSwarm


class Quiet:
    """The explorer and the supervisor of a swarm; its news, all of one kind, end after `count` polls."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.count = count
        self.looks = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def _number(self, kind: str) -> int:
        return min(self.looks, self.count) if kind == self.kind else 0

    async def events(self, run: int, after: int) -> dict[str, Any]:
        self.looks += 1
        return {"events": [], "cursor": self._number("event")}

    async def summary(self, run: int) -> dict[str, Any]:
        return {"step": self._number("step"), "nodes": []}

    @property
    def restarts(self) -> dict[str, int]:
        return {"trainer": self._number("restart")}


@pytest.mark.parametrize("kind", ["step", "event", "restart"])
async def test_news_of_any_kind_are_waited_for(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.swarm.running.POLL_SECONDS", 0.01)
    quiet = Quiet(kind, 40)
    monkeypatch.setattr(RunningSwarm, "explorer", lambda *_: quiet)
    view = SimpleNamespace(run_events=lambda *_: None, blocked=lambda _: None)
    local = SimpleNamespace(folder=tmp_path, ports={})
    swarm = RunningSwarm(cast(Any, local), cast(Any, quiet), cast(Any, view))
    with pytest.raises(UnreachableError, match=r"nothing new for 0 s after step \d+"):
        await swarm.watch(cast(Any, None), lambda _: False, 0.1)
    assert quiet.looks > 40
