"""Put the page of a run together: the documents, the stream of changes, and the HTML made of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from muster.settings.schema import OrchestratorSettings
from orchestrator.attribution import Attribution
from orchestrator.chain_follower import Follower
from orchestrator.database import Database
from orchestrator.page.boards import Boards
from orchestrator.page.live import LiveSource
from orchestrator.page.live_hub import LiveHub
from orchestrator.page.overview import RunIdentity
from orchestrator.page.site import Site
from orchestrator.page.source import PageSource
from orchestrator.page.views import Views
from orchestrator.queries import Queries
from orchestrator.relay_directory import RelayDirectory


@dataclass(frozen=True)
class PageParts:
    """What the page's routes use."""

    boards: Boards
    """Documents about the whole run."""
    views: Views
    """Documents about single things."""
    hub: LiveHub
    site: Site


@asynccontextmanager
async def page_running(
    known: RunIdentity,
    settings: OrchestratorSettings,
    explorer: str,
    database: Database,
    queries: Queries,
    follower: Follower,
    directory: RelayDirectory,
    attribution: Attribution,
) -> AsyncIterator[PageParts]:
    """Yield the parts; until left, watchers are notified of changes.

    explorer: URL of the chain's block explorer; empty for none.
    """
    source = PageSource(database, queries, attribution, settings.url)
    boards = Boards(known, source, follower, directory)
    views = await asyncio.to_thread(Views.of_run, source, settings.storage_url, settings.run_folder)
    hub = LiveHub(LiveSource(boards))
    site = Site(
        known, settings.url, lambda: queries.chain.now, lambda: follower.stale_since, explorer, lambda: hub.count
    )
    async with hub.running(), views.running():
        yield PageParts(boards, views, hub, site)
