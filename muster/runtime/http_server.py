"""Serve an application until a signal: sockets, limits of connections, graceful ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable
from ipaddress import ip_network
from typing import NamedTuple

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import ConfigError
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, connection_budget
from muster.runtime.http_limits import BoundedProtocol, ConnectionLimits, Early, bounded_config
from muster.runtime.request_ids import RequestIds
from muster.runtime.slots import measure
from muster.settings.schema import ExplorerSettings, OrchestratorSettings

GRACE_SECONDS = 10
"""Time that requests under way have to end after SIGTERM."""

LIMITS = ConnectionLimits(
    head_bytes=64 * 1024,
    head_seconds=20,
    idle_seconds=70,  # longer than clients and proxies keep connections
    stall_seconds=60,
    linger_seconds=10,
    discarded_bytes=256 << 20,
    slowest_rate=SLOWEST_BYTES_PER_SECOND,
)
MOST_DESCRIPTORS = 1 << 20
"""Open files at most, connections among them."""


class Server(uvicorn.Server):
    """uvicorn, which leaves signals to `serve`: it would raise them again once it has cleaned up."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


class Served(NamedTuple):
    """An application, and what else its server calls."""

    app: ASGIApp
    early: Early = BoundedProtocol.early
    on_exit: Callable[[], object] = lambda: None
    """Called on a signal, before requests under way are waited for."""


async def serve(
    name: str,
    ours: OrchestratorSettings | ExplorerSettings,
    run: int,
    opened: Callable[[ConnectionTable], contextlib.AbstractAsyncContextManager[Served]],
) -> None:
    """Serve what `opened` yields until SIGTERM or SIGINT. It is opened once the port is ours. Raises as `listen`."""
    log = telemetry.logger(name)
    with listen(ours.host, ours.port, f"{name}.port") as listener:
        budget, backlog = connection_budget(raise_descriptor_limit())
        table = ConnectionTable(budget, map(ip_network, ours.trusted_proxies))
        async with opened(table) as served:
            options = {"backlog": backlog, "timeout_graceful_shutdown": GRACE_SECONDS}
            server = Server(bounded_config(RequestIds(served.app), table, LIMITS, served.early, **options))
            loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

            def end(number: int) -> None:
                server.handle_exit(number, None)
                served.on_exit()

            host, port = listener.getsockname()[:2]
            log.info("listening", host=host, port=port, run=run, connections=budget)
            measure(table)
            gc.collect()
            gc.freeze()  # later collections skip the objects that live as long as the process, and so pause less
            for number in signals:
                loop.add_signal_handler(number, end, number)
            try:
                await server.serve([listener])
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)
            log.info("stopped")


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what this process may have, at most MOST_DESCRIPTORS; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Return a listening socket. Raises ConfigError, which names the setting, when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP, because only on such sockets the event loop sets TCP_NODELAY: without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            hint = f"choose another {setting}, or see who has it: ss -ltnp sport = :{port}"
            raise ConfigError(f"port {where} is occupied", hint=hint) from error
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror}", hint=f"set {setting.partition('.')[0]}.host"
        ) from error
    return listener


class TypedAnswers:
    """ASGI middleware: browsers take an answer for what its type says and for nothing else. Files are strangers'."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        await self._app(scope, receive, send_typed)
