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

import uvicorn

from muster.chain.keys import load_signer
from muster.constants import SLOWEST_BYTES_PER_SECOND
from muster.errors import ConfigError
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, connection_budget
from muster.runtime.http_limits import ConnectionLimits, bounded_config
from muster.runtime.process import quick_loop, run_process
from muster.settings.schema import Settings
from orchestrator.admission import Admission, Listener, measure
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
    """uvicorn, which leaves signals to `_ending`: it would raise them again once it has cleaned up."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        return contextlib.nullcontext()


@contextlib.contextmanager
def _ending(servers: Sequence[Server], on_exit: Callable[[], object]) -> Iterator[None]:
    """End servers on SIGTERM and SIGINT; `on_exit` is called first, before requests under way are waited for."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)

    def end(number: int) -> None:
        for server in servers:
            server.handle_exit(number, None)
        on_exit()

    for number in signals:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal stops it; return the exit code."""
    what = "serve one run"
    return run_process("orchestrator", what, _serve, arguments, metrics=False, loop_factory=quick_loop)


async def _serve(settings: Settings) -> None:
    """Serve, and answer /metrics, until a signal: uvicorn's handler takes the place of the one of `run_process`."""
    signer = load_signer(settings.keys, settings.chain.chain_id)
    ours = settings.orchestrator
    names: list[Listener | None] = ["members", "public"] if ours.public_port else [None]
    with contextlib.ExitStack() as stack:
        # 1. The sockets, and how many connections each may have.
        ports = [ours.port, ours.public_port][: len(names)]
        sockets = [stack.enter_context(_listen(ours.host, port)) for port in ports]
        budget, backlog = connection_budget(raise_descriptor_limit() // len(sockets))
        async with serving(settings, signer) as service:
            # 2. A server for each, of the same application, with limits of its own.
            app, proxies = create_asgi(service), [ip_network(network) for network in ours.trusted_proxies]
            doors, servers = list[Admission](), list[Server]()
            for one, name in zip(sockets, names, strict=True):
                table = ConnectionTable(budget, proxies)
                doors.append(Admission(app, service.gate.recognise, table, ours.watchers, name))
                options = {"backlog": backlog, "timeout_graceful_shutdown": GRACE_SECONDS}
                hold = partial(doors[-1].hold, service.demand, service.run)
                servers.append(Server(bounded_config(RequestIds(doors[-1]), table, LIMITS, hold, **options)))
                host, port = one.getsockname()[:2]
                log.info("listening", host=host, port=port, run=settings.run, connections=budget, answers=name or "all")
            measure([door.table for door in doors])
            gc.collect()
            gc.freeze()  # later collections skip the objects that live as long as the process, and so pause less
            # 3. Until a signal.
            with _ending(servers, service.stop_waiting):
                await asyncio.gather(*(server.serve([one]) for server, one in zip(servers, sockets, strict=True)))
            log.info("stopped")


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what this process may have, at most MOST_DESCRIPTORS; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError when the address is taken or not ours."""
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
            hint = f"choose another orchestrator.port or public_port, or see who has it: ss -ltnp sport = :{port}"
            raise ConfigError(f"port {where} is occupied", hint=hint) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}", hint="set orchestrator.host") from error
    return listener


if __name__ == "__main__":
    sys.exit(main())
