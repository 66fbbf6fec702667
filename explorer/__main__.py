"""Show one run until SIGTERM or SIGINT: python -m explorer --config FILE.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when chain or orchestrator
do not answer, 1 otherwise.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from ipaddress import ip_network

from explorer.admission import ReaderAdmission
from explorer.app import create_asgi
from explorer.service import serving
from muster.runtime import telemetry
from muster.runtime.connection_table import ConnectionTable, connection_budget
from muster.runtime.http_limits import bounded_config
from muster.runtime.http_server import GRACE_SECONDS, LIMITS, Server, ending, listen, raise_descriptor_limit
from muster.runtime.process import quick_loop, run_process
from muster.runtime.request_ids import RequestIds
from muster.runtime.slots import measure
from muster.settings.schema import Settings

log = telemetry.logger("explorer")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal stops it; return the exit code."""
    return run_process("explorer", "show one run", _serve, arguments, metrics=False, loop_factory=quick_loop)


async def _serve(settings: Settings) -> None:
    """Serve, and answer /metrics, until a signal: uvicorn's handler takes the place of the one of `run_process`."""
    ours = settings.explorer
    with listen(ours.host, ours.port, "explorer.port") as socket:
        budget, backlog = connection_budget(raise_descriptor_limit())
        async with serving(settings) as service:
            table = ConnectionTable(budget, [ip_network(network) for network in ours.trusted_proxies])
            app = RequestIds(ReaderAdmission(create_asgi(service)))
            server = Server(
                bounded_config(app, table, LIMITS, backlog=backlog, timeout_graceful_shutdown=GRACE_SECONDS)
            )
            host, port = socket.getsockname()[:2]
            log.info("listening", host=host, port=port, run=settings.run, connections=budget)
            measure([table])
            gc.collect()
            gc.freeze()  # later collections skip the objects that live as long as the process, and so pause less
            with ending([server]):
                await server.serve([socket])
            log.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
