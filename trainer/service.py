"""The trainer: wait for accepted work, close a batch, update; meanwhile write, publish and report the step before.

What is on disk decides: a step that was written is published as it is, a batch that was closed is trained on as it is.
So a kill costs time and changes no weight. One step is being settled at most while the next one is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.keys import load_signer
from muster.errors import (
    ConfigError,
    MismatchError,
    StorageError,
)
from muster.failpoints import failpoint
from muster.http import OrchestratorClient
from muster.journal import FolderLock
from muster.model_files import vocabulary_of
from muster.process import run_together, to_the_end, wait_for_bell
from muster.profiles import profile_by_hash
from muster.rollouts.reader import RolloutReader
from muster.run_data import fetch_task_set
from muster.settings import Settings, TrainerSettings
from muster.tasks import Task, TaskSet
from muster.terms import Terms
from trainer.checkpoint import Note
from trainer.fitness import check_tasks, check_terms
from trainer.gathering import Gathering
from trainer.intake import Intake
from trainer.learner import NO_BATCH, Learner, Recipe
from trainer.publisher import Publisher
from trainer.ranks import Ranks
from trainer.replica import COMPANY_SECONDS

log = telemetry.logger("trainer")

LEFT_OUT: Final = 0.02
"""Share of an update's rollouts beyond the mismatch bound from which on a step warns, as it does of mismatch_kl, which
is measured on the others."""
T = TypeVar("T")


@dataclass(frozen=True)
class Score:
    """A step's held-out metrics, and what they took."""

    metrics: Mapping[str, float]
    seconds: float


class Settling:
    """What settling a step and taking the next one beside it tell each other."""

    def __init__(self) -> None:
        self.published = asyncio.Event()
        """The step is on chain: work for it can come."""
        self.score: asyncio.Future[Score | None] = asyncio.get_running_loop().create_future()
        """The step's, taken before its weights change; None when none is due."""


async def serve(settings: Settings, ranks: Ranks) -> None:
    """Train with these settings until `trainer.max_steps`, or until cancelled."""
    with FolderLock(settings.trainer.state_dir):
        signer = await asyncio.to_thread(load_signer, settings.keys, settings.chain.chain_id)
        folder = settings.trainer.state_dir / "transactions"
        async with (
            await Chain.connect(settings.chain, signer, journal_folder=folder) as chain,
            OrchestratorClient(
                settings.orchestrator.url, signer, chain_id=chain.chain_id, registry=chain.addresses.registry
            ) as client,
            RolloutReader() as reader,
        ):
            terms = await chain.terms(settings.run)
            if terms.trainer != signer.address:
                raise ConfigError(
                    f"run {settings.run} is trained by {terms.trainer}, this key is {signer.address}",
                    hint="set keys to the trainer's, or run to the run this key trains",
                )
            check_terms(terms, settings.trainer)
            publisher = await asyncio.to_thread(Publisher, settings, chain, client, terms)
            vocabulary = await asyncio.to_thread(vocabulary_of, settings.trainer.model)
            intake = Intake(chain, client, reader, settings.run, terms, vocabulary)
            trainer = Trainer(settings, publisher, intake, terms, ranks)
            try:
                await trainer.run()
            except BaseException:
                with suppress(asyncio.CancelledError):  # whatever ended it is what is told
                    await to_the_end(asyncio.to_thread(trainer.close))
                raise
            await to_the_end(asyncio.to_thread(trainer.close))


def make_learner(options: TrainerSettings, terms: Terms, ranks: Ranks) -> Learner:
    """The learner of a run, in `trainer.state_dir`. Blocks."""
    profile = profile_by_hash(terms.profile)
    recipe = Recipe.of(options, terms)
    return Learner(options.model, options.state_dir / "steps", terms, recipe, getattr(torch, profile.dtype), ranks)


