"""Show one run until SIGTERM or SIGINT: python -m explorer --config FILE.

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 5 when chain or orchestrator
do not answer, 1 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from explorer.app import create_asgi
from explorer.service import serving
from muster.runtime.connection_table import ConnectionTable
from muster.runtime.http_server import Served, serve
from muster.runtime.process import quick_loop, run_process
from muster.runtime.slots import Admission, Slots
from muster.settings.schema import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal stops it; return the exit code."""
    return run_process("explorer", "show one run", _serve, arguments, metrics=False, loop_factory=quick_loop)


async def _serve(settings: Settings) -> None:
    @asynccontextmanager
    async def opened(_: ConnectionTable) -> AsyncIterator[Served]:
        async with serving(settings) as service:
            yield Served(Admission(create_asgi(service), {"reader": Slots(128, 1024)}))

    await serve("explorer", settings.explorer, settings.run, opened)


if __name__ == "__main__":
    sys.exit(main())
