"""Fetch a step as differences to a local one, and only the rest whole.

    fetched = await fetch_step(FetchRequest(root, run, step, sources, dest), chain_root)

Differences are looked up, fetched and applied first. Each resulting shard that matches the anchored manifest is stored
where the ordinary fetch would have put it. Then the ordinary fetch gets what is missing, all of it if need be: it
trusts only shards that were hashed under the same lock. So an error here costs time, and never makes a node load a
wrong byte. An old step that no source offers whole is made of differences to an older one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from muster.errors import MismatchError, UnreachableError
from muster.shardcast.fetch.delta_fetch import Anchored, DeltaFetch
from muster.shardcast.fetch.fetch import FetchedVersion, FetchRequest, exclusive, fetch_version
from muster.shardcast.format.store import version_path


async def fetch_step(request: FetchRequest, anchored: Anchored) -> FetchedVersion:
    """Do as `fetch_version`, raising the same, but by way of differences where that costs fewer bytes.

    Differences also lead to a step that no source has whole. A source of a wrong difference is only avoided, not
    reported, since no anchored root says what a difference is; its bytes count as received once it has made what the
    anchored root says.
    """
    step, dest, root = request.step, request.dest, request.root
    delta = DeltaFetch(request, anchored)
    fetch_rest = partial(fetch_version, request, verified=delta.verified)
    try:
        async with exclusive(dest, root, request.settings.fetch_seconds):
            # 1. What differences give.
            if not await asyncio.to_thread(version_path(dest, root).is_dir):
                await delta.run()
            # 2. The rest, whole.
            try:
                fetched = await fetch_rest(retry=delta.offers.retry)
            except (UnreachableError, MismatchError) as error:
                # 3. No source offers the rest whole: use every difference.
                if not await delta.run(whole=False):
                    why = "; ".join([*delta.tried, f"whole: {error}"])
                    raise type(error)(f"step {step} cannot be had: {why}", hint=error.hint) from error
                fetched = await fetch_rest(retry=delta.offers.retry)
    except TimeoutError as error:  # of the lock: all else says what it waited for
        raise UnreachableError(f"another fetch of step {step} into {dest} has not ended in time") from error
    return replace(fetched, delta_bytes=delta.fetched_bytes)
