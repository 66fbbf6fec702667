"""Serve one run until SIGTERM or SIGINT: python -m orchestrator --config FILE.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when the chain does not
answer, 1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from muster.chain.keys import load_signer
from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_server import Served, serve
from muster.runtime.process import quick_loop, run_process
from muster.settings.schema import Settings
from orchestrator.admission import MemberAdmission
from orchestrator.app import create_asgi
from orchestrator.log_tail import LogTail
from orchestrator.service import serving


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal stops it; return the exit code."""
    what = "serve one run"
    return run_process("orchestrator", what, _serve, arguments, metrics=False, loop_factory=quick_loop)


async def _serve(settings: Settings) -> None:
    signer = load_signer(settings.keys, settings.chain.chain_id)

    @asynccontextmanager
    async def opened(table: ConnectionTable) -> AsyncIterator[Served]:
        async with serving(settings, signer) as service:
            door = MemberAdmission(create_asgi(service), service.gate.recognise, table)
            tail = LogTail(door, service.run, service.database, door.slots_by_kind["held"])

            def end() -> None:
                service.demand.stop()
                tail.stop()

            yield Served(tail, partial(door.hold, service.demand, service.run), end)

    await serve("orchestrator", settings.orchestrator, settings.run, opened)


if __name__ == "__main__":
    sys.exit(main())
