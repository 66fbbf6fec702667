"""python -m muster.shardcast --config FILE: serve weights, as an origin or a relay, until SIGTERM or SIGINT.

Exit codes are those of `muster.errors`: 0 after a signal, 78 when the settings cannot work, an occupied port included.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from muster.errors import MismatchError
from muster.runtime import telemetry
from muster.runtime.process import run_process
from muster.settings.schema import Settings
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.serve.origin import Origin
from muster.shardcast.serve.relay import Anchor, Relay
from muster.shardcast.serve.routes import Stats, listening

_log = telemetry.logger("shardcast")


async def serve(settings: Settings) -> None:
    """Serve weights until cancelled. Raises ConfigError, StorageError, and what the chain says at the start."""
    async with serving(settings) as (port, follower):
        _log.info("listening", role=settings.shardcast.role, host=settings.shardcast.host, port=port)
        if follower is not None:
            await follower  # raises what ends it early, which ends the process
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[tuple[int, asyncio.Task[None] | None]]:
    """Run an origin or relay; yields its port, and for a relay the task that follows the upstreams."""
    chosen = settings.shardcast
    stats = Stats()
    async with AsyncExitStack() as stack:
        if chosen.role == "origin":
            store, follower = Origin(chosen.dir), None
        else:
            anchor = await stack.enter_async_context(_chain_anchor(settings)) if chosen.check_chain else None
            store = await stack.enter_async_context(Relay(chosen, stats, run=settings.run, anchor=anchor))
            follower = store.follower
        yield await stack.enter_async_context(listening(chosen.role, store, stats, chosen)), follower


@asynccontextmanager
async def _chain_anchor(settings: Settings) -> AsyncIterator[Anchor]:
    """Yield a check of manifests against the checkpoints that the chain has.

    Of a difference the chain knows the steps only: it is relayed unchecked, and its receiver checks the result.
    """
    from muster.chain.client import Chain

    async with await Chain.connect(settings.chain) as chain:

        async def check(manifest: Manifest) -> None:
            checkpoint = await chain.checkpoint(settings.run, manifest.step)
            if manifest.base_step is None and checkpoint.manifest_root != manifest.root:
                raise MismatchError(f"{manifest.id} is not what the chain has for step {manifest.step}")

        yield check


if __name__ == "__main__":
    sys.exit(run_process("muster.shardcast", "serve a run's weights", serve, metrics=False))
