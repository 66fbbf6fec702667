"""The process that serves weights: an origin or a relay, until SIGTERM or SIGINT.

    python -m muster.shardcast --config FILE

Ends with 0 after a signal, 78 when the settings cannot work (an occupied port included), 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from muster import telemetry
from muster.errors import MismatchError, MusterError
from muster.settings import Settings, ShardcastSettings, load_settings
from muster.shardcast.client import limits_of
from muster.shardcast.manifest import Manifest
from muster.shardcast.origin import Origin
from muster.shardcast.relay import Anchor, Relay, RelayLimits
from muster.shardcast.server import FileServer, ServerLimits
from muster.shardcast.service import Service
from muster.shardcast.shelf import Stats

_log = telemetry.logger("shardcast")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m muster.shardcast", description="Serve a run's weights.")
    parser.add_argument("--config", type=Path, required=True, help="settings file (TOML)")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings(options.config)
        role = settings.shardcast.role
        telemetry.configure(settings.name or role, log_file=settings.log.file, level=settings.log.level)
        asyncio.run(serve(settings))
    except MusterError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"  try: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


async def serve(settings: Settings) -> None:
    """Serve weights until SIGTERM or SIGINT. Raises ConfigError, StorageError, and what the chain says at the start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(settings) as (port, worker):
        _log.info("listening", role=settings.shardcast.role, host=settings.shardcast.host, port=port)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *([worker] if worker else [])], return_when=asyncio.FIRST_COMPLETED)
        if worker is not None and worker.done():
            worker.result()  # an accident ends the process
        await stopping
    _log.info("stopped")


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


if __name__ == "__main__":
    sys.exit(main())
