"""Serving to others the weights this worker holds, and saying so in the orchestrator's directory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import Relays
from muster.protocol.messages import RelayOffer
from muster.runtime import telemetry
from muster.runtime.loop import PollLoop
from muster.settings.schema import ShardcastSettings
from muster.shardcast.serve.origin import LocalVersions
from muster.shardcast.serve.routes import listening
from muster.shardcast.serve.store import Stats

REPEAT_SECONDS: Final = 240.0
"""Between two offers; an offer lasts ten minutes."""

RETRY_SECONDS: Final = 15.0
"""Pause after an offer that was not accepted."""

log = telemetry.logger("worker")


async def share(
    folder: Path, run: int, settings: ShardcastSettings, client: OrchestratorClient, relays: Relays
) -> None:
    """Serve the versions in `folder` until cancelled, and let `relays` not fetch from here.

    Raises ConfigError when the port is taken.
    """
    async with listening("worker", LocalVersions(folder), Stats(), settings) as port:
        offer = RelayOffer(run=run, url=settings.url or f"http://{settings.host}:{port}")
        relays.own = offer.url.rstrip("/")
        log.info("sharing weights", url=offer.url)
        while True:
            await PollLoop(log, "offer", RETRY_SECONDS).until_done(lambda: client.offer_relay(offer))
            await asyncio.sleep(REPEAT_SECONDS)