class Trainer:
    """One run's trainer. `run` returns when the last step is published and reported."""

    def __init__(self, settings: Settings, publisher: Publisher, intake: Intake, terms: Terms, ranks: Ranks) -> None:
        self.settings = settings
        self.options = settings.trainer
        self.publisher = publisher
        self.intake = intake
        self.terms = terms
        self.ranks = ranks
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch")
        self._learner: Learner | None = None
        self.gathering = Gathering(self.options, publisher, intake, terms)

    def close(self) -> None:
        """Ends when a step that is being written is. Blocks."""
        if self._learner is not None:
            self._learner.leave()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._learner is not None:
            self._learner.close()
        self.publisher.metrics.close()

    async def run(self) -> None:
        tasks = await self.publisher.patiently(self._fetch_tasks)
        check_tasks(tasks)
        if not tasks.held_out:
            log.warning("the run's task set holds no tasks out: no score will be taken")
        learner = await self._do(self._make_learner)
        ended = asyncio.Event()
        await run_together(self._train(learner, tasks, ended), self._keep_company(learner, ended))

    def _make_learner(self) -> Learner:
        """In the thread of torch: `close` waits for that, so it knows of what was being made when it was called."""
        self._learner = make_learner(self.options, self.terms, self.ranks)
        return self._learner

    async def _keep_company(self, learner: Learner, ended: asyncio.Event) -> None:
        """While this rank waits for work, for the chain or for anything else, let the others know."""
        while not ended.is_set():
            await wait_for_bell(ended, COMPANY_SECONDS)
            if not ended.is_set():
                await self._do(learner.replica.wait)

    async def _train(self, learner: Learner, tasks: TaskSet, ended: asyncio.Event) -> None:
        log.info("ready", run=self.settings.run, step=learner.step)
        await self._settle_older(learner)
        while not self._finished(learner.note):
            settling = Settling()
            await run_together(self._settle(learner, learner.note, settling), self._one_step(learner, tasks, settling))
        settling = Settling()
        await run_together(self._settle(learner, learner.note, settling), self._score(learner, tasks, settling))
        log.info("finished", step=learner.step)
        ended.set()

    def _finished(self, note: Note) -> bool:
        return 0 < self.options.max_steps <= note.updates

    async def _fetch_tasks(self) -> TaskSet:
        return await fetch_task_set(self.publisher.client, self.terms, self.options.state_dir)

    # To the next step

    async def _one_step(self, learner: Learner, tasks: TaskSet, settling: Settling) -> None:
        """Score this step, if that is due, and take the next one."""
        await self._score(learner, tasks, settling)
        started = time.monotonic()
        closed = await self.gathering.closed(learner, settling.published)
        if closed is None:
            note = await self._do(learner.renew)
            log.info("nothing to learn from: publishing the same weights once more", step=note.step)
            return
        batch, files = closed
        waited = {"wait": time.monotonic() - started}
        note = await self._do(learner.learn, batch, files, waited)
        failpoint("trainer.learnt")
        self.intake.forget(note.batch, oldest_step=note.step - self.terms.async_level)
        shown = {name: round(note.metrics[name], 4) for name in ("reward", "mismatch_kl", "grad_norm", "entropy")}
        log.info("updated", step=note.step, files=len(files), **shown)
        self._warn(note)

    def _warn(self, note: Note) -> None:
        """Say it where the samplers compute otherwise than the trainer."""
        left_out = note.metrics["dropped_rollouts"] / max(1.0, note.metrics["rollouts"])
        if note.metrics["mismatch_kl"] > self.options.mismatch_alarm or left_out > LEFT_OUT:
            log.warning(
                "the samplers' log-probabilities are far from the trainer's",
                mismatch_kl=round(note.metrics["mismatch_kl"], 4),
                alarm=self.options.mismatch_alarm,
                left_out=round(left_out, 3),
                hint="stale work, another engine or dtype than the profile's, or a temperature that differs",
            )

    async def _score(self, learner: Learner, tasks: TaskSet, settling: Settling) -> None:
        """Take the held-out score of this step, if one is due."""
        if not (tasks.held_out and self._evaluates(learner.note)):
            return settling.score.set_result(None)
        started = time.monotonic()
        metrics = await self._do(
            learner.evaluate, self._held_out(tasks), self._budgets(), self.terms.max_completion_tokens
        )
        log.info("evaluated", step=learner.step, held_out=round(metrics["held_out/reward"], 4))
        return settling.score.set_result(Score(metrics, time.monotonic() - started))

    def _evaluates(self, note: Note) -> bool:
        """The first checkpoint, every `eval_every`th update's, and the last three, whose mean is the run's result.
        Weights that are published once more have their score."""
        renewed = note.step > 0 and note.batch_root == NO_BATCH
        if not self.options.eval_every or renewed:
            return False
        near_end = self.options.max_steps > 0 and note.updates > self.options.max_steps - 3
        return near_end or note.updates % self.options.eval_every == 0

    def _held_out(self, tasks: TaskSet) -> Sequence[Task]:
        return tasks.held_out[: self.options.eval_tasks] if self.options.eval_tasks else tasks.held_out

    def _budgets(self) -> list[int]:
        return sorted({budget for work_class in self.terms.classes for budget in work_class.budgets})

    # What follows a step

    async def _settle(self, learner: Learner, note: Note, settling: Settling) -> None:
        """See to it that a step is on disk, published, anchored and reported, and its score when it is there."""
        started = time.monotonic()
        await asyncio.to_thread(learner.written)
        failpoint("trainer.written")
        written = time.monotonic()
        await self.publisher.publish(note, *learner.checkpoints.published(note.step))
        failpoint("trainer.published")
        settling.published.set()
        stages = {**note.stages, "write": written - started, "publish": time.monotonic() - written}
        await self.publisher.report(note, note.metrics, stages, self.intake.refused, finished=False)
        score, metrics, finished = await settling.score, dict(note.metrics), self._finished(note)
        if score is not None:
            stages["evaluate"] = score.seconds
            metrics |= score.metrics
        if score is not None or finished:
            await self.publisher.report(note, metrics, stages, self.intake.refused, finished=finished)

    async def _settle_older(self, learner: Learner) -> None:
        """Publish and report what an earlier life had on disk before the newest step, and may not have come to."""
        for step in learner.checkpoints.steps():
            if step >= learner.step:
                continue
            try:
                note = await asyncio.to_thread(learner.checkpoints.read, step)
            except (MismatchError, StorageError) as error:  # the chain decides whether it is needed
                log.warning("an older step cannot be read", step=step, error=str(error))
                continue
            await self.publisher.publish(note, *learner.checkpoints.published(step))
            await self.publisher.report(note, note.metrics, note.stages, self.intake.refused, finished=False)

    # Help

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something of torch in the one thread it belongs to."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
