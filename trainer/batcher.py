"""Collect accepted work until a batch can be closed or a time-out expires."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

from muster.errors import TRANSIENT, CheckError, MalformedError, NotFoundError, RefusedError
from muster.protocol.messages import Demand
from muster.protocol.terms import Terms
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.settings.schema import TrainerSettings
from trainer.accepted_work import AcceptedWork
from trainer.batches import Batch, BatchTerms, WorkFile, close_batch, too_stale
from trainer.learner import Learner
from trainer.publisher import Publisher

LOG_SECONDS: Final = 30.0
"""Between two log lines about missing work."""
NEWCOMER_SECONDS: Final = 30.0
"""Without work, accepted or under inspection, before steps are published for newcomers while others could work."""
NEWCOMER_STEPS: Final = 2
"""Such steps in `idle_seconds`: as many as a newcomer needs. They age the work of others, so the async level bounds
them too: a stranger who registers key after key cannot make others' work stale."""
IDLE_STEPS: Final = 8
"""Steps for newcomers in `idle_seconds` while no worker could commit. They make no work stale, but each costs gas and a
published checkpoint: this bounds what a stranger with many keys, or a wrong count of the orchestrator, can cost."""
COMPLETE_SECONDS: Final = 30.0
"""How long no more work must be wanted, with all of it here, before a batch is closed with what there is."""

log = telemetry.logger("trainer")


