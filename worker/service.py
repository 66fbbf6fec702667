"""The worker: one half makes work, the other delivers it, so that the engine never waits for a block.

Between them is the journal, which a crash leaves as it was: what is in it is delivered, or discarded once the chain
can no longer take it.
"""

from __future__ import annotations

import asyncio

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.keys import load_signer
from muster.errors import TRANSIENT
from muster.http import OrchestratorClient
from muster.journal import FolderLock
from muster.process import run_together
from muster.relays import Relays
from muster.run_data import Checkpoints
from muster.settings import Settings
from worker.defence import Defender
from worker.delivery import Courier
from worker.engine import Engine
from worker.journal import WorkJournal
from worker.policy import NewestCheckpoint
from worker.production import Producer
from worker.sharing import share
from worker.workplace import Patience, Workplace, take_turns

log = telemetry.logger("worker")


async def serve(settings: Settings, engine: type[Engine] = Engine) -> None:
    """Work with these settings until cancelled. `engine` is the class that generates."""
    with FolderLock(settings.worker.state_dir):
        signer = await asyncio.to_thread(load_signer, settings.keys, settings.chain.chain_id)
        folder = settings.worker.state_dir / "transactions"
        async with (
            await Chain.connect(settings.chain, signer, journal_folder=folder) as chain,
            OrchestratorClient(
                settings.orchestrator.url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry
            ) as client,
        ):
            log.info("ready", node=signer.address, run=settings.run)
            identity = f"{signer.address} on chain {chain.chain_id} at {chain.addresses.runs}"
            journal = WorkJournal(settings.worker.state_dir, identity)
            try:
                terms = await chain.terms(settings.run)
                await _work(Workplace(settings, chain, client, terms, journal), engine)
            finally:
                journal.close()


async def _work(place: Workplace, engine: type[Engine]) -> None:
    """Make, deliver and defend until one of them fails."""
    pause = place.settings.worker.poll_seconds
    relays = Relays(place.settings.shardcast, place.client, place.run)
    newest = await _prepare(place, relays)
    producer, courier = Producer(place, newest, engine), Courier(place)
    try:
        jobs = [
            newest.follow(),
            Defender(place).watch(),
            take_turns(producer.turn, place.delivered, pause),
            take_turns(courier.turn, place.saved, pause),
        ]
        if place.settings.shardcast.share:
            jobs.append(share(place.weights, place.run, place.settings.shardcast, place.client, relays))
        await run_together(*jobs)
    finally:
        await producer.close()


async def _prepare(place: Workplace, relays: Relays) -> NewestCheckpoint:
    """What is needed once: an end to what an earlier life sent to the chain, an answer to cases that were opened
    meanwhile (a retired node gets no further than this), and somebody to fetch weights from."""
    shardcast, patience = place.settings.shardcast, Patience(place.settings.worker.poll_seconds)
    while True:
        try:
            await place.chain.settle()
            await Defender(place).look()
            await relays.urls()
        except TRANSIENT as error:
            await patience.wait(str(error))
            continue
        checkpoints = Checkpoints(place.chain, place.run, place.terms, relays, shardcast, place.weights)
        return NewestCheckpoint(place.chain, place.run, checkpoints, place.settings.chain.poll_seconds)
