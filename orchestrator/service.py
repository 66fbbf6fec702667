"""Put a running orchestrator together, once, and take it apart in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from muster.chain.client import Chain
from muster.chain.keys import Signer
from muster.clients.storage_probe import probe
from muster.contracts import registry, runs
from muster.errors import ConfigError, StorageError
from muster.ledger.chain_follower import Follower
from muster.ledger.database import Database
from muster.ledger.queries import Queries
from muster.ledger.run_facts import ChainState
from muster.ledger.tables import ORCHESTRATOR
from muster.protocol.eip712 import Domain
from muster.protocol.messages import JoinDocument, RunDescription
from muster.runtime import telemetry
from muster.runtime.kept import KeptAnswers
from muster.settings.schema import Settings
from orchestrator.announcements import Announcements
from orchestrator.auth import Gate
from orchestrator.calls import Calls
from orchestrator.current import CurrentDocuments
from orchestrator.demand_board import DemandBoard
from orchestrator.environments import Environments
from orchestrator.lease import leading, only_process, own_spool
from orchestrator.log import Log
from orchestrator.rebuild import rebuild
from orchestrator.relay_directory import RelayDirectory
from orchestrator.reports import Reports
from orchestrator.retention import Retention
from orchestrator.run_info import join_document, offer_files, run_info, warn_of_lacks
from orchestrator.shown import ShownDocuments
from orchestrator.start_mark import StartMark
from orchestrator.upload_slots import UploadSlots
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts

CHECK_SECONDS: Final = 5.0
"""Longest wait for storage or database before /readyz reports it; shorter than for a file."""

METRICS_SECONDS: Final = 1.0
"""Greatest age of what `/metrics` says."""

LISTED_SECONDS: Final = 2.0
"""Greatest age of the list of what lasts only minutes."""

BODIES: Final = 64
"""Messages of members, and as many of others, that are read at the same time."""
BODIES_BYTES: Final = 256 << 20
"""Their sizes together."""

log = telemetry.logger("orchestrator")


@dataclass(frozen=True)
class OrchestratorService:
    """The parts that routes use."""

    settings: Settings
    info: RunDescription
    join: JoinDocument
    database: Database
    queries: Queries
    demand: DemandBoard
    follower: Follower
    gate: Gate
    documents: Log
    uploads: Uploads
    verdicts: Verdicts
    calls: Calls
    shown: ShownDocuments
    reports: Reports
    retention: Retention
    relay_directory: RelayDirectory
    current: CurrentDocuments
    environments: Environments
    announcements: Announcements
    bodies: tuple[UploadSlots, UploadSlots] = field(
        default_factory=lambda: (UploadSlots(BODIES, BODIES_BYTES), UploadSlots(BODIES, BODIES_BYTES))
    )
    """For messages that others sign, and for those of members."""
    metrics: KeptAnswers = field(default_factory=lambda: KeptAnswers(METRICS_SECONDS))
    current_list: KeptAnswers = field(default_factory=lambda: KeptAnswers(LISTED_SECONDS))
    """Of what lasts only minutes."""
    checks: KeptAnswers = field(default_factory=lambda: KeptAnswers(0.0))
    """Of what it needs, one at a time for all who ask meanwhile."""

    @property
    def run(self) -> int:
        return self.settings.run

    async def unready(self) -> list[str]:
        """Return why this service cannot do its work now; empty when it can."""
        checks = {"storage": self.uploads.files.check(), "database": self.database.check()}
        found = await asyncio.gather(*(_failure(name, check) for name, check in checks.items()))
        unready = [*self.follower.unready(), *filter(None, found)]
        if not self.uploads.has_storage_key:
            unready.append(f"the run's storage key is {self.queries.keys_now.storage_key} now: start again with it")
        return unready


async def _failure(name: str, check: Awaitable[None]) -> str:
    """Return why a check fails, or that it takes longer than CHECK_SECONDS; empty when it passes."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check
    except StorageError as error:
        return str(error)
    except TimeoutError:
        return f"{name} does not answer in {CHECK_SECONDS:g} s"
    return ""


