"""Live streams of the run's state: their messages, cost and end, with and without real connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request

from explorer import live_hub
from explorer.feed import FeedLine
from explorer.live import MAX_LINES, LiveState, Snapshot
from explorer.live_hub import BUFFER_LINES, FIRST_LINES, LiveHub, Watcher
from muster.errors import StorageError
from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_limits import bounded_config
from orchestrator.__main__ import LIMITS
from testbed.waiting import until

PATIENCE = 20.0
"""Seconds for a step that takes a fraction of one, on the event loop that server and reader share."""
IDENTITY = "1dea"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Story:
    """A source of states whose events a test adds."""

    identity = IDENTITY

    def __init__(self) -> None:
        self.events: list[int] = []
        self.newest = 0
        self.changes = 0
        self.reads = 0
        self.failing = False
        self.metrics: dict[str, float | None] = {"reward": 0.5}
        self.filling = ""

    def happen(self, *notable: int, newest: int | None = None) -> None:
        """Add notable events; the newest event of the run may be a later, routine one."""
        self.events += notable
        self.newest = newest or max(notable, default=self.newest)
        self.changes += 1

    async def mark(self) -> object:
        return self.changes

    async def read(self, after: int, limit: int) -> Snapshot:
        self.reads += 1
        if self.failing:
            raise StorageError("database: gone")
        found = [number for number in self.events if number > after]
        lines = [
            FeedLine(id=number, time=0.0, kind="joined", who="", text="", href="/", tone="good") for number in found
        ]
        return Snapshot(self._state(), lines[-limit:], self.newest, len(found) <= limit)

    def _state(self) -> LiveState:
        numbers = dict.fromkeys(
            ("block_time", "waiting_groups", "workers", "validators", "accepted", "pending", "rejected"), 0
        )
        return LiveState(
            **numbers, time=0.0, block=self.changes, step=None, finished=False, blocked=self.filling, wanted=True,
            open_cases=0, convicted=0, tokens_per_second=0.0, metrics=self.metrics, metrics_step=3,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second of the hub be a tenth of one."""
    for name in ("PERIOD_SECONDS", "TICK_SECONDS"):
        monkeypatch.setattr(live_hub, name, getattr(live_hub, name) / 10)
    monkeypatch.setattr(live_hub, "MESSAGES_A_SECOND", live_hub.MESSAGES_A_SECOND * 10)


@pytest.fixture
def story() -> Story:
    return Story()


def watcher_of(hub: LiveHub, seen: int | None = None) -> Watcher:
    """A watcher whose connection never lags."""
    connection: Any = SimpleNamespace(flow=SimpleNamespace(write_paused=False))
    return Watcher(hub, connection, seen)


def content(message: bytes) -> tuple[str, dict[str, Any]]:
    """The id and the state of a message."""
    first, second = message.decode().removeprefix("retry: 2000\n\n").strip().split("\n")
    assert (first[:4], second[:6]) == ("id: ", "data: ")
    state = json.loads(second[6:])
    LiveState.model_validate(state)
    return first[4:], state


def ids(state: dict[str, Any]) -> list[int]:
    return [line["id"] for line in state["events"]]


async def refreshed(hub: LiveHub) -> LiveHub:
    """Wait until the hub has read the changes."""
    await asyncio.sleep(live_hub.PERIOD_SECONDS)
    await hub.refresh()
    return hub


# What a watcher gets


async def test_new_watcher_gets_the_state_then_changes(story: Story) -> None:
    hub, watcher = LiveHub(story), watcher_of(LiveHub(story))
    story.happen(1, 2, newest=5)
    await hub.refresh()
    watcher = watcher_of(hub)
    where, state = content(await watcher.next_message())
    assert (where, state["block"], ids(state), state["skipped"]) == (f"{IDENTITY}.5", 1, [1, 2], 0)
    assert (state["metrics"], state["metrics_step"]) == ({"reward": 0.5}, 3)
    story.happen(6)
    await refreshed(hub)
    where, state = content(await watcher.next_message())
    assert (where, state["block"], ids(state)) == (f"{IDENTITY}.6", 2, [6])
    assert (state["metrics"], state["metrics_step"]) == ({}, None), "unchanged metrics are not sent again"
    story.metrics = {"reward": 0.75}
    story.happen(newest=6)
    await refreshed(hub)
    _, state = content(await watcher.next_message())
    assert (ids(state), state["metrics"]) == ([], {"reward": 0.75})


async def test_lagging_watcher_gets_newest_state_and_missed_events(story: Story) -> None:
    hub = LiveHub(story)
    story.happen(1)
    await hub.refresh()
    slow, quick = watcher_of(hub), watcher_of(hub)
    await slow.next_message()
    await quick.next_message()
    story.metrics = {"reward": 1.0}
    for number in (2, 3, 4):
        story.happen(number)
        await refreshed(hub)
        await quick.next_message()
    _, state = content(await slow.next_message())
    assert (state["block"], ids(state), state["metrics"]) == (4, [2, 3, 4], {"reward": 1.0})
    assert slow.seen == quick.seen == 4


