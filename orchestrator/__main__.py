"""Serve one run until SIGTERM or SIGINT: python -m orchestrator --config FILE.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when the chain does not
answer, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_network

from muster.chain.keys import load_signer
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, connection_budget
from muster.runtime.http_limits import bounded_config
from muster.runtime.http_server import GRACE_SECONDS, LIMITS, Server, ending, listen, raise_descriptor_limit
from muster.runtime.process import quick_loop, run_process
from muster.runtime.request_ids import RequestIds
from muster.runtime.slots import measure
from muster.settings.schema import Settings
from orchestrator.admission import Admission, Listener
from orchestrator.app import create_asgi
from orchestrator.service import serving

log = telemetry.logger("orchestrator")


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
        sockets = [stack.enter_context(listen(ours.host, port, "orchestrator.port")) for port in ports]
        budget, backlog = connection_budget(raise_descriptor_limit() // len(sockets))
        async with serving(settings, signer) as service:
            # 2. A server for each, of the same application, with its own limits.
            app, proxies = create_asgi(service), [ip_network(network) for network in ours.trusted_proxies]
            doors, servers = list[Admission](), list[Server]()
            for one, name in zip(sockets, names, strict=True):
                table = ConnectionTable(budget, proxies)
                doors.append(Admission(app, service.gate.recognise, table, name))
                options = {"backlog": backlog, "timeout_graceful_shutdown": GRACE_SECONDS}
                hold = partial(doors[-1].hold, service.demand, service.run)
                servers.append(Server(bounded_config(RequestIds(doors[-1]), table, LIMITS, hold, **options)))
                host, port = one.getsockname()[:2]
                log.info("listening", host=host, port=port, run=settings.run, connections=budget, answers=name or "all")
            measure([door.table for door in doors])
            gc.collect()
            gc.freeze()  # later collections skip the objects that live as long as the process, and so pause less
            # 3. Until a signal.
            with ending(servers, service.stop_waiting):
                await asyncio.gather(*(server.serve([one]) for server, one in zip(servers, sockets, strict=True)))
            log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