@asynccontextmanager
async def serving(settings: Settings, signer: Signer) -> AsyncIterator[OrchestratorService]:
    """Yield a service that follows the chain until left.

    Raises ConfigError when the settings contradict the chain or the database, UnreachableError when the chain does
    not answer, StorageError when nothing can be kept, or when storage would lose what it was asked to keep.
    """
    ours = settings.orchestrator
    async with AsyncExitStack() as stack:
        # 1. The chain, and whether this key is the run's storage key.
        chain = await Chain.connect(settings.chain)
        stack.push_async_callback(chain.close)
        terms, keys, head = await chain.terms(settings.run), await chain.keys(settings.run), await chain.head()
        if signer.address != (trusted := keys.at(head.timestamp).storage_key):
            raise ConfigError(
                f"this key is {signer.address}, but run {settings.run} trusts receipts of {trusted} only",
                hint="set keys.keystore to the run's storage key; muster run show says when it changes",
            )
        # 2. Storage, database and the folder for uploads under way.
        storage_url = ours.storage_url
        await _check_storage(storage_url)
        addresses = chain.addresses
        where = Domain(chain.chain_id, addresses.registry)
        about = f"run {settings.run} of {addresses.runs} on chain {chain.chain_id}"
        database = await Database.open(ours.database_url, about, ORCHESTRATOR)
        stack.push_async_callback(database.close)
        stack.enter_context(only_process(ours.database_url))
        # 3. The parts that read and write them.
        queries = Queries(database, settings.run, terms, keys, groups_wanted=ours.batch_groups * ours.demand_batches)
        queries.chain = ChainState(now=head.timestamp)
        uploads = Uploads(where, signer, queries, database, ours)
        uploads.spool = stack.enter_context(own_spool(uploads.spool))
        documents = Log(where, database, queries, storage_url=storage_url)
        shown = ShownDocuments(queries, database, documents, storage_url=storage_url)
        reports = Reports(queries, database, documents)
        owner = (await chain.call(runs.run_info(settings.run))).owner
        environments = Environments(settings.run, owner, database, documents, ours)
        relays = RelayDirectory(settings.run, ours.url, settings.shardcast.relays, database, documents)
        announcements = Announcements(owner, queries, database, documents)
        # 4. The run's own files.
        files = await offer_files(ours.run_folder, uploads.files)
        await warn_of_lacks(terms, settings.shardcast.relays, uploads.files)
        # 5. State that the database may lack; then follow the chain.
        follower = Follower(chain, database, queries, settings.chain)
        calls = Calls(queries, follower, database)
        verdicts = Verdicts(
            where, queries, database, documents, calls, storage_url=storage_url, key_bytes=ours.key_bytes
        )
        unbonding = await chain.call(registry.unbonding())
        days = ours.retention == "deadlines"
        retention = Retention(
            where, signer, follower, database, unbonding=unbonding, storage_url=storage_url, days=days
        )
        fill = partial(
            rebuild,
            database,
            where,
            settings.run,
            keys,
            runs=addresses.runs,
            documents=documents,
            uploads=uploads,
            verdicts=verdicts,
            shown=shown,
            retention=retention,
        )
        mark = StartMark(database, storage_url, about)
        await stack.enter_async_context(leading(database, mark, fill))
        await stack.enter_async_context(follower.following())
        if days:
            log.info("detail of work is deleted once its deadlines are over", setting="orchestrator.retention")
        await stack.enter_async_context(retention.sweeping())
        info = run_info(settings, addresses, terms, files)
        yield OrchestratorService(
            settings=settings,
            info=info,
            join=join_document(settings, addresses, signer),
            database=database,
            queries=queries,
            demand=DemandBoard(queries, follower.expect_complete),
            follower=follower,
            gate=Gate(where, ours.url, ours.hosts, database=database, queries=queries, follower=follower),
            documents=documents,
            uploads=uploads,
            verdicts=verdicts,
            calls=calls,
            shown=shown,
            reports=reports,
            retention=retention,
            relay_directory=relays,
            current=CurrentDocuments(where, settings.run, database, relays),
            environments=environments,
            announcements=announcements,
        )


async def _check_storage(url: str) -> None:
    """Raise StorageError when the store at `url` cannot be trusted with files; warn of a clock that is wrong."""
    if skew := await probe(url):
        log.warning(
            "the clocks of this machine and of storage differ",
            seconds=round(skew),
            hint="set this machine's clock (NTP): S3 refuses requests that are 15 minutes off",
        )
