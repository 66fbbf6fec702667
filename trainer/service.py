"""The trainer: wait for accepted work, close a batch, update, write, publish, report; and resume anywhere in between.

What is on disk decides: a step that was written is published as it is, a batch that was closed is trained on as it
is. So a kill costs time and changes no weight. Evaluation comes after publishing, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from muster import telemetry
from muster.chain.client import Chain
from muster.chain.contracts import runs
from muster.chain.keys import load_signer
from muster.errors import CheckError, ConfigError, MismatchError, RefusedError, RevertError, UnreachableError
from muster.failpoints import failpoint
from muster.hashes import hash_bytes
from muster.http import OrchestratorClient
from muster.journal import FolderLock
from muster.messages import StepReport
from muster.profiles import profile_by_hash
from muster.rollouts.reader import RolloutReader
from muster.run_data import fetch_task_set
from muster.settings import Settings
from muster.shardcast.publish import deltas_of, publish
from muster.tasks import Task, TaskSet
from muster.terms import Terms
from trainer.batches import Batch, BatchTerms, WorkFile, close_batch, too_stale
from trainer.fitness import check_tasks, check_terms
from trainer.intake import Intake
from trainer.learner import Learner, Recipe

ATTEMPTS: Final = 20
"""Times that something refused for the moment is tried again before the trainer gives up."""

log = telemetry.logger("trainer")
STEP = telemetry.gauge("trainer_step", "Newest checkpoint that is on chain")
REWARD = telemetry.gauge("trainer_reward", "Mean task reward of the last batch")
MISMATCH = telemetry.gauge("trainer_mismatch_kl", "Divergence of the trainer from the samplers, nats per token")

T = TypeVar("T")


async def serve(settings: Settings) -> None:
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
            trainer = Trainer(settings, chain, client, Intake(chain, client, reader, settings.run, terms), terms)
            try:
                await trainer.run()
            finally:
                trainer.close()


class Trainer:
    """One run's trainer. `run` returns when the last step is published and reported."""

    def __init__(
        self, settings: Settings, chain: Chain, client: OrchestratorClient, intake: Intake, terms: Terms
    ) -> None:
        self.settings = settings
        self.options = settings.trainer
        self.chain = chain
        self.client = client
        self.intake = intake
        self.terms = terms
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch")
        self._told: StepReport | None = None
        """The last report."""
        self._batch_terms = BatchTerms(self.options.batch_groups, self.options.max_files, terms.async_level)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def run(self) -> None:
        tasks = await self._patiently(self._fetch_tasks)
        check_tasks(tasks)
        if not tasks.held_out:
            log.warning("the run's task set holds no tasks out: no score will be taken")
        learner = await self._do(self._make_learner)
        log.info("ready", run=self.settings.run, step=learner.step)
        await self._settle(learner, tasks)
        while not self._finished(learner.step):
            await self._one_step(learner)
            await self._settle(learner, tasks)
        log.info("finished", step=learner.step)

    def _finished(self, step: int) -> bool:
        return 0 < self.options.max_steps <= step

    def _make_learner(self) -> Learner:
        profile = profile_by_hash(self.terms.profile)
        folder = self.options.state_dir / "steps"
        recipe = Recipe.of(self.options, self.terms)
        return Learner(self.options.model, folder, self.terms, recipe, getattr(torch, profile.dtype))

    async def _fetch_tasks(self) -> TaskSet:
        return await fetch_task_set(self.client, self.terms, self.options.state_dir)

    # One step

    async def _one_step(self, learner: Learner) -> None:
        """From the step on disk to the next one on disk."""
        started = time.monotonic()
        closed = await self._closed_batch(learner)
        if closed is None:
            note = await self._do(learner.renew)
            log.info("nobody works: published the same weights once more", step=note.step)
            return
        batch, files = closed
        waited = {"wait": time.monotonic() - started}
        note = await self._do(learner.learn, batch, files, waited)
        failpoint("trainer.written")
        self.intake.forget(note.batch, oldest_step=note.step - self.terms.async_level)
        shown = {name: round(note.metrics[name], 4) for name in ("reward", "mismatch_kl", "grad_norm", "entropy")}
        log.info("updated", step=note.step, files=len(files), **shown)
        if note.metrics["mismatch_kl"] > self.options.mismatch_alarm:
            log.warning(
                "the samplers' log-probabilities are far from the trainer's",
                mismatch_kl=round(note.metrics["mismatch_kl"], 4),
                alarm=self.options.mismatch_alarm,
                hint="stale work, another engine or dtype than the profile's, or a temperature that differs",
            )

    async def _closed_batch(self, learner: Learner) -> tuple[Batch, list[WorkFile]] | None:
        """The batch that an earlier life closed for this step, or a new one; None when there is no work at all."""
        closed = learner.checkpoints.closed_batch(learner.step)
        if closed is not None:
            try:
                fetched = await self._patiently(lambda: self._fetch_all(closed))
            except (CheckError, UnreachableError) as error:
                log.error("the closed batch cannot be had any more; closing another", error=str(error))
                learner.checkpoints.drop_batch()
            else:
                return closed, fetched
        batch = await self._fill_batch(learner)
        if batch is None:
            return None
        await asyncio.to_thread(learner.checkpoints.close_batch, batch)
        by_hash = {file.ref.file_hash: file for file in self.intake.files}
        return batch, [by_hash[ref.file_hash] for ref in batch.files]

    async def _fetch_all(self, batch: Batch) -> list[WorkFile]:
        return list(await asyncio.gather(*(self.intake.fetch(ref) for ref in batch.files)))

    async def _fill_batch(self, learner: Learner) -> Batch | None:
        """Look for accepted work until a batch can be closed; None when there is none for `idle_seconds`.

        Says in the log what it waits for.
        """
        step, oldest = learner.step, max(0, learner.step - self.terms.async_level)
        said = started = last_work = time.monotonic()
        while True:
            try:
                looked = await self.intake.look(oldest, learner.note.used)
            except UnreachableError as error:
                log.warning("cannot see accepted work", error=str(error))
                last_work = time.monotonic()  # there may be some
            else:
                if looked.refused:
                    await self._tell_refused()
                if looked.fresh:
                    log.debug("accepted work", new=looked.fresh, files=len(self.intake.files), step=step)
            stale = too_stale(self.intake.files, step, self.terms.async_level)
            self.intake.forget((file.ref.file_hash for file in stale), oldest)
            waiting = time.monotonic() - started
            at_last = waiting > self.options.patience_seconds
            batch = await asyncio.to_thread(close_batch, self.intake.files, step, self._batch_terms, at_last=at_last)
            if batch is not None:
                return batch
            if self.intake.files:
                last_work = time.monotonic()
            if time.monotonic() - last_work > self.options.idle_seconds:
                return None
            if time.monotonic() - said > 30:
                said = time.monotonic()
                log.info("waiting for accepted work", step=step, files=len(self.intake.files), seconds=round(waiting))
            await asyncio.sleep(self.options.poll_seconds)

    # What follows a step

    async def _settle(self, learner: Learner, tasks: TaskSet) -> None:
        """See to it that the step on disk is published, anchored and reported. Does nothing twice."""
        started = time.monotonic()
        await self._publish(learner)
        failpoint("trainer.published")
        stages = dict(learner.note.stages) | {"publish": time.monotonic() - started}
        await self._report(learner, dict(learner.note.metrics), stages, finished=False)
        STEP.set(learner.step)
        REWARD.set(learner.note.metrics.get("reward", math.nan))
        MISMATCH.set(learner.note.metrics.get("mismatch_kl", math.nan))
        finished = self._finished(learner.step)
        metrics = dict(learner.note.metrics)
        if tasks.held_out and (self._evaluates(learner.step) or finished):
            started = time.monotonic()
            metrics |= await self._do(
                learner.evaluate, self._held_out(tasks), self._budgets(), self.terms.max_completion_tokens
            )
            log.info("evaluated", step=learner.step, held_out=round(metrics["held_out/reward"], 4))
            stages["evaluate"] = time.monotonic() - started
        elif not finished:
            return
        await self._report(learner, metrics, stages, finished=finished)

    def _evaluates(self, step: int) -> bool:
        """The first checkpoint, every `eval_every`th, and the last three, whose mean is the run's result."""
        near_end = self.options.max_steps > 0 and step > self.options.max_steps - 3
        return near_end or (self.options.eval_every > 0 and step % self.options.eval_every == 0)

    def _held_out(self, tasks: TaskSet) -> Sequence[Task]:
        return tasks.held_out[: self.options.eval_tasks] if self.options.eval_tasks else tasks.held_out

    def _budgets(self) -> list[int]:
        return sorted({budget for work_class in self.terms.classes for budget in work_class.budgets})

    async def _publish(self, learner: Learner) -> None:
        """Put the step's weights into the served folder and its roots on chain, unless they are there."""
        run, step = self.settings.run, learner.step
        cast = self.settings.shardcast
        manifest = await asyncio.to_thread(
            publish,
            learner.published_form,
            cast.dir,
            run,
            step,
            shard_bytes=cast.shard_bytes,
            keep=cast.published_versions,
            deltas=deltas_of(cast),
        )
        batch_root = hash_bytes(learner.note.batch_root)
        for _ in range(ATTEMPTS):
            await self.chain.settle()
            if (await self.chain.ask(runs.run_state(run))).steps > step:
                return await self._check_published(step, manifest.root)
            try:
                mined = await self.chain.act(runs.publish_checkpoint(run, step, manifest.root, batch_root))
            except (RevertError, UnreachableError) as error:
                if isinstance(error, RevertError) and error.name not in ("StepTooSoon", "StepOutOfOrder"):
                    raise
                log.info("publishing later", step=step, reason=str(error))
                await asyncio.sleep(self.options.poll_seconds)
                continue
            log.info("published", step=step, root="0x" + manifest.root.hex(), tx=mined.hash)
            return None
        raise UnreachableError(f"step {step} could not be published in {ATTEMPTS} attempts")

    async def _check_published(self, step: int, root: bytes) -> None:
        anchored = (await self.chain.checkpoint(self.settings.run, step)).manifest_root
        if anchored != root:
            raise MismatchError(
                f"step {step} on chain has manifest root 0x{anchored.hex()}, this folder's is 0x{root.hex()}",
                hint="this state folder is not the one the run was trained from so far",
            )

    async def _report(
        self, learner: Learner, metrics: dict[str, float], stages: dict[str, float], *, finished: bool
    ) -> None:
        """Tell the orchestrator; it needs to know which files are used up, so a refusal is not ignored."""
        report = StepReport(
            run=self.settings.run,
            step=learner.step,
            metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
            batch=list(learner.note.batch),
            dropped=self.intake.refused,
            stages={name: round(seconds, 3) for name, seconds in stages.items()},
            finished=finished,
        )
        self._told = report
        append_line(self.options.state_dir / "metrics.jsonl", report)
        await self._patiently(lambda: self.client.post_step(report))

    async def _tell_refused(self) -> None:
        """Report the step once more, with what was refused since.

        Demand counts what waits for us: a file that will never be used must not keep new work away, or no step would
        ever come after which it is too stale to count.
        """
        if self._told is not None:
            report = self._told = self._told.model_copy(update={"dropped": self.intake.refused})
            await self._patiently(lambda: self.client.post_step(report))

    # Help

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat a call while the other side cannot be reached, or says that it is not ready, and say so."""
        for attempt in range(ATTEMPTS):
            try:
                return await call()
            except (UnreachableError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status < 500 and error.status != 404:
                    raise
                if attempt == ATTEMPTS - 1:
                    raise
                log.warning("trying again", error=str(error))
                await asyncio.sleep(max(1.0, self.options.poll_seconds))
        raise AssertionError("unreachable")

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something of torch in the one thread it belongs to."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def append_line(path: Path, report: StepReport) -> None:
    """Keep a report as a line of JSON, for plots and for whoever comes later."""
    with path.open("a", encoding="utf-8") as file:
        file.write(report.model_dump_json(exclude={"batch", "dropped"}) + "\n")
