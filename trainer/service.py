"""The trainer: wait for accepted work, close a batch, train; meanwhile write, publish and report the step before.

What is on disk decides: a step that was written is published as it is, a batch that was closed is trained on as it is.
So a kill costs time and changes no weight. At most one step is handed off while the next one is trained.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from muster.clients.node_session import node_session
from muster.clients.relays import Relays
from muster.clients.run_data import CheckpointFetcher, RunTasks, fetch_profile, make_rules
from muster.contracts import runs
from muster.environments.scoring import Scorers
from muster.errors import TRANSIENT, ConfigError, FinishedError, MismatchError, StorageError
from muster.models.files import vocabulary_of
from muster.protocol.looks import LINK_HOURS, SETTLE_HOURS
from muster.protocol.metric_names import HELD_OUT, REWARD, UNENDED, UNENDED_ALARM, UNENDED_HINT
from muster.protocol.terms import Terms
from muster.rollouts.reader import RolloutReader
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import Next, PollLoop, wait_for_event
from muster.runtime.process import run_together, to_the_end
from muster.settings.schema import Settings, TrainerSettings
from muster.tasksets.masters import Masters
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import Profile
from muster.verification.rules import Rules
from trainer.accepted_work import AcceptedWork
from trainer.batcher import Batcher
from trainer.batches import reward_metrics, unended_thinking
from trainer.checkpoint import CheckpointMetadata
from trainer.distributed import Ranks
from trainer.following import FollowProcess, journal_of
from trainer.grading import Grader, load_grade_masters
from trainer.learner import Learner, Recipe
from trainer.look_checks import POLL_SECONDS as CHECK_SECONDS
from trainer.look_checks import LookChecker, ReplayProcess
from trainer.looks import POLL_SECONDS as LOOK_SECONDS
from trainer.looks import LookKeeper
from trainer.model_replica import HEARTBEAT_SECONDS
from trainer.publisher import Publisher

log = telemetry.logger("trainer")

LEFT_OUT: Final = 0.02
"""Share of an update's rollouts beyond the mismatch bound at which a step warns; `mismatch_kl` leaves them out."""
T = TypeVar("T")


class StepHandoff:
    """Signals between the hand-off of a step and the training of the next one beside it."""

    def __init__(self) -> None:
        self.published = asyncio.Event()
        """Set once the step is on chain: work for it can come."""
        self.score: asyncio.Future[tuple[dict[str, float], float] | None] = asyncio.get_running_loop().create_future()
        """The step's held-out metrics and the seconds they took, before its weights change; None when none is due."""


async def serve(settings: Settings, ranks: Ranks) -> None:
    """Train with these settings until `trainer.max_steps`, or until cancelled."""
    async with node_session(settings, settings.trainer.state_dir) as session, RolloutReader() as reader:
        chain, client = session.chain, session.client
        terms = await chain.terms(settings.run)
        if (trained_by := (await chain.keys_now(settings.run)).trainer) != session.node:
            raise ConfigError(
                f"run {settings.run} is trained by {trained_by}, this key is {session.node}",
                hint="set keys to the trainer's, or run to the run this key trains; muster run show says what changes",
            )
        check_terms(terms, settings.trainer)
        await chain.check_gas()
        publisher = await asyncio.to_thread(Publisher, settings, chain, client, terms)
        vocabulary = await asyncio.to_thread(vocabulary_of, settings.trainer.model)
        masters = await asyncio.to_thread(load_grade_masters, settings.trainer.grade_masters, terms)
        with journal_of(settings, chain) as journal:
            following = FollowProcess(settings, chain.signer, client.domain)
            work = AcceptedWork(client, reader, settings.run, terms, vocabulary, journal, following.follow)
            publisher.left_out = journal.left_out
            trainer = Trainer(settings, publisher, work, terms, ranks, masters)
            try:
                await trainer.run()
            except BaseException:
                with suppress(asyncio.CancelledError):  # the error that ended the trainer is the one to report
                    await to_the_end(asyncio.to_thread(trainer.close))
                raise
            finally:
                await to_the_end(following.close())
            await to_the_end(asyncio.to_thread(trainer.close))


