"""The worker: a producer makes work and a committer delivers it, so that the engine never waits for a block.

Between them is the journal, which survives a crash: what it holds is delivered, or discarded once the chain can no
longer take it.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from muster.clients.gas_watch import read_gas
from muster.clients.machine_report import MachineReporter
from muster.clients.node_session import node_session
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.relays import Relays
from muster.clients.run_data import CheckpointFetcher, fetch_profile
from muster.errors import CheckError, ConfigError, RefusedError
from muster.models.matmul import choose_matmul
from muster.models.numerics import device_kind, device_name
from muster.protocol.messages import RelayOffer
from muster.runtime import telemetry
from muster.runtime.files import use_temporary_folder
from muster.runtime.loop import PollLoop
from muster.runtime.notify import notifying
from muster.runtime.process import run_together
from muster.settings.schema import Settings, ShardcastSettings
from muster.shardcast.serve.origin import LocalVersions
from muster.shardcast.serve.routes import Stats, listening
from muster.verification.devices import check_device
from worker.claimer import POLL_SECONDS as CLAIM_SECONDS
from worker.claimer import Claimer
from worker.committer import Committer
from worker.context import FATAL, WorkerContext
from worker.decisions import waiting_reason
from worker.defender import POLL_SECONDS, Defender
from worker.engine import Engine
from worker.journal import WorkJournal
from worker.producer import Producer
from worker.watch import POLL_SECONDS as WATCH_SECONDS
from worker.watch import WorkerWatch
from worker.weights import NewestCheckpoint

OFFER_SECONDS: Final = 240.0
"""Between two offers of what this worker shares; an offer lasts ten minutes."""

OFFER_RETRY_SECONDS: Final = 15.0
"""Pause after an offer that was not accepted."""

log = telemetry.logger("worker")


async def serve(settings: Settings, engine: type[Engine] = Engine) -> None:
    """Work with these settings until cancelled. `engine` is the class that generates."""
    state = settings.worker.state_dir
    async with notifying(settings, state, "worker") as notifier, node_session(settings, state) as session:
        notifier.node = session.node
        use_temporary_folder(state.absolute() / "temporary")
        matmul = choose_matmul(settings.bfloat16_matmul, device_kind())
        log.info("ready", node=session.node, run=settings.run, matmul=matmul)
        with closing(WorkJournal(state, session.identity)) as journal:
            terms = await session.chain.terms(settings.run)
            profile = await PollLoop(log, "profile", settings.chain.poll_seconds).until_done(
                lambda: fetch_profile(session.client, terms, state)
            )
            check_device(profile, device_kind())
            await session.chain.check_gas()
            context = WorkerContext(settings, session.chain, session.client, terms, profile, journal, notifier)
            await _work(context, engine)


async def _work(context: WorkerContext, engine: type[Engine]) -> None:
    """Produce, commit and defend until one of these fails."""
    pause = context.settings.chain.poll_seconds
    relays = Relays(context.settings.shardcast, context.client, context.run)
    newest = await _prepare(context, relays)
    claimer = Claimer(context)
    producer, committer = Producer(context, newest, engine), Committer(context, claimer)
    try:
        jobs = [
            PollLoop(log, "weights", pause).run(newest.poll),
            PollLoop(log, "defend", POLL_SECONDS).run(Defender(context).dismiss_open),
            PollLoop(log, "claim", CLAIM_SECONDS).run(claimer.poll),
            PollLoop(log, "produce", pause, fatal=FATAL).run(producer.poll, context.delivered),
            PollLoop(log, "commit", pause, fatal=FATAL).run(committer.poll, context.saved),
        ]
        if context.notifier.host:
            jobs.append(PollLoop(log, "notifications", WATCH_SECONDS).run(WorkerWatch(context).poll))
        if context.settings.worker.report_machine:
            devices = context.settings.worker.tensor_parallel if device_kind() == "cuda" else 1
            gas = partial(read_gas, context.chain, context.client)
            reporter = MachineReporter(context.client, context.run, context.rate, device_name, devices, gas=gas)
            jobs.append(reporter.run())
        jobs.append(share(context.weights, context.run, context.settings.shardcast, context.client, relays))
        await run_together(*jobs)
    finally:
        await producer.weights.close()
        await producer.close()


async def _prepare(context: WorkerContext, relays: Relays) -> NewestCheckpoint:
    """Finish what an earlier process began, and return where to fetch weights from.

    Transactions that it sent are awaited, cases opened meanwhile are answered, relays are found. A retired node gets no
    further than the cases. Raises FATAL errors, and as `waiting_reason` does.
    """

    async def attempt() -> None:
        await context.chain.await_pending()
        await Defender(context).dismiss_open()
        waiting_reason(await context.facts())
        await relays.urls()

    settings = context.settings
    await PollLoop(log, "prepare", settings.chain.poll_seconds, fatal=FATAL).until_done(attempt)
    checkpoints = CheckpointFetcher(context.chain, context.terms, relays, context.weights)
    return NewestCheckpoint(context.chain, context.run, checkpoints)


async def share(
    folder: Path, run: int, settings: ShardcastSettings, client: OrchestratorClient, relays: Relays
) -> None:
    """Serve the versions in `folder` until cancelled, and let `relays` not fetch from here.

    Returns after one line in the log where the settings say no, the port is taken, or the orchestrator refuses the URL.
    """
    if not settings.share:
        return
    offering = PollLoop(log, "offer", OFFER_RETRY_SECONDS, fatal=(_UnusableError,))
    try:
        async with listening("worker", LocalVersions(folder), Stats(), settings) as port:
            offer = RelayOffer(run=run, url=settings.url or f"http://{settings.host}:{port}")
            relays.own = offer.url.rstrip("/")
            while True:
                await offering.until_done(lambda: _offer(client, offer))
                await asyncio.sleep(OFFER_SECONDS)
    except (ConfigError, _UnusableError) as error:
        relays.own = ""
        log.warning("not sharing weights", why=str(error), next=error.hint)


class _UnusableError(CheckError):
    """The orchestrator does not list this node's URL."""


async def _offer(client: OrchestratorClient, offer: RelayOffer) -> None:
    """Offer once. Raises _UnusableError for a URL that asking again does not help, else as `OrchestratorClient.say`."""
    try:
        await client.say("relay", offer)
    except RefusedError as error:
        if error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise _UnusableError(str(error), hint=error.hint) from error
        raise
    log.debug("sharing weights", url=offer.url)