async def test_watcher_gets_the_newest_of_many_events(story: Story) -> None:
    hub = LiveHub(story)
    story.happen(*range(1, FIRST_LINES + 11))
    await hub.refresh()
    watcher, returning = watcher_of(hub), watcher_of(hub, 5)
    _, state = content(await watcher.next_message())
    assert (ids(state), state["skipped"]) == (list(range(11, FIRST_LINES + 11)), 0)
    assert ids(content(await returning.next_message())[1]) == list(range(6, FIRST_LINES + 11))
    story.happen(*range(1_001, 1_001 + MAX_LINES + 7))
    await refreshed(hub)
    _, state = content(await watcher.next_message())
    assert (ids(state), state["skipped"]) == (list(range(1_008, 1_008 + MAX_LINES)), 7)
    story.happen(*range(2_001, 2_001 + BUFFER_LINES + 3))
    await refreshed(hub)
    late = watcher_of(hub, 1_050)
    _, state = content(await late.next_message())
    assert (ids(state)[-1], len(ids(state))) == (2_000 + BUFFER_LINES + 3, MAX_LINES)
    lost = 2_003 - 1_050  # ids up to the last event that left the buffer
    assert state["skipped"] == lost + BUFFER_LINES - MAX_LINES


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (f"{IDENTITY}.4", 4),
        (f"{IDENTITY}.0", 0),
        ("other.4", None),
        ("", None),
        (IDENTITY, None),
        (f"{IDENTITY}.-4", None),
        (f"{IDENTITY}.٤", None),
        (f"{IDENTITY}." + "9" * 19, None),
    ],
)
async def test_returning_watcher_gets_missed_events(story: Story, said: str, seen: int | None) -> None:
    story.happen(3, 4, 5, 6)
    async with served(LiveHub(story)) as port:
        streams = await watch(port, said)
        _, state = content(await next_event(streams))
        assert ids(state) == [number for number in (3, 4, 5, 6) if number > (seen or 0)]
        streams[1].close()


async def test_events_undone_by_a_reorg_are_sent_again(story: Story) -> None:
    hub = LiveHub(story)
    story.happen(1, 2, 3)
    await hub.refresh()
    watcher = watcher_of(hub)
    await watcher.next_message()
    story.events.clear()
    story.happen(1, 2)
    await refreshed(hub)
    where, state = content(await watcher.next_message())
    assert (where, ids(state)) == (f"{IDENTITY}.2", [])
    story.happen(3)
    await refreshed(hub)
    assert ids(content(await watcher.next_message())[1]) == [3]


# What it costs


async def test_no_reads_without_watchers_and_one_a_period_for_many(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_hub, "SPREAD", 0.0)
    hub = LiveHub(story)
    async with served(hub) as port:
        for _ in range(5):
            story.happen(len(story.events) + 1)
            await asyncio.sleep(live_hub.PERIOD_SECONDS)
        assert story.reads == 0
        crowd = await asyncio.gather(*(watch(port) for _ in range(60)))
        for streams in crowd:
            await next_event(streams)
        began, reads = asyncio.get_running_loop().time(), story.reads
        for _ in range(30):
            story.happen(len(story.events) + 1)
            await asyncio.sleep(live_hub.TICK_SECONDS)
        for streams in crowd:
            await next_event(streams)
        took = asyncio.get_running_loop().time() - began
        assert 0 < story.reads - reads <= took / live_hub.PERIOD_SECONDS + 1
        for _, writer in crowd:
            writer.close()


async def test_watchers_are_written_to_a_few_at_a_time(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_hub, "MESSAGES_A_SECOND", 400)
    woken: list[float] = []
    loop = asyncio.get_running_loop()

    class Noted(Watcher):
        def wake(self, comment: bytes = b"") -> None:
            woken.append(loop.time())

    hub = LiveHub(story)
    connection: Any = SimpleNamespace(flow=SimpleNamespace(write_paused=False))
    async with hub.running():
        for _ in range(400):
            hub.add(Noted(hub, connection, None))
        story.happen(1)
        await until(lambda: len(woken) >= 400)
    first = woken[:400]
    assert first[-1] - first[0] >= 0.7
    slices = 1 + sum(later - earlier > 0.004 for earlier, later in pairwise(first))
    assert slices >= 400 / live_hub.SLICE


@pytest.mark.parametrize(("watchers", "seconds"), [(0, 1.0), (1, 1.0), (125, 1.0), (500, 4.0), (1_000, 8.0)])
def test_very_many_watchers_get_a_state_less_often(
    monkeypatch: pytest.MonkeyPatch, watchers: int, seconds: float
) -> None:
    monkeypatch.undo()
    assert live_hub.period(watchers) == seconds


async def test_a_quiet_stream_says_that_it_is_there(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_hub, "SILENCE_SECONDS", 0.3)
    async with served(LiveHub(story)) as port:
        streams = await watch(port)
        await next_event(streams)
        for _ in range(3):
            assert await next_event(streams) == b":"
        story.happen(1)
        assert ids(content(await next_event(streams))[1]) == [1]
        streams[1].close()


