"""From accepted work to a closed batch: what an update waits for, and when it waits no longer."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from muster import telemetry
from muster.errors import TRANSIENT, CheckError, MalformedError, RefusedError
from muster.failpoints import failpoint
from muster.settings import TrainerSettings
from muster.terms import Terms
from trainer.batches import Batch, BatchTerms, WorkFile, close_batch, too_stale
from trainer.intake import NOT_FOUND, Intake
from trainer.learner import Learner
from trainer.publisher import Publisher

SAID_SECONDS: Final = 30.0
"""Between two lines of the log about work that does not come."""
COMPLETE_SECONDS: Final = 30.0
"""For how long nobody must be asked for more work, and all there is be here, before a batch is closed with that."""

log = telemetry.logger("trainer")


class Gathering:
    """The batches of one run, one step after another."""

    def __init__(self, options: TrainerSettings, publisher: Publisher, intake: Intake, terms: Terms) -> None:
        self._options = options
        self._publisher = publisher
        self._intake = intake
        self._terms = terms
        self._batch_terms = BatchTerms(options.batch_groups, options.max_files, terms.async_level)

    async def closed(self, learner: Learner, published: asyncio.Event) -> tuple[Batch, list[WorkFile]] | None:
        """The batch that an earlier life closed for this step, or a new one; None when there is no work at all.

        Raises UnreachableError when files of a closed batch cannot be asked for: another batch is closed only when
        they are gone, or not what they were.
        """
        closed = learner.checkpoints.closed_batch(learner.step)
        if closed is not None:
            try:
                fetched = await self._publisher.patiently(lambda: self._fetch_all(closed))
            except CheckError as error:
                if isinstance(error, RefusedError) and error.status != NOT_FOUND:
                    raise
                log.error("the closed batch cannot be had any more; closing another", error=str(error))
                learner.checkpoints.drop_batch(learner.step)
            else:
                return closed, fetched
        batch = await self.fill(learner, published)
        if batch is None:
            return None
        await asyncio.to_thread(learner.checkpoints.close_batch, batch)
        failpoint("trainer.closed")
        by_hash = {file.ref.file_hash: file for file in self._intake.files}
        return batch, [by_hash[ref.file_hash] for ref in batch.files]

    async def _fetch_all(self, batch: Batch) -> list[WorkFile]:
        return list(await asyncio.gather(*(self._intake.fetch(ref) for ref in batch.files)))

    async def fill(self, learner: Learner, published: asyncio.Event) -> Batch | None:
        """Look for accepted work until a batch can be closed; None when there is none for `idle_seconds`, or when all
        that came teaches nothing, after `patience_seconds` or when no more is to come. Both are counted from when the
        step is on chain.

        Says in the log what it waits for.
        """
        step, oldest = learner.step, max(0, learner.step - self._terms.async_level)
        said = started = last_work = time.monotonic()
        complete: float | None = None
        """Since when all the work that there will be is here."""
        while True:
            if not await self._look(learner, oldest):
                last_work = time.monotonic()  # there may be some
            if not published.is_set():
                started = last_work = time.monotonic()
            batch = await self._close(step)
            if batch is not None:
                return batch
            now = time.monotonic()
            waiting = now - started
            all_is_here = published.is_set() and await self._all_is_here(step)
            complete = (complete or now) if all_is_here else None
            at_last = waiting > self._options.patience_seconds
            if complete is not None and now - complete >= COMPLETE_SECONDS:
                at_last = True
                log.warning(
                    "the orchestrator asks for no more work: closing a batch with what there is",
                    files=len(self._intake.files),
                    wanted_groups=self._options.batch_groups,
                    hint="raise orchestrator.batch_groups or demand_batches, or lower trainer.batch_groups",
                )
            if at_last and (batch := await self._close(step, at_last=True)) is not None:
                return batch
            if at_last and self._intake.files:
                # Demand counts these files: kept, they would keep away the work that could end the waiting.
                given_up = self._intake.give_up()
                log.warning("no group of the waiting work teaches anything: giving it up", files=given_up, step=step)
                await self._publisher.tell_refused(self._intake.refused)
                return None
            if self._intake.files:
                last_work = time.monotonic()
            if time.monotonic() - last_work > self._options.idle_seconds:
                return None
            if time.monotonic() - said > SAID_SECONDS:
                said = time.monotonic()
                log.info("waiting for accepted work", step=step, files=len(self._intake.files), seconds=round(waiting))
            await asyncio.sleep(self._options.poll_seconds)

    async def _look(self, learner: Learner, oldest: int) -> bool:
        """Take in what was accepted, let go of what is too stale; whether the list of it was told."""
        told = True
        try:
            looked = await self._intake.look(oldest, learner.note.used)
        except TRANSIENT as error:
            log.warning("cannot see accepted work", error=str(error))
            told = isinstance(error, MalformedError)  # a list too long to be read grows shorter as steps go by
        else:
            if looked.refused:
                await self._publisher.tell_refused(self._intake.refused)
            if looked.fresh:
                log.debug("accepted work", new=looked.fresh, files=len(self._intake.files), step=learner.step)
        stale = too_stale(self._intake.files, learner.step, self._terms.async_level)
        self._intake.forget((file.ref.file_hash for file in stale), oldest)
        return told

    async def _close(self, step: int, *, at_last: bool = False) -> Batch | None:
        return await asyncio.to_thread(close_batch, self._intake.files, step, self._batch_terms, at_last=at_last)

    async def _all_is_here(self, step: int) -> bool:
        """Whether nobody is asked for more work of this step and all that was made is here: no batch will come to be
        larger. The orchestrator says so, which could as well list no work at all."""
        if not self._intake.files:
            return False
        try:
            demand = await self._publisher.client.demand(self._publisher.settings.run)
        except TRANSIENT:
            return False
        here = len(self._intake.files) * self._terms.groups_per_commitment
        return demand.step == step and not demand.wanted and demand.waiting_groups <= here
