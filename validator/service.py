"""The validator: follow the chain, inspect, tell, accuse, judge, seal.

Five loops share one journal. `follow` takes in what the chain tells; the others do what the journal says is due, so
each can stop at any moment and go on after a restart. A loop that cannot reach something says so and tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from eth_utils.crypto import keccak

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.contracts import registry
from muster.chain.contracts.court import CaseOpened, CaseResolved
from muster.chain.contracts.registry import Convicted, Retired, Role, Status
from muster.chain.contracts.runs import WorkCommitted
from muster.chain.cursor import EventCursor
from muster.chain.keys import load_signer
from muster.constants import DRAW_CHAIN_LENGTH, HOUR_SECONDS, SAMPLE_BLOCKS
from muster.draw_secret import load_draw_secret
from muster.draws import chain_preimages
from muster.errors import TRANSIENT, ConfigError, MusterError, RefusedError, UnreachableError
from muster.failpoints import failpoint
from muster.http import OrchestratorClient
from muster.journal import FolderLock
from muster.process import run_together, wait_for_bell
from muster.rollouts.reader import RolloutReader
from muster.sample_policy import SamplePolicy
from muster.settings import Settings
from validator.bench import RunBench, make_bench
from validator.court import Court, turn_of
from validator.inspector import Inspector
from validator.journal import ValidatorJournal
from validator.records import Pending, Unsent
from validator.sealing import Sealing

AT_ONCE: Final = 8
"""Commitments and verdicts taken from the journal at a time."""

MAX_REFUSALS: Final = 10
"""Times the orchestrator may find fault with a verdict before it is told no more."""

NOT_ITS_FAULT: Final = frozenset({401, 403, 404, 408, 429})
"""Statuses that say nothing about a verdict: the orchestrator may not have read the chain as far as we have, so that it
knows neither this validator nor the commitment, clocks may differ, and it may be busy."""

RETRY_SECONDS: Final = 2.0
"""Pause before a commitment or verdict is tried again; it grows, up to a minute."""

MAX_RETRY_SECONDS: Final = 60.0

COURT_SECONDS: Final = 1.0
"""Pause between two looks at cases and hours."""

log = telemetry.logger("validator")
JUDGED = telemetry.counter("validator_judged", "Commitments judged", ("reason",))
ROWS = telemetry.counter("validator_rows_replayed", "Rows that went through the dear checks")
BACKLOG = telemetry.gauge("validator_backlog", "Commitments that wait to be judged")
SECONDS = telemetry.histogram(
    "validator_inspection_seconds", "Time to judge a commitment", (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
)


T = TypeVar("T")


class OutOfServiceError(MusterError):
    """This key will never judge again: it was convicted, or has retired. Starting it again changes nothing."""

    exit_code = 3


async def serve(settings: Settings) -> None:
    """Validate with these settings until cancelled."""
    state = settings.validator.state_dir
    with FolderLock(state):
        signer = await asyncio.to_thread(load_signer, settings.keys, settings.chain.chain_id)
        links = await asyncio.to_thread(chain_preimages, load_draw_secret(state), DRAW_CHAIN_LENGTH)
        async with (
            await Chain.connect(settings.chain, signer, journal_folder=state / "transactions") as chain,
            OrchestratorClient(
                settings.orchestrator.url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry
            ) as client,
            RolloutReader() as reader,
        ):
            log.info("ready", node=signer.address, run=settings.run)
            await Validator(settings, chain, client, reader, links).run()


class Validator:
    """One validator node at work. `run` does not return."""

    def __init__(
        self,
        settings: Settings,
        chain: Chain,
        client: OrchestratorClient,
        reader: RolloutReader,
        links: list[bytes],
    ) -> None:
        self.settings = settings
        self.chain = chain
        self.client = client
        self.reader = reader
        self.links = links
        self.me = chain.signer.address
        state = settings.validator.state_dir
        identity = f"{self.me} on chain {chain.chain_id} at {chain.addresses.runs}"
        self.journal = ValidatorJournal(state, identity, settings.run, self.me)
        kinds = (WorkCommitted, CaseOpened, CaseResolved, Convicted, Retired)
        self.cursor = EventCursor(chain, state / "cursor.json", kinds, "validator", run=settings.run)
        self._seen = -1
        """The block up to which the journal knows everything."""
        self._retired = False
        self._said: dict[str, str] = {}
        self._news = asyncio.Event()
        """Rings when the chain has a new block, or may have."""
        self._judged = asyncio.Event()
        """Rings when there is a verdict to tell."""

    async def run(self) -> None:
        try:
            await self._until("registration", self._registered)
            await self._until("transactions", self._settled)
            bench = await self._until("preparation", self._bench)
            await self._loops(bench)
        finally:
            self.journal.close()

    async def _loops(self, bench: RunBench) -> None:
        policy, stagger = SamplePolicy.of(self.settings.validator), self.settings.validator.stagger_seconds
        inspector = Inspector(bench, self.chain.signer, self.links, policy)
        court = Court(self.chain, self.client, self.journal, bench, stagger)
        sealing = Sealing(self.chain, self.journal, self.settings.run)
        poll = self.settings.chain.poll_seconds
        await run_together(
            self._loop("follow", self._follow, poll),
            self._loop("inspect", lambda: self._inspect(inspector), poll, self._news),
            self._loop("tell", self._tell, poll, self._judged),
            self._loop("court", lambda: self._court(court), COURT_SECONDS),
            self._loop("seal", lambda: self._seal(sealing), COURT_SECONDS),
        )

    # Starting

    async def _registered(self) -> bool:
        """Whether this key is a validator of the run. Raises when it never will be."""
        node = await self.chain.ask(registry.node(self.me))
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
            raise OutOfServiceError("this validator was convicted; it judges nobody any more")
        self._retired = node.status != Status.ACTIVE
        self.journal.first_hour = node.registered_at // HOUR_SECONDS
        return True

    async def _settled(self) -> bool:
        """See through what an earlier life left on its way to the chain."""
        await self.chain.settle()
        return True

    async def _bench(self) -> RunBench:
        return await make_bench(self.settings, self.chain, self.client, self.reader, self.settings.validator.state_dir)

    async def _until(self, name: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, saying why it does not."""
        while True:
            try:
                return await attempt()
            except TRANSIENT as error:
                self._say(name, str(error))
            await asyncio.sleep(self.settings.chain.poll_seconds)

    async def _loop(
        self, name: str, turn: Callable[[], Awaitable[bool]], pause: float, bell: asyncio.Event | None = None
    ) -> None:
        """Take turns for ever; after one that says it had nothing to do, or that failed for want of others, wait for
        the bell, and no longer than `pause` seconds."""
        bell = bell or asyncio.Event()
        while True:
            bell.clear()
            try:
                busy = await turn()
                self._said.pop(name, None)
            except TRANSIENT as error:
                self._say(name, str(error))
                busy = False
            if not busy:
                await wait_for_bell(bell, pause)

    def _say(self, name: str, reason: str) -> None:
        """Log why something waits, once per reason."""
        if self._said.get(name) != reason:
            self._said[name] = reason
            log.warning("waiting", what=name, reason=reason)

    # Turns

    async def _follow(self) -> bool:
        batch = await self.cursor.poll()
        self.journal.record(batch, time.time())
        await self.cursor.ack()
        if batch.last > self._seen:
            self._news.set()
        self._seen = batch.last
        for event in batch:
            if isinstance(event, Convicted) and event.node == self.me:
                raise OutOfServiceError("this validator was convicted; it judges nobody any more")
            if isinstance(event, Retired) and event.node == self.me:
                self._retired = True
        return batch.more

    async def _inspect(self, inspector: Inspector) -> bool:
        BACKLOG.set(self.journal.backlog())
        if self._retired:
            return False
        items = self.journal.pending(self._seen - SAMPLE_BLOCKS + 1, time.time(), AT_ONCE)
        for item in items:
            await self._judge(inspector, item)
        return len(items) == AT_ONCE

    async def _judge(self, inspector: Inspector, item: Pending) -> None:
        c, started = item.commitment, time.monotonic()
        link = self.journal.take_link(c)
        age = time.time() - item.seen_at
        try:
            judgement = await inspector.judge(
                c,
                link,
                suspect=self.journal.was_rejected(c.node),
                missing_counts=age >= self.settings.validator.data_grace_seconds,
            )
        except TRANSIENT as error:
            self.journal.postpone(c, time.time() + _pause(age))
            log.warning("cannot judge yet", node=c.node, index=c.index, reason=str(error))
            return
        failpoint("validator.fetched")
        accuse_at = None
        if judgement.accuse:
            rank = turn_of(self.me, await self.chain.validators(self.settings.run), f"accuse {c.node}")
            accuse_at = time.time() + rank * self.settings.validator.stagger_seconds
        verdict, seconds = judgement.verdict, time.monotonic() - started
        self.journal.judge(c, verdict, judgement.evidence, accuse_at=accuse_at)
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
            detail=judgement.detail,
            measured=verdict.measured,
            threshold=verdict.threshold,
            rows=verdict.inspected,
            seconds=round(seconds, 3),
        )

    async def _tell(self) -> bool:
        """Evidence first, then the verdict that names it."""
        told = self.journal.unsent(time.time(), AT_ONCE)
        for item in told:
            try:
                if item.evidence is not None:
                    await self.client.put_evidence(item.evidence)
                await self.client.post_verdict(item.verdict)
            except RefusedError as error:
                self._refused(item, error)
                continue
            except TRANSIENT:  # the next turn begins with another one
                self.journal.put_off(item.verdict, time.time())
                raise
            self.journal.sent(item.verdict)
        return len(told) == AT_ONCE

    def _refused(self, item: Unsent, error: RefusedError) -> None:
        """Try it again later: for ever, unless it is the verdict that is wrong."""
        now, its_fault = time.time(), 400 <= error.status < 500 and error.status not in NOT_ITS_FAULT
        final = its_fault and item.refusals + 1 >= MAX_REFUSALS
        log.warning("a verdict was refused", index=item.verdict.index, final=final, error=str(error))
        if its_fault:
            wait = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2**item.refusals)
            self.journal.refused(item.verdict, retry_at=None if final else now + wait)
        else:
            self.journal.put_off(item.verdict, now + _pause(now - item.seen_at))

    async def _court(self, court: Court) -> bool:
        head = await self.chain.head()
        if self._seen >= head.number - self.settings.chain.confirmations:
            await court.turn(head)
        if self._retired and not self.journal.cases():
            raise OutOfServiceError("this validator has retired, and nothing is left for it to do")
        return False

    async def _seal(self, sealing: Sealing) -> bool:
        if self._seen < 0 or self._retired:
            return False
        return await sealing.turn(await self.chain.block(self._seen))


def _pause(age: float) -> float:
    """Seconds until something is tried again that others, or time, must mend; it was first seen `age` seconds ago."""
    return min(MAX_RETRY_SECONDS, RETRY_SECONDS + age / 4)
