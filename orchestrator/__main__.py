"""Serve one run until SIGTERM or SIGINT: python -m orchestrator --config FILE.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when the chain does not
answer, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from ipaddress import ip_network
from types import FrameType

import uvicorn

from muster.chain.keys import load_signer
from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import ConfigError
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, connection_budget
from muster.runtime.http_limits import ConnectionLimits, bounded_config
from muster.runtime.process import quick_loop, run_process
from muster.settings.schema import OrchestratorSettings, Settings
from orchestrator.admission import Admission
from orchestrator.app import create_asgi
from orchestrator.request_ids import RequestIds
from orchestrator.service import serving

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
log = telemetry.logger("orchestrator")


class Server(uvicorn.Server):
    """uvicorn, ending normally on SIGTERM and SIGINT instead of raising them again once it has cleaned up."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], object]) -> None:
        """`on_exit` is called as soon as a signal arrives, before requests under way are waited for."""
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._on_exit()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal stops it; return the exit code."""
    return run_process("orchestrator", "serve one run", _serve, arguments, metrics=False, loop_factory=quick_loop)


async def _serve(settings: Settings) -> None:
    """Serve, and answer /metrics, until a signal: uvicorn's handler takes the place of the one of `run_process`."""
    signer = load_signer(settings.keys, settings.chain.chain_id)
    with _listen(settings.orchestrator) as listener:
        descriptors = raise_descriptor_limit()
        budget, backlog = connection_budget(descriptors)
        async with serving(settings, signer) as service:
            table = ConnectionTable(budget, map(ip_network, settings.orchestrator.trusted_proxies))
            app = Admission(create_asgi(service), service.gate.recognise, table, settings.orchestrator.watchers)
            service.page.views.counter.is_busy = app.members_wait
            hold = partial(app.hold, service.demand, service.run)
            config = bounded_config(
                RequestIds(app), table, LIMITS, hold, backlog=backlog, timeout_graceful_shutdown=GRACE_SECONDS
            )
            host, port = listener.getsockname()[:2]
            log.info("listening", host=host, port=port, run=settings.run, connections=budget)
            gc.collect()
            gc.freeze()  # later collections skip the objects that live as long as the process, and so pause less
            await Server(config, service.stop_waiting).serve(sockets=[listener])
            log.info("stopped")


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what this process may have, at most MOST_DESCRIPTORS; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _listen(settings: OrchestratorSettings) -> socket.socket:
    """Return the listening socket. Raises ConfigError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, because only on such sockets the event loop sets TCP_NODELAY: without it each answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen()
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            hint = f"choose another orchestrator.port, or see who has it: ss -ltnp sport = :{settings.port}"
            raise ConfigError(f"port {where} is occupied", hint=hint) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}", hint="set orchestrator.host") from error
    return listener


if __name__ == "__main__":
    sys.exit(main())
