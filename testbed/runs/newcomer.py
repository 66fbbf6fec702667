"""A machine with an empty home on which `muster up` is typed, and what came of it on chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from muster.chain.client import Chain
from muster.swarm.state import end_swarm
from testbed.machine import Machine
from testbed.runs.world import World

T = TypeVar("T")


class Newcomer(Machine):
    """A machine with an empty home and nothing but a password in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "http://127.0.0.1:9")
        (self.folder / "muster.toml").unlink()
        self.nodes = self.home / ".muster" / "nodes"
        self.wallet = self.home / ".muster" / "keys" / "operator.json"

    def up(self, url: str, *words: object, status: int = 0) -> Any:
        """Run `muster up` with a server's options, without starting a node; return its document."""
        return self.json("up", url, "--yes", "--password-file", self.password, "--no-start", *words, status=status)

    def kill_at(self, point: str, url: str, *words: str) -> None:
        """Run the same command in a separate process, which is killed at a failpoint."""
        typed = ("up", url, "--yes", "--password-file", self.password, *words)
        with self.process(*typed, MUSTER_FAILPOINT=point) as process:
            assert process.end()[0] == -9, process.said

    def end_what_is_left(self) -> None:
        """End the processes that a killed command left running, for a test that failed before the next one did."""
        for place in self.nodes.glob("*"):
            asyncio.run(end_swarm(place))

    def files(self) -> dict[str, bytes]:
        """Return the files of its home by path, without journals and caches."""
        paths = [path for path in sorted(self.home.rglob("*")) if path.is_file()]
        skipped = (".cache", "journals", "state", "lock")
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in paths
            if not set(path.relative_to(self.home).parts) & set(skipped)
        }


def on_chain(world: World, read: Callable[[Chain], Coroutine[Any, Any, T]]) -> T:
    async def asked() -> T:
        async with world.run_fixture.chain("stranger") as chain:
            return await read(chain)

    return asyncio.run(asked())


def events_of(world: World, kind: type, **wanted: object) -> list[Any]:
    found = asyncio.run(world.events(kind))
    return [event for event in found if all(getattr(event, name) == value for name, value in wanted.items())]
