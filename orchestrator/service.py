"""Everything a running orchestrator is made of, put together once and taken apart in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from muster.chain.client import Chain
from muster.chain.keys import Signer
from muster.errors import ConfigError, StorageError
from muster.messages import RunInfo
from muster.settings import Settings
from muster.signing import domain
from orchestrator.auth import Gate
from orchestrator.database import Database
from orchestrator.directory import Directory
from orchestrator.follower import Follower
from orchestrator.ledger import Ledger
from orchestrator.newcomers import offer_files, run_info, warn_of_lacks
from orchestrator.rebuild import rebuild
from orchestrator.reports import Reports
from orchestrator.summary import Summaries
from orchestrator.uploads import Uploads
from orchestrator.verdicts import Verdicts


@dataclass(frozen=True)
class Service:
    """What routes are written against."""

    settings: Settings
    info: RunInfo
    database: Database
    ledger: Ledger
    follower: Follower
    gate: Gate
    uploads: Uploads
    verdicts: Verdicts
    reports: Reports
    directory: Directory
    summaries: Summaries

    @property
    def run(self) -> int:
        return self.settings.run

    async def unready(self) -> list[str]:
        """Why this service cannot do its work now; empty when it can."""
        reasons = self.follower.unready()
        try:
            async with asyncio.timeout(5):
                await self.uploads.files.check()
        except StorageError as error:
            reasons.append(str(error))
        except TimeoutError:
            reasons.append("storage does not answer in 5 s")
        return reasons


@asynccontextmanager
async def serving(settings: Settings, signer: Signer) -> AsyncIterator[Service]:
    """A service that follows the chain until left.

    Raises ConfigError when the settings contradict the chain or the database, UnreachableError when the chain does
    not answer, StorageError when nothing can be kept.
    """
    ours = settings.orchestrator
    async with AsyncExitStack() as stack:
        chain = await Chain.connect(settings.chain)
        stack.push_async_callback(chain.close)
        terms = await chain.terms(settings.run)
        if signer.address != terms.storage_key:
            raise ConfigError(
                f"this key is {signer.address}, but run {settings.run} trusts receipts of {terms.storage_key} only",
                hint="set keys.keystore to the run's storage key",
            )
        book = chain.addresses
        where = domain(chain.chain_id, book.registry)
        about = f"run {settings.run} of {book.runs} on chain {chain.chain_id}"
        database = await Database.open(ours.database_url, about)
        stack.push_async_callback(database.close)
        spool = ours.state_dir / "uploads"
        await asyncio.to_thread(_fresh_spool, spool)
        ledger = Ledger(
            database, settings.run, terms, batch_groups=ours.batch_groups, demand_batches=ours.demand_batches
        )
        follower = Follower(chain, database, ledger, settings.chain)
        storage_url = ours.storage_url
        uploads = Uploads(
            where,
            signer,
            ledger,
            database,
            storage_url=storage_url,
            spool=spool,
            at_once=ours.uploads_at_once,
            seconds=ours.upload_seconds,
        )
        verdicts = Verdicts(where, ledger, follower, database, storage_url=storage_url)
        reports = Reports(ledger, database, storage_url=storage_url)
        files = await offer_files(ours.run_folder, uploads.files)
        await warn_of_lacks(terms, settings.shardcast.relays, uploads.files)
        await rebuild(
            database, where, settings.run, terms.storage_key, uploads=uploads, verdicts=verdicts, reports=reports
        )
        await stack.enter_async_context(follower.following())
        yield Service(
            settings=settings,
            info=run_info(settings.run, book, terms, settings.shardcast.relays, files),
            database=database,
            ledger=ledger,
            follower=follower,
            gate=Gate(where, ours.url, ours.hosts, database=database, ledger=ledger, follower=follower),
            uploads=uploads,
            verdicts=verdicts,
            reports=reports,
            directory=Directory(settings.run, ours.url, settings.shardcast.relays, database, storage_url=storage_url),
            summaries=Summaries(database, ledger, follower, chain.chain_id),
        )


def _fresh_spool(folder: Path) -> None:
    """An empty spool folder: what a killed process left in it belongs to nobody."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("upload-*"):
            left.unlink()
    except OSError as error:
        raise StorageError(f"state folder {folder}: {error.strerror}", hint="set orchestrator.state_dir") from error
