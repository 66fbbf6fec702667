"""Start processes in order of readiness, keep them running, and end exactly those.

Every process gets its own session, so that Ctrl-C in a terminal reaches the supervisor only, which then ends
its processes in the reverse order of their start. A process that dies is started again, a bounded number of times
with growing pauses. When it has died too often the whole swarm fails, naming the process and the end of its log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import httpx2

from muster.errors import ConfigError, MusterError, UnreachableError
from muster.runtime.tls import tls_context
from muster.swarm.processes import Child, leader
from muster.swarm.state import SwarmState, check_free, remove_state

BACK_OFF: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each restart of a swarm's process; as many restarts as there are entries."""

STEADY_SECONDS: Final = 600.0
"""Earlier deaths of a process no longer count once it has run for so long."""

CANCEL_SECONDS: Final = 5.0
"""How long cancelled work may clean up before it is cancelled again."""

TAIL_LINES: Final = 12
"""Lines of a failed process's log that its error shows."""

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a swarm. Nothing secret may stand in `command` or `environment`: other users can read them."""

    name: str
    command: tuple[str, ...]
    log: Path
    """Where stdout and stderr go, appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the supervisor's own."""
    ready_url: str = ""
    """Answers 200 once the process is ready."""
    ready_port: int = 0
    """Accepts connections on 127.0.0.1 once the process is ready."""
    ready_seconds: float = 120
    """Longest wait for readiness."""
    stop_seconds: float = 20
    """Between SIGTERM and SIGKILL."""
    nice: int = 0
    """On top of the supervisor's own."""
    restarts: int = len(BACK_OFF)
    restart_from: Path | None = None
    """File without which it is not started again: it would have lost everything."""
    back_off: tuple[float, ...] = BACK_OFF
    """Seconds before each restart; the last holds for all that follow."""
    final_statuses: tuple[int, ...] = ()
    """Exit statuses that mean it has nothing left to do: it is not started again, and nothing is wrong."""
    essential: bool = True
    """Whether the swarm fails when this process cannot be kept running."""


@dataclass(frozen=True)
class ProcessEvent:
    """Something that happened to a process: started, ready, died, restarted, ended."""

    kind: str
    name: str
    details: Mapping[str, object] = field(default_factory=dict)


class SwarmError(MusterError):
    """A process of the swarm cannot be kept running."""