class Batcher:
    """The batches of one run, one step after another."""

    def __init__(self, options: TrainerSettings, publisher: Publisher, work: AcceptedWork, terms: Terms) -> None:
        self._options = options
        self._publisher = publisher
        self._work = work
        self._terms = terms
        self._batch_terms = BatchTerms(options.batch_groups, options.max_files, terms.async_level)
        self._work_seen = time.monotonic()
        """When there was work the last time, across steps."""
        self._newcomer_steps: deque[float] = deque(maxlen=NEWCOMER_STEPS)
        """When the last steps for newcomers were published while others could work."""
        self._idle_steps: deque[float] = deque(maxlen=IDLE_STEPS)
        """When the last ones were published while no worker could commit."""
        self.without_signal: list[WorkFile] = []
        """Files of the step last filled that were refused: no group of them has a signal."""

    async def closed(self, learner: Learner, published: asyncio.Event) -> tuple[Batch, list[WorkFile]] | None:
        """Return the batch closed for this step before a restart, or a new one; None when there is no work at all.

        Raises UnreachableError when files of a closed batch cannot be fetched: another batch is closed only when they
        are gone, or not what they were.
        """
        closed = learner.checkpoints.closed_batch(learner.step)
        if closed is not None:
            try:
                fetched = await self._publisher.retry(lambda: asyncio.gather(*map(self._work.fetch, closed.files)))
            except CheckError as error:
                if isinstance(error, RefusedError) and not isinstance(error, NotFoundError):
                    raise
                log.error("the closed batch cannot be fetched any more; closing another", error=str(error))
                learner.checkpoints.drop_batch(learner.step)
            else:
                return closed, fetched
        batch = await self.fill(learner, published)
        if batch is None:
            return None
        await asyncio.to_thread(learner.checkpoints.close_batch, batch)
        failpoint("trainer.closed")
        by_hash = {file.ref.file_hash: file for file in self._work.files}
        return batch, [by_hash[ref.file_hash] for ref in batch.files]

    async def fill(self, learner: Learner, published: asyncio.Event) -> Batch | None:
        """Collect accepted work until a batch can be closed; return None to publish the same weights again instead.

        None is returned after `idle_seconds` without any work; when newcomers wait and no worker commits; and when no
        group has a signal after `batch_wait_seconds`, or once no more work will come. Both times begin when the step is
        on chain. The log says what it waits for.
        """
        step, oldest = learner.step, max(0, learner.step - self._terms.async_level)
        logged = started = last_work = time.monotonic()
        self.without_signal = []
        complete: float | None = None
        """Since when all the work that there will be is here."""
        while True:
            # 1. Poll the orchestrator. The clocks stand still while its list or the chain's step is not there yet.
            if not await self._poll(learner, oldest):
                last_work = time.monotonic()  # there may be some
            if not published.is_set():
                started = last_work = time.monotonic()

            # 2. Close a batch that is large enough.
            batch = await self._close(step)
            if batch is not None:
                return batch

            # 3. Close a smaller one when no more work will come, or after `batch_wait_seconds`.
            now = time.monotonic()
            waiting = now - started
            all_is_here = published.is_set() and await self._all_is_here(step)
            complete = (complete or now) if all_is_here else None
            at_last = waiting > self._options.batch_wait_seconds
            if complete is not None and now - complete >= COMPLETE_SECONDS:
                at_last = True
                log.warning(
                    "the orchestrator wants no more work: closing a batch with what there is",
                    files=len(self._work.files),
                    wanted_groups=self._options.batch_groups,
                    hint="raise orchestrator.batch_groups or demand_batches, or lower trainer.batch_groups",
                )
            if at_last and (batch := await self._close(step, at_last=True)) is not None:
                return batch
            if at_last and self._work.files:
                # Demand counts these files: kept, they would keep away the work that could end the waiting.
                self.without_signal = self._work.refuse_all()
                refused = len(self.without_signal)
                log.warning("no group of the waiting work has a signal: refusing it", files=refused, step=step)
                await self._publisher.report_again()
                return None

            # 4. Give the step up when no work comes.
            if self._work.waits:
                last_work = self._work_seen = time.monotonic()
            if time.monotonic() - last_work > self._options.idle_seconds:
                return None
            if published.is_set() and not self._work.waits and await self._newcomers_wait(step):
                return None

            # 5. Now and then, see that the step is still on chain, and say what is awaited.
            if time.monotonic() - logged > LOG_SECONDS:
                logged = time.monotonic()
                log.info("waiting for accepted work", step=step, files=len(self._work.files), seconds=round(waiting))
                if published.is_set():
                    await self._publisher.anchor_again()
            await asyncio.sleep(self._options.poll_seconds)

    async def _poll(self, learner: Learner, oldest: int) -> bool:
        """Fetch accepted work and drop what is too stale; return whether the orchestrator listed any work at all."""
        listed = True
        try:
            polled = await self._work.poll(oldest, learner.metadata.used)
        except TRANSIENT as error:
            log.warning("cannot list accepted work", error=str(error))
            listed = isinstance(error, MalformedError)  # a list too long to be read grows shorter as steps go by
        else:
            if polled.refused:
                await self._publisher.report_again()
            if polled.fresh:
                log.debug("accepted work", new=polled.fresh, files=len(self._work.files), step=learner.step)
        stale = too_stale(self._work.files, learner.step, self._terms.async_level)
        self._work.forget((file.ref.file_hash for file in stale), oldest)
        return listed

    async def _close(self, step: int, *, at_last: bool = False) -> Batch | None:
        return await asyncio.to_thread(close_batch, self._work.files, step, self._batch_terms, at_last=at_last)

    async def _demand(self) -> Demand | None:
        try:
            return await self._publisher.client.demand(self._publisher.settings.run)
        except TRANSIENT:
            return None

    async def _newcomers_wait(self, step: int) -> bool:
        """Return whether to publish these weights again now, so that workers who joined can begin.

        A worker begins at the second step after it joined. While no other worker could commit, publishing makes no work
        stale: it is done up to IDLE_STEPS times in `idle_seconds`. While another could, but no work comes, it is
        done up to NEWCOMER_STEPS times.
        """
        demand, now = await self._demand(), time.monotonic()
        if demand is None:
            return False
        if demand.waiting_groups:
            self._work_seen = now
        if demand.step != step or demand.waiting_groups or not demand.newcomers:
            return False
        taken, most = self._idle_steps, IDLE_STEPS
        if demand.able_workers:
            if now - self._work_seen < NEWCOMER_SECONDS:
                return False
            taken, most = self._newcomer_steps, min(NEWCOMER_STEPS, self._terms.async_level)
        if sum(now - then < self._options.idle_seconds for then in taken) >= most:
            return False
        taken.append(now)
        log.info("publishing for newcomers", step=step + 1, newcomers=demand.newcomers, able=demand.able_workers)
        return True

    async def _all_is_here(self, step: int) -> bool:
        """Return whether no more work of this step is wanted and all that was made is here.

        Then no batch will become larger. The orchestrator says so; it could as well list no work at all.
        """
        if not self._work.files or (demand := await self._demand()) is None:
            return False
        here = len(self._work.files) * self._terms.groups_per_commitment
        return demand.step == step and not demand.wanted and demand.waiting_groups <= here