def check_terms(terms: Terms, options: TrainerSettings) -> None:
    """Raise ConfigError when no update could ever come of these settings under these terms."""
    if terms.group_size < 2:
        raise ConfigError(
            "the run's groups have one sample: an advantage compares an answer with others to the same task",
            hint="create a run with a group_size of 2 or more",
        )
    most = options.max_files * terms.groups_per_commitment
    if options.batch_groups > most:
        needed = -(-options.batch_groups // terms.groups_per_commitment)
        raise ConfigError(
            f"a batch of {options.batch_groups} groups can never fill: {options.max_files} files hold {most}",
            hint=f"set trainer.max_files to {needed} or more, or trainer.batch_groups to {most} or fewer",
        )
    rollouts = options.max_files * terms.positions
    if options.optimiser_steps > rollouts:
        raise ConfigError(
            f"a batch of at most {rollouts} rollouts cannot be cut into {options.optimiser_steps} optimiser steps",
            hint="lower trainer.optimiser_steps",
        )


@dataclass(eq=False)
class Trainer:
    """One run's trainer. `run` returns when the last step is published and reported."""

    settings: Settings
    publisher: Publisher
    accepted_work: AcceptedWork
    terms: Terms
    ranks: Ranks
    masters: Masters | None = None
    """Of its private tests, where it has some."""

    def __post_init__(self) -> None:
        self.options = self.settings.trainer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch")
        self._learner: Learner | None = None
        self.batcher = Batcher(self.options, self.publisher, self.accepted_work, self.terms)

    def close(self) -> None:
        """Wait until the step that is being written is on disk, then release everything. Blocks."""
        if self._learner is not None:
            self._learner.cancel_evaluation()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._learner is not None:
            self._learner.close()

    async def run(self) -> None:
        """Train until the last step is published and reported."""
        client, folder = self.publisher.client, self.options.state_dir
        run_tasks = await self.publisher.retry(lambda: RunTasks.fetch(client, self.terms, folder))
        await self.publisher.retry(run_tasks.ensure_held_out)
        tasks = run_tasks.task_set
        if not tasks.held_out:
            log.warning("the run's task set has no held-out tasks: no score will be taken")
        profile = await self.publisher.retry(lambda: fetch_profile(client, self.terms, folder))
        learner = await self._do(lambda: self._make_learner(profile))
        self.accepted_work.forget((), learner.step - self.terms.async_level)
        ended = asyncio.Event()
        rules = await asyncio.to_thread(
            make_rules, self.publisher.chain, self.settings.run, self.terms, run_tasks, self.options.model
        )
        if self.masters is not None:
            self.accepted_work.grader = Grader(client, run_tasks, rules, self.masters)
        with Scorers(run_tasks.components) as self._scorers, rules.scorers:
            try:
                await run_together(
                    self._train(learner, tasks, ended),
                    self._send_heartbeats(learner, ended),
                    self._grade(learner, ended),
                    self._count_looks(profile, run_tasks, rules, ended),
                )
            except FinishedError:  # the run is closed
                await self._show_masters(learner)
                raise

    def _make_learner(self, profile: Profile) -> Learner:
        """Make the learner, in the torch thread: `close` waits for that thread, so it also closes a half-made one."""
        options, dtype = self.options, getattr(torch, profile.dtype)
        recipe = Recipe.from_settings(options, self.terms, profile)
        steps, matmul = options.state_dir / "steps", self.settings.bfloat16_matmul
        self._learner = Learner(options.model, steps, self.terms, recipe, dtype, self.ranks, matmul)
        return self._learner

    async def _send_heartbeats(self, learner: Learner, ended: asyncio.Event) -> None:
        """Send heartbeats to the other ranks while this one waits for work, the chain or anything else."""
        while not ended.is_set():
            await wait_for_event(ended, HEARTBEAT_SECONDS)
            if not ended.is_set():
                await self._do(learner.replica.heartbeat)

    async def _grade(self, learner: Learner, ended: asyncio.Event) -> None:
        """Grade private tests beside the update loop until training has ended, and show the last master then."""
        if grader := self.accepted_work.grader:
            await grader.run(lambda: learner.step, ended)
            await self._show_masters(learner)

    async def _show_masters(self, learner: Learner) -> None:
        """Show the masters of all epochs that have begun: nothing more is trained."""
        if grader := self.accepted_work.grader:
            await self.publisher.retry(lambda: grader.show_all(learner.step))

    async def _count_looks(self, profile: Profile, tasks: RunTasks, rules: Rules, ended: asyncio.Event) -> None:
        """Check and count looks until training has ended and all that is paid of them is posted."""
        publisher, settings, done = self.publisher, self.settings, asyncio.Event()
        journal, follow = self.accepted_work.journal, self.accepted_work.follow
        keeper = LookKeeper(publisher.chain, publisher.client, settings.run, self.terms, profile, journal, follow)
        relays = Relays(settings.shardcast, publisher.client, settings.run)
        checkpoints = CheckpointFetcher(publisher.chain, self.terms, relays, journal.path.parent / "weights", kept=1)
        replays = ReplayProcess(profile, self.terms.temperature, settings.bfloat16_matmul)

        async def report() -> None:
            step = (await publisher.chain.call(runs.run_state(settings.run))).steps - 1
            publisher.refuted = journal.fresh_refuted(step - self.terms.async_level)
            await publisher.report_again()

        async def poll() -> Next:
            outcome = await keeper.poll()
            if ended.is_set() and await keeper.is_settled():
                done.set()
            return outcome

        checker = LookChecker(
            keeper, publisher.client, self.accepted_work.reader, checkpoints, tasks, rules, replays, report
        )
        loops = [
            asyncio.create_task(PollLoop(log, "looks", LOOK_SECONDS).run(poll)),
            asyncio.create_task(PollLoop(log, "checks of looks", CHECK_SECONDS).run(checker.poll)),
            asyncio.create_task(done.wait()),
        ]
        try:
            ready, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in ready:
                loop.result()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.to_thread(replays.close)
            await asyncio.gather(*loops, return_exceptions=True)

    async def _train(self, learner: Learner, tasks: TaskSet, ended: asyncio.Event) -> None:
        ratio_to = "recomputed" if learner.replica.recomputes_at_start else "behaviour"
        matmul = learner.metadata.matmul
        log.info("ready", run=self.settings.run, step=learner.step, old_logprobs=ratio_to, matmul=matmul)
        await self.hand_off_older(learner)
        while not self.finished(learner.metadata):
            handoff = StepHandoff()
            await run_together(
                self._hand_off(learner, learner.metadata, handoff), self._one_step(learner, tasks, handoff)
            )
        handoff = StepHandoff()
        await run_together(self._hand_off(learner, learner.metadata, handoff), self._score(learner, tasks, handoff))
        log.info("finished", step=learner.step)
        ended.set()
        if self.terms.wage_bps:
            log.info("counting looks until all are settled", hours=1 + LINK_HOURS + SETTLE_HOURS)

    def finished(self, metadata: CheckpointMetadata) -> bool:
        return 0 < self.options.max_steps <= metadata.updates

    # Training

    async def _one_step(self, learner: Learner, tasks: TaskSet, handoff: StepHandoff) -> None:
        """Score this step if a score is due, then train the next one."""
        await self._score(learner, tasks, handoff)
        started = time.monotonic()
        closed = await self.batcher.closed(learner, handoff.published)
        if closed is None:
            files = self.batcher.without_signal
            metrics = await self._do(unended_thinking, files, tasks, self.terms, learner.tokenizer)
            metadata = await self._do(learner.republish, metrics)
            self._warn_of_thinking(metrics)
            log.info("no work with a signal: publishing the same weights again", step=metadata.step)
            return
        batch, files = closed
        seconds = {"wait": time.monotonic() - started}
        metrics = reward_metrics(files, tasks, self.terms)
        metrics |= await self._do(unended_thinking, files, tasks, self.terms, learner.tokenizer)
        metadata = await self._do(learner.train_step, batch, files, seconds, metrics)
        failpoint("trainer.trained")
        self.accepted_work.forget(metadata.batch, oldest_step=metadata.step - self.terms.async_level)
        shown = {name: round(metadata.metrics[name], 4) for name in (REWARD, "mismatch_kl", "grad_norm", "entropy")}
        log.info("updated", step=metadata.step, files=len(files), **shown)
        self.warn(metadata)
        self._warn_of_thinking(metrics)

    def warn(self, metadata: CheckpointMetadata) -> None:
        """Warn where the samplers' log-probabilities are far from the trainer's."""
        left_out = metadata.metrics["dropped_rollouts"] / max(1.0, metadata.metrics["rollouts"])
        if metadata.metrics["mismatch_kl"] > self.options.mismatch_alarm or left_out > LEFT_OUT:
            log.warning(
                "the samplers' log-probabilities are far from the trainer's",
                mismatch_kl=round(metadata.metrics["mismatch_kl"], 4),
                alarm=self.options.mismatch_alarm,
                left_out=round(left_out, 3),
                hint="stale work, another engine or dtype than the profile's, or a temperature that differs",
            )

    def _warn_of_thinking(self, metrics: Mapping[str, float]) -> None:
        if metrics.get(UNENDED, 0.0) >= UNENDED_ALARM:
            log.warning(
                "completions never end their thinking: what they answer is not looked at",
                share=round(metrics[UNENDED], 3),
                hint=UNENDED_HINT,
            )

    async def _score(self, learner: Learner, tasks: TaskSet, handoff: StepHandoff) -> None:
        """Measure the held-out score of this step if one is due."""
        if not (tasks.held_out and self.evaluates(learner.metadata)):
            return handoff.score.set_result(None)
        started = time.monotonic()
        budgets = sorted({budget for work_class in self.terms.classes for budget in work_class.budgets})
        limit = self.terms.max_completion_tokens
        try:
            held_out = tasks.held_out[: self.options.eval_tasks or None]
            metrics = await self._do(learner.evaluate, held_out, self._scorers, budgets, limit)
        except TRANSIENT as error:  # a task of no use, or a scorer that does not answer: training goes on
            log.warning("no held-out score", step=learner.step, reason=str(error), hint=error.hint)
            return handoff.score.set_result(None)
        log.info("evaluated", step=learner.step, held_out=round(metrics[HELD_OUT], 4))
        return handoff.score.set_result((metrics, time.monotonic() - started))

    def evaluates(self, metadata: CheckpointMetadata) -> bool:
        """Return whether to score a step: the first, every `eval_every`th update, and the last three.

        The mean of the last three is the run's result. Republished weights have their score already.
        """
        republished = metadata.step > 0 and not metadata.files
        if not self.options.eval_every or republished:
            return False
        near_end = self.options.max_steps > 0 and metadata.updates > self.options.max_steps - 3
        return near_end or metadata.updates % self.options.eval_every == 0

    # Hand-off

    async def _hand_off(self, learner: Learner, metadata: CheckpointMetadata, handoff: StepHandoff) -> None:
        """Wait until a step is on disk, publish and anchor it, report it, and report its score once it is known."""
        # 1. On disk.
        started = time.monotonic()
        await asyncio.to_thread(learner.written)
        failpoint("trainer.written")
        # 2. Served, and anchored on chain.
        written = time.monotonic()
        sizes = await self.publisher.publish(metadata, *learner.checkpoints.published(metadata.step))
        failpoint("trainer.published")
        handoff.published.set()
        # 3. Reported; a second time with its score, or to say that training is finished.
        stages = {**metadata.stages, "write": written - started, "publish": time.monotonic() - written}
        metrics = {**metadata.metrics, **sizes}
        await self.publisher.report(metadata, metrics, stages, finished=False)
        score, finished = await handoff.score, self.finished(metadata)
        if score is not None:
            metrics |= score[0]
            stages["evaluate"] = score[1]
        if score is not None or finished:
            await self.publisher.report(metadata, metrics, stages, finished=finished)

    async def hand_off_older(self, learner: Learner) -> None:
        """Publish and report older steps on disk: the process may have been killed before it did."""
        for step in learner.checkpoints.steps():
            if step >= learner.step:
                continue
            try:
                metadata = await asyncio.to_thread(learner.checkpoints.read, step)
            except (MismatchError, StorageError) as error:  # the chain decides whether it is needed
                log.warning("an older step cannot be read", step=step, error=str(error))
                continue
            sizes = await self.publisher.publish(metadata, *learner.checkpoints.published(step))
            metrics = {**metadata.metrics, **sizes}
            await self.publisher.report(metadata, metrics, metadata.stages, finished=False)

    # Help

    async def _do(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the one thread that torch is used from."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
