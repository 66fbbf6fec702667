"""Serving to others the weights this worker holds, and saying so in the orchestrator's directory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from muster import telemetry
from muster.errors import TRANSIENT
from muster.http import OrchestratorClient
from muster.messages import RelayOffer
from muster.relays import Relays
from muster.settings import ShardcastSettings
from muster.shardcast.origin import Holdings
from muster.shardcast.server import FileServer, ServerLimits
from muster.shardcast.service import Service
from muster.shardcast.shelf import Stats

RENEW_SECONDS: Final = 240.0
"""Between two offers; an offer lasts ten minutes."""

RETRY_SECONDS: Final = 15.0
"""After an offer that did not arrive."""

log = telemetry.logger("worker")


async def share(
    folder: Path, run: int, settings: ShardcastSettings, client: OrchestratorClient, relays: Relays
) -> None:
    """Serve the versions in `folder` until cancelled; `relays` learns not to fetch from here. Raises ConfigError when
    the port is taken."""
    service = Service("worker", Holdings(folder), Stats())
    limits = ServerLimits(
        idle_seconds=settings.idle_seconds, connections=settings.connections, rate=settings.upload_rate
    )
    server = FileServer(service.handle, limits)
    service.connections = lambda: server.connections
    port = await server.start(settings.host, settings.port)
    offer = RelayOffer(run=run, url=settings.url or f"http://{settings.host}:{port}")
    relays.own = offer.url.rstrip("/")
    log.info("sharing weights", url=offer.url)
    try:
        while True:
            try:
                await client.offer_relay(offer)
                await asyncio.sleep(RENEW_SECONDS)
            except TRANSIENT as error:
                log.warning("the directory did not take the offer", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        await server.close()
