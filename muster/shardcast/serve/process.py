"""Serving weights: an origin or a relay, as its settings say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from muster import telemetry
from muster.errors import MismatchError
from muster.settings import Settings, ShardcastSettings
from muster.shardcast.client import limits_of
from muster.shardcast.manifest import Manifest
from muster.shardcast.origin import Origin
from muster.shardcast.relay import Anchor, Relay, RelayLimits
from muster.shardcast.server import FileServer, ServerLimits
from muster.shardcast.service import Service
from muster.shardcast.shelf import Stats

_log = telemetry.logger("shardcast")


async def serve(settings: Settings) -> None:
    """Serve weights until cancelled. Raises ConfigError, StorageError, and what the chain says at the start."""
    async with serving(settings) as (port, worker):
        _log.info("listening", role=settings.shardcast.role, host=settings.shardcast.host, port=port)
        if worker is not None:
            await worker  # ends by an accident only, which ends the process
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[int, asyncio.Task[None] | None]]:
    """An origin or relay at work: its port, and the task that follows upstream, for a relay."""
    chosen = settings.shardcast
    stats = Stats()
    async with AsyncExitStack() as stack:
        if chosen.role == "origin":
            shelf, worker = Origin(chosen.dir), None
        else:
            anchor = await stack.enter_async_context(_chain_anchor(settings)) if chosen.check_chain else None
            shelf = await stack.enter_async_context(
                Relay(
                    chosen.dir,
                    chosen.upstreams,
                    stats,
                    run=settings.run,
                    limits=relay_limits(chosen),
                    anchor=anchor,
                    follow=chosen.follow,
                )
            )
            worker = shelf.worker
        service = Service(chosen.role, shelf, stats)
        limits = ServerLimits(idle_seconds=chosen.idle_seconds, connections=chosen.connections, rate=chosen.upload_rate)
        server = FileServer(service.handle, limits)
        service.connections = lambda: server.connections
        port = await server.start(chosen.host, chosen.port)
        stack.push_async_callback(server.close)
        yield port, worker


def relay_limits(settings: ShardcastSettings) -> RelayLimits:
    """The bounds an operator chose."""
    return RelayLimits(
        versions=settings.relayed_versions,
        cache_bytes=settings.cache_bytes,
        hold_seconds=settings.hold_seconds,
        poll_seconds=settings.poll_seconds,
        fetch=limits_of(settings),
    )


@asynccontextmanager
async def _chain_anchor(settings: Settings) -> AsyncIterator[Anchor]:
    """A check of manifests against the checkpoints that the chain has.

    Of a difference the chain knows the steps only: it is relayed unseen, and whoever applies it finds out.
    """
    from muster.chain.client import Chain

    chain = await Chain.connect(settings.chain)

    async def check(manifest: Manifest) -> None:
        checkpoint = await chain.checkpoint(settings.run, manifest.step)
        if manifest.base_step is None and checkpoint.manifest_root != manifest.root:
            raise MismatchError(f"{manifest.id} is not what the chain has for step {manifest.step}")

    try:
        yield check
    finally:
        await chain.close()
