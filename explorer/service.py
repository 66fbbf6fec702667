"""Put a running explorer together, once, and take it apart in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from explorer.boards import Boards
from explorer.current import Current
from explorer.documents import Documents
from explorer.files import RunFiles
from explorer.log_reader import LogReader
from explorer.overview import RunIdentity
from explorer.reading import RowReader
from explorer.site import Site
from explorer.source import PageSource
from explorer.views import Views
from muster.chain.client import Chain
from muster.clients.orchestrator import OrchestratorClient
from muster.contracts import registry, runs
from muster.errors import ConfigError
from muster.ledger.attribution import Attribution
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.tables import EXPLORER
from muster.protocol.eip712 import Domain
from muster.protocol.messages import JoinDocument
from muster.settings.schema import Settings

ANSWER_SECONDS: Final = 60.0
"""Longest wait for an answer of the orchestrator."""


@dataclass(frozen=True)
class PageParts:
    """What the page's routes use."""

    boards: Boards
    """Documents about the whole run."""
    views: Views
    """Documents about single things."""
    site: Site


@dataclass(frozen=True)
class ExplorerService:
    """The parts that routes use."""

    known: RunIdentity
    join: JoinDocument
    database: Database
    queries: Queries
    follower: Follower
    reader: LogReader
    current: Current
    page: PageParts

    @property
    def run(self) -> int:
        return self.known.run

    def unready(self) -> list[str]:
        """Return why the page may be out of date; empty when it is not."""
        return [*self.follower.unready(), *self.reader.unready()]


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[ExplorerService]:
    """Yield a service that follows chain and log until left.

    Raises ConfigError when the settings contradict the chain or the database, UnreachableError when chain or
    orchestrator do not answer, StorageError when nothing can be kept.
    """
    ours, run = settings.explorer, settings.run
    async with AsyncExitStack() as stack:
        # 1. The chain, and what the orchestrator says of the run.
        chain = await Chain.connect(settings.chain)
        stack.push_async_callback(chain.close)
        terms, keys, head = await chain.terms(run), await chain.keys(run), await chain.head()
        owner = (await chain.call(runs.run_info(run))).owner
        unbonding = await chain.call(registry.unbonding())
        client = OrchestratorClient.on_chain(settings.orchestrator.url, chain, timeout=ANSWER_SECONDS)
        await stack.enter_async_context(client)
        described, join = await client.run_info(run), await client.join_document()
        if described.chain_id != chain.chain_id or described.run != run:
            raise ConfigError(
                f"{client.url} serves run {described.run} of chain {described.chain_id}, not run {run} of chain "
                f"{chain.chain_id}",
                hint="muster explorer URL writes settings that fit",
            )
        # 2. Its own database, and the run's files.
        where = Domain(chain.chain_id, chain.addresses.registry)
        about = f"explorer of run {run} of {chain.addresses.runs} on chain {chain.chain_id}"
        database = await Database.open(f"sqlite:///{ours.state_dir / 'explorer.db'}", about, EXPLORER)
        stack.push_async_callback(database.close)
        files = RunFiles(client, ours.state_dir)
        await files.forget_all("0x" + terms.task_root.hex())
        await files.prepare(described, terms)
        attribution = await Attribution.of_run(chain.chain_id, chain.addresses.runs, run, terms, files.files)
        await database.write(attribution.complete)
        # 3. What follows chain and log.
        queries = Queries(database, run, terms, keys, groups_wanted=described.groups_wanted)
        queries.chain = ChainState(now=head.timestamp)
        follower = Follower(chain, database, queries, settings.chain, attribution, tells=True)
        reader = LogReader(where, client, database, follower, Documents(where, queries, owner), unbonding)
        current = Current(run, client, database)
        await stack.enter_async_context(follower.following())
        await stack.enter_async_context(reader.reading())
        await stack.enter_async_context(current.reading())
        # 4. What people see of it.
        known = RunIdentity(
            run=run,
            chain_id=chain.chain_id,
            title=described.title,
            about=described.about,
            owner=owner,
            addresses=described.addresses,
            terms=terms,
        )
        source = PageSource(database, queries, attribution, client.url)
        boards = Boards(known, source, follower, reader, current)
        views = Views(source, await asyncio.to_thread(RowReader.of_run, files, terms))
        site = Site(
            known,
            client.url,
            lambda: queries.chain.now,
            lambda: boards.stale_since,
            settings.chain.block_explorer_url,
        )
        yield ExplorerService(known, join, database, queries, follower, reader, current, PageParts(boards, views, site))