async def test_a_database_that_fails_ends_no_stream_and_begins_none(story: Story) -> None:
    hub = LiveHub(story)
    story.failing = True
    story.happen(1)
    with pytest.raises(StorageError, match="gone"):
        await hub.stream("")
    story.failing = False
    await asyncio.sleep(live_hub.PERIOD_SECONDS)
    async with served(hub) as port:
        streams = await watch(port)
        await next_event(streams)
        story.failing, reads = True, story.reads
        story.happen(2)
        await until(lambda: story.reads >= reads + 2)
        story.failing = False
        assert ids(content(await next_event(streams))[1]) == [2]
        streams[1].close()


# What ends a stream


async def test_a_watcher_that_leaves_is_forgotten(story: Story) -> None:
    hub = LiveHub(story)
    story.happen(1)
    async with served(hub) as port:
        for _ in range(3):
            streams = await watch(port)
            await next_event(streams)
            streams[1].transport.abort()
        await until(lambda: hub.count == 0)


async def test_a_stream_whose_connection_was_lost_before_it_began_is_forgotten(story: Story) -> None:
    hub = LiveHub(story)
    closed = socket.socket()
    closed.close()  # like a lost connection: setting an option raises
    transport = SimpleNamespace(is_closing=lambda: True, get_extra_info=lambda _: closed)
    connection = SimpleNamespace(transport=transport, on_lost=None, flow=SimpleNamespace(write_paused=False))
    answer = await hub.stream("")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(PATIENCE):
        await answer({"type": "http", "state": {"connection": connection}}, None, send)  # type: ignore[arg-type]
    assert hub.count == 0
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


async def test_stop_ends_open_streams_and_later_ones_at_once(story: Story) -> None:
    hub = LiveHub(story)
    story.happen(1)
    async with served(hub) as port:
        crowd = await asyncio.gather(*(watch(port) for _ in range(20)))
        for streams in crowd:
            await next_event(streams)
        hub.stop()
        async with asyncio.timeout(PATIENCE):
            for reader, writer in crowd:
                assert await reader.readexactly(5) == b"0\r\n\r\n", "the end of a whole answer"
                writer.close()
        reader, writer = await watch(port)
        async with asyncio.timeout(PATIENCE):
            assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.close()
        await until(lambda: hub.count == 0)


async def test_watcher_that_reads_nothing_is_disconnected(story: Story) -> None:
    """Once the kernel's buffers are full the server's limits apply, and shutdown does not wait."""
    hub = LiveHub(story)
    story.filling = "x" * 20_000
    async with served(hub, stall_seconds=2.0) as port:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(deaf, request(""))
        quick = await watch(port)
        await until(lambda: hub.count == 2)
        async with asyncio.timeout(3 * PATIENCE):
            while hub.count == 2:
                story.happen(len(story.events) + 1)
                content(await next_event(quick))
        assert len(story.events) * len(story.filling) < 2_000_000, "the kernel buffers little"
        deaf.close()
        quick[1].close()


async def test_the_end_waits_for_no_reader_that_lags(story: Story) -> None:
    hub = LiveHub(story)
    aborted: list[str] = []

    def connection(name: str, paused: bool) -> Any:
        transport = SimpleNamespace(abort=lambda: aborted.append(name))
        return SimpleNamespace(flow=SimpleNamespace(write_paused=paused), transport=transport)

    for name, paused in (("lags", True), ("reads", False)):
        hub.add(Watcher(hub, connection(name, paused), None))
    hub.stop()
    assert aborted == ["lags"]


# A server with nothing but the stream


@asynccontextmanager
async def served(hub: LiveHub, **limits: float) -> AsyncIterator[int]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = await hub.stream(Request(scope).headers.get("last-event-id", ""))
        await answer(scope, receive, send)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = bounded_config(app, ConnectionTable(1000), replace(LIMITS, **limits))
        server = uvicorn.Server(config)
        async with hub.running():
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield listener.getsockname()[1]
            finally:
                hub.stop()
                server.should_exit = server.force_exit = True
                await task


def request(last_event_id: str) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: x\r\nLast-Event-ID: %s\r\n\r\n" % last_event_id.encode()


async def watch(port: int, last_event_id: str = "") -> Streams:
    """Open a stream and read its head."""
    streams = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    streams[1].write(request(last_event_id))
    async with asyncio.timeout(PATIENCE):
        head = await streams[0].readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-type: text/event-stream; charset=utf-8\r\n" in head
    return streams


async def next_event(streams: Streams) -> bytes:
    """Return the next message or comment; the retry interval comes with the first message."""
    async with asyncio.timeout(PATIENCE):
        size = int(await streams[0].readline(), 16)
        message = await streams[0].readexactly(size)
        assert await streams[0].readexactly(2) == b"\r\n"
    return message.strip()