class Supervisor:
    """Async context manager that owns every process it starts.

    folder: holds the state file; must not hold a running swarm (UsageError).
    on_event: called with each ProcessEvent, must not block.
    """

    def __init__(self, folder: Path, on_event: Callable[[ProcessEvent], None] = lambda _: None) -> None:
        self.folder = folder
        self.on_event = on_event
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.restarts: dict[str, int] = {}
        """How often each process was started again."""
        self._running: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._specs: dict[str, ProcessSpec] = {}

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        check_free(self.folder)
        self._record()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None):
        await self.stop()

    async def start(self, spec: ProcessSpec) -> None:
        """Start one process and wait until it is ready. Raises SwarmError when it ends or takes too long."""
        if spec.name in self._keepers:
            raise ValueError(f"{spec.name} is started already")
        check_ports([spec.ready_port] if spec.ready_port else [])
        self._specs[spec.name] = spec
        child = self._spawn(spec)
        self._keepers[spec.name] = asyncio.create_task(self._keep(spec, child), name=f"keep {spec.name}")
        await self._wait_ready(spec)

    async def run(self, spec: ProcessSpec) -> None:
        """Run one process to its end. Raises SwarmError unless it ends with status 0, all within `ready_seconds`."""
        self._specs[spec.name] = spec
        child = self._spawn(spec)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(spec.ready_seconds):
                await child.wait()
        except TimeoutError as error:
            text = f"{spec.name} is not done after {spec.ready_seconds:g} s; end of its log:\n{log_tail(spec.log)}"
            raise SwarmError(text, hint=f"read {spec.log}") from error
        finally:
            status = await self._end(spec.name, quietly=True)
        if status != 0:
            raise SwarmError(f"{spec.name} failed with status {status}\n{log_tail(spec.log)}", hint=f"read {spec.log}")
        self.on_event(ProcessEvent("finished", spec.name, {"seconds": round(time.monotonic() - begun, 2)}))

    async def stop_one(self, name: str) -> None:
        """End one process and do not start it again."""
        keeper = self._keepers.pop(name)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await self._end(name)

    async def stop(self) -> None:
        """End every process: the first started last, since the others depend on it (it is the chain)."""
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        self._keepers.clear()
        first, *others = [name for name in self._specs if name in self._running] or [""]
        await asyncio.gather(*(self._end(name) for name in others))
        await self._end(first)
        remove_state(self.folder)
        self.failure.cancel()

    def keeps(self, name: str) -> bool:
        """Return whether this supervisor started a process of that name and keeps it running."""
        return name in self._keepers and not self._keepers[name].done()

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`, ending it with SwarmError as soon as a process cannot be kept running."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self.failure}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.failure.result()
            return await task
        finally:
            # Repeatedly: a cancellation can be lost where the awaited call has just completed.
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)

    def _spawn(self, spec: ProcessSpec) -> Child:
        try:
            child = Child(spec.command, spec.environment, spec.log, spec.nice)
        except OSError as error:
            raise ConfigError(f"{spec.command[0]} cannot be started: {error.strerror}", hint="make setup") from error
        self._running[spec.name] = child
        self._record()
        self.on_event(ProcessEvent("started", spec.name, {"pid": child.name.pid}))
        return child

    async def _keep(self, spec: ProcessSpec, child: Child) -> None:
        """Start a process again when it dies, until it has died too often."""
        deaths = 0
        while True:
            begun = time.monotonic()
            await child.wait()
            status = await self._end(spec.name, quietly=True)
            if status in spec.final_statuses:
                self.on_event(ProcessEvent("finished", spec.name, {"status": status}))
                return
            self.on_event(ProcessEvent("died", spec.name, {"status": status}))
            deaths = 1 if time.monotonic() - begun > STEADY_SECONDS else deaths + 1
            lost = spec.restart_from is not None and not spec.restart_from.exists()
            if deaths > spec.restarts or lost or status == ConfigError.exit_code:
                break  # settings that cannot work now cannot work after a restart
            await asyncio.sleep(spec.back_off[min(deaths, len(spec.back_off)) - 1])
            child = self._spawn(spec)
            self.restarts[spec.name] = self.restarts.get(spec.name, 0) + 1
            self.on_event(ProcessEvent("restarted", spec.name, {"attempt": deaths}))
        if not spec.essential:
            self.on_event(ProcessEvent("given up", spec.name, {"deaths": deaths}))
        elif not self.failure.done():
            text = f"{spec.name} died {deaths} times, with status {status}; end of its log:\n{log_tail(spec.log)}"
            self.failure.set_exception(SwarmError(text, hint=f"read {spec.log}"))

    async def _wait_ready(self, spec: ProcessSpec) -> None:
        if not spec.ready_url and not spec.ready_port:
            return
        begun = time.monotonic()
        while not await _is_ready(spec):
            if self.failure.done():
                self.failure.result()
            if time.monotonic() - begun > spec.ready_seconds:
                raise UnreachableError(
                    f"{spec.name} is not ready after {spec.ready_seconds:g} s; end of its log:\n{log_tail(spec.log)}",
                    hint=f"read {spec.log}",
                )
            await asyncio.sleep(0.1)
        self.on_event(ProcessEvent("ready", spec.name, {"seconds": round(time.monotonic() - begun, 2)}))

    async def _end(self, name: str, *, quietly: bool = False) -> int:
        """End a process by name; return its exit status, 0 when none runs."""
        child = self._running.get(name)
        if child is None:
            return 0
        status, polite = await child.end(self._specs[name].stop_seconds)
        self._running.pop(name, None)
        self._record()
        if not quietly:
            self.on_event(ProcessEvent("ended", name, {} if polite else {"by": "SIGKILL"}))
        return status

    def _record(self) -> None:
        processes = {name: child.name for name, child in self._running.items()}
        SwarmState(leader(os.getpid()), processes).write(self.folder)


async def interruptible(work: Coroutine[object, object, T]) -> T:
    """Run `work`; SIGINT, SIGTERM or SIGHUP cancels it once.

    Raises KeyboardInterrupt when it was cancelled so. Further signals are ignored: cleaning up has its own bounds.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    asked: list[signal.Signals] = []

    def ask(number: signal.Signals) -> None:
        if not asked:
            task.cancel()
        asked.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, ask, number)
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _is_ready(spec: ProcessSpec) -> bool:
    if not spec.ready_url:
        return await _accepts(spec.ready_port)
    try:
        async with httpx2.AsyncClient(timeout=2, trust_env=False, verify=tls_context(trust_env=False)) as client:
            return (await client.get(spec.ready_url)).status_code == 200
    except httpx2.TransportError:
        return False


async def _accepts(port: int) -> bool:
    try:
        async with asyncio.timeout(1):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    await writer.wait_closed()
    return True


def check_ports(ports: Sequence[int]) -> None:
    """Raise ConfigError naming the first port of 127.0.0.1 that something else listens on."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                hint = f"see who listens: ss -ltnp 'sport = :{port}'; or let the swarm choose: --port 0"
                raise ConfigError(f"port {port} is occupied", hint=hint) from error


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, each different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def log_tail(log: Path) -> str:
    """Return the end of a log, indented."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except FileNotFoundError:
        lines = []
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"
