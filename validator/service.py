"""The validator: follow the chain, look, report, accuse, vote, seal, claim.

Seven loops share one journal. `follow` records the chain's events; the others do what the journal says is due, so each
can stop at any moment and go on after a restart. A loop logs what it
cannot reach, and tries again. Votes wait for no replay: what replays (`inspect`, `verify`, `accuse`) takes turns at the
model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from muster.chain.cursor import EventCursor
from muster.chain.draw_secret import load_draw_secret
from muster.chain.types import Block
from muster.clients.gas_watch import read_gas
from muster.clients.looks import LooksReader
from muster.clients.machine_report import MachineReporter, TokenRate
from muster.clients.node_session import NodeSession, node_session
from muster.constants import DRAW_CHAIN_LENGTH, HOUR_SECONDS, SAMPLE_BLOCKS
from muster.contracts import registry, runs
from muster.contracts.court import CaseOpened, CaseResolved
from muster.contracts.registry import Convicted, Retired, Role, Status
from muster.contracts.runs import WorkCommitted
from muster.errors import TRANSIENT, ConfigError, FinishedError, MusterError, UnreachableError
from muster.models.matmul import choose_matmul
from muster.protocol.draws import chain_preimages, link_of
from muster.protocol.hashes import keccak
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import AGAIN, IDLE, Next, PollLoop
from muster.runtime.notify import notifying
from muster.runtime.process import run_together
from muster.runtime.processor import processor_name
from muster.settings.schema import Settings
from muster.verification.rules import CommittedWork
from validator.challenger import Challenger
from validator.claimer import POLL_SECONDS as CLAIM_SECONDS
from validator.claimer import WageClaimer
from validator.context import RunVerificationContext, make_context
from validator.inspector import Inspector
from validator.journal import ValidatorJournal
from validator.juror import Juror
from validator.outbox import Outgoing, pause
from validator.pool import PoolJudge
from validator.ruling import turn_of
from validator.sealing import HourSealer
from validator.turns import is_ours
from validator.watch import POLL_SECONDS as WATCH_SECONDS
from validator.watch import ValidatorWatch

AT_ONCE: Final = 8
"""Commitments taken from the journal at a time."""

COURT_SECONDS: Final = 1.0
"""Pause between two polls of cases and hours."""

log = telemetry.logger("validator")
JUDGED = telemetry.counter("validator_judged", "Commitments judged", ("reason",))
ROWS = telemetry.counter("validator_rows_replayed", "Rows that went through the replay checks")
BACKLOG = telemetry.gauge("validator_backlog", "Commitments that wait to be inspected")
SECONDS = telemetry.histogram(
    "validator_inspection_seconds", "Time to judge a commitment", (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
)


LEAVE: Final = "muster validator withdraw --operator NAME, once unbonding is over: muster validator status says when"


class OutOfServiceError(MusterError):
    """Raised when this key was convicted: it can never inspect or vote again."""

    exit_code = 3


async def serve(settings: Settings, kind: type[Validator] | None = None) -> None:
    """Validate with these settings until cancelled. `kind`: class of the validator, if not an honest one."""
    state = settings.validator.state_dir
    async with notifying(settings, state, "validator") as notifier:
        links = await asyncio.to_thread(chain_preimages, load_draw_secret(state), DRAW_CHAIN_LENGTH)
        async with node_session(settings, state) as session, RolloutReader() as reader:
            notifier.node = session.node
            log.info("ready", node=session.node, run=settings.run, matmul=choose_matmul(settings.bfloat16_matmul))
            validator = (kind or Validator)(settings, session, reader, links)
            jobs = [validator.run()]
            if settings.validator.report_machine:
                gas = partial(read_gas, session.chain, session.client)
                reporter = MachineReporter(session.client, settings.run, TokenRate(), processor_name, gas=gas)
                jobs.append(reporter.run())
            if notifier.host:
                watch = ValidatorWatch(session.chain, session.client, notifier, state, settings.run)
                jobs.append(PollLoop(log, "notifications", WATCH_SECONDS).run(watch.poll))
            await run_together(*jobs)


class Validator:
    """One validator node at work. `run` does not return."""

    inspector_class = Inspector

    def __init__(self, settings: Settings, session: NodeSession, reader: RolloutReader, links: list[bytes]) -> None:
        self.settings = settings
        self.chain = session.chain
        self.client = session.client
        self.reader = reader
        self.links = links
        self.me = session.node
        state = settings.validator.state_dir
        self.journal = ValidatorJournal(state, session.identity, settings.run, self.me)
        kinds = (WorkCommitted, CaseOpened, CaseResolved, Convicted, Retired)
        self.cursor = EventCursor(self.chain, state / "cursor.json", kinds, "validator", run=settings.run)
        self._seen = -1
        """The block up to which the journal has every event."""
        self._retired = False
        self._news = asyncio.Event()
        """Set when the chain has a new block, or may have."""
        self._judged = asyncio.Event()
        """Set when there is a verdict to report."""

    async def run(self) -> None:
        try:
            poll = self.settings.chain.poll_seconds
            await PollLoop(log, "registration", poll).until_done(self.check_registration)
            await PollLoop(log, "transactions", poll).until_done(self._finish_transactions)
            prepare = partial(
                make_context, self.settings, self.chain, self.client, self.reader, self.settings.validator.state_dir
            )
            context = await PollLoop(log, "preparation", poll).until_done(prepare)
            with context.rules.scorers:
                await self.serve_run(context)
        finally:
            self.journal.close()

    async def serve_run(self, context: RunVerificationContext) -> None:
        """Follow, inspect, report, grade, judge and seal, until cancelled."""
        stagger, poll = self.settings.validator.stagger_seconds, self.settings.chain.poll_seconds
        inspector = self.inspector_class(context, self.chain.signer, PoolJudge(context, self.journal.pools))
        juror = Juror(self.chain, self.journal, context, stagger)
        challenger = Challenger(self.chain, self.journal, context, juror, stagger)
        sealer = HourSealer(self.chain, self.journal, self.settings.run, self.link_of)
        reader = LooksReader(self.chain, self.client, self.settings.run)
        claimer = WageClaimer(self.chain, reader, self.settings.validator.auto_claim_hours)
        await run_together(
            PollLoop(log, "follow", poll).run(self.follow),
            PollLoop(log, "inspect", poll).run(lambda: self._inspect(inspector), self._news),
            PollLoop(log, "report", poll).run(lambda: self._at_head(self.report), self._judged),
            PollLoop(log, "court", COURT_SECONDS).run(lambda: self._at_head(lambda head: self._court(juror, head))),
            PollLoop(log, "verify", COURT_SECONDS).run(lambda: self._at_head(juror.decide)),
            PollLoop(log, "accuse", COURT_SECONDS).run(lambda: self._at_head(challenger.poll)),
            PollLoop(log, "seal", COURT_SECONDS).run(lambda: self._seal(sealer)),
            PollLoop(log, "claim", CLAIM_SECONDS).run(claimer.poll),
        )

    # Starting

    async def check_registration(self) -> None:
        """Check that this key is a validator of the run. Raises what only its operator can mend."""
        node = await self.chain.call(registry.node(self.me))
        if node.status == Status.NONE:
            raise UnreachableError("this key is not registered yet: muster validator join")
        if node.role != Role.VALIDATOR or node.run != self.settings.run:
            raise ConfigError(
                f"this key is registered as a {node.role.name.lower()} of run {node.run}, not as a validator of run "
                f"{self.settings.run}",
                hint="set run, or use the key that was registered for it",
            )
        if keccak(self.links[0]) != node.draw_tip:
            raise ConfigError(
                "the draw secret in this folder is not the one the validator registered with",
                hint="restore it from a backup, or join with a new key and another operator",
            )
        if node.status == Status.JAILED:
            raise OutOfServiceError("this validator was convicted; it can no longer vote")
        self._retired = node.status != Status.ACTIVE
        self.journal.first_hour = node.registered_at // HOUR_SECONDS

    async def _finish_transactions(self) -> None:
        """Finish what an earlier process left on its way to the chain, and check the key's gas."""
        await self.chain.await_pending()
        await self.chain.check_gas()

    # Turns

    async def follow(self) -> Next:
        """Record the chain's next events."""
        batch = await self.cursor.poll()
        if batch.rewound_to is not None:  # the registration may be in another hour now
            await self.check_registration()
        self.journal.record(batch, time.time())
        await self.cursor.ack()
        if batch.last > self._seen:
            self._news.set()
        self._seen = batch.last
        for event in batch:
            if isinstance(event, Convicted) and event.node == self.me:
                raise OutOfServiceError("this validator was convicted; it can no longer vote")
            if isinstance(event, Retired) and event.node == self.me:
                self._retired = True
        return AGAIN if batch.more else IDLE

    async def _inspect(self, inspector: Inspector) -> Next:
        BACKLOG.set(self.journal.backlog())
        if self._retired:
            return IDLE
        items = self.journal.pending(self._seen - SAMPLE_BLOCKS + 1, time.time(), AT_ONCE)
        for commitment, seen_at in items:
            await self._judge(inspector, commitment, seen_at)
        return AGAIN if len(items) == AT_ONCE else IDLE

    async def _judge(self, inspector: Inspector, c: CommittedWork, seen_at: float) -> None:
        # 1. Inspect where there is a place for it, by the rows that the link of an hour draws.
        started, age = time.monotonic(), time.time() - seen_at
        try:
            if not await is_ours(c, self.chain, self.client, self.journal):
                return
            hour, wait = await self.sampling_hour(c), self.settings.validator.data_grace_seconds
            inspection = await inspector.inspect(
                c, self.link_of(hour), signs=hour == c.hour, missing_counts=age >= wait
            )
        except TRANSIENT as error:
            self.journal.postpone(c, time.time() + pause(age))
            log.warning("cannot judge yet", node=c.node, index=c.index, reason=str(error))
            return
        failpoint("validator.fetched")
        # 2. Sign the verdict; write it down with this validator's turn to accuse.
        verdict, evidence = inspector.conclude(c, inspection)
        accuse_at = None
        if inspection.guilty:
            rank = turn_of(self.me, await self.chain.validators(self.settings.run), f"accuse {c.node}")
            accuse_at = time.time() + rank * self.settings.validator.stagger_seconds
        seconds = time.monotonic() - started
        self.journal.judge(c, verdict, evidence, accuse_at=accuse_at, pooled=inspection.pooled)

        # 3. Let it be reported.
        self._judged.set()
        JUDGED.labels(reason=verdict.reason or "accepted").inc()
        ROWS.inc(verdict.inspected)
        SECONDS.observe(seconds)
        log.info(
            "judged",
            node=c.node,
            index=c.index,
            step=c.step,
            accepted=verdict.accepted,
            reason=verdict.reason,
            position=verdict.position,
            detail=inspection.why,
            measured=verdict.measured,
            threshold=verdict.threshold,
            rows=verdict.inspected,
            seconds=round(seconds, 3),
        )

    def link_of(self, hour: int) -> bytes:
        """Return the link of this validator's hash chain for an hour. Raises UnreachableError."""
        return link_of(self.links, self.journal.first_hour, hour)

    async def sampling_hour(self, c: CommittedWork) -> int:
        """Return the hour by whose link a commitment is sampled: its own, or this one once a seal has shown that link.

        A worker that knew its sample could decide by it whether to show its file.
        """
        sealed = (await self.chain.call(runs.sealer_of(self.me))).last_sealed
        return c.hour if c.hour > sealed else (await self.chain.head()).timestamp // HOUR_SECONDS

    async def report(self, head: Block) -> Next:
        """Send verdicts to the orchestrator. `head`: a block up to which the journal has every event."""
        return await self.journal.verdicts.send(self._report, head.timestamp)

    async def _report(self, item: Outgoing) -> None:
        """Send one, after the evidence that it names."""
        if evidence := self.journal.evidence(item.commitment):
            await self.client.put_evidence(evidence)
        await self.client.post_verdict(item.document)

    async def _at_head(self, turn: Callable[[Block], Awaitable[Next]]) -> Next:
        """Take a turn at the latest block, once the journal has every event up to it."""
        head = self.cursor.head
        is_read = head is not None and self._seen >= head.number - self.settings.chain.confirmations
        return await turn(head) if head is not None and is_read else IDLE

    async def _court(self, juror: Juror, head: Block) -> Next:
        await juror.poll(head)
        if self._retired and not self.journal.cases():
            raise FinishedError("this validator has retired, and nothing is left for it to do", hint=LEAVE)
        return IDLE

    async def _seal(self, sealer: HourSealer) -> Next:
        head = self.cursor.head
        if head is None or self._seen < 0 or self._retired:
            return IDLE
        return await sealer.poll(head if head.number == self._seen else await self.chain.block(self._seen))
