"""Make work: draw, generate, score, save; at most AHEAD files more than the chain has taken."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from muster.clients.run_data import RunTasks, make_rules
from muster.protocol.messages import Demand
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import AGAIN, PollOutcome, Waiting
from muster.verification.rules import Rules
from worker.context import WorkerContext
from worker.decisions import next_to_make, unwanted_reason, waiting_reason
from worker.engine import Engine, EngineLimits
from worker.rollouts import Assignment, make_requests, make_rollouts
from worker.step_check import StepCheck
from worker.weights import CurrentWeights, FetchedStep, NewestCheckpoint

log = telemetry.logger("worker")
TOKENS = telemetry.counter("worker_tokens", "Tokens sampled")


class Producer:
    """Fills the journal while there is demand."""

    def __init__(self, context: WorkerContext, newest: NewestCheckpoint, engine: type[Engine]) -> None:
        self._context = context
        self._newest = newest
        options, matmul = context.settings.worker, context.settings.bfloat16_matmul
        limits = EngineLimits.from_terms(
            context.terms, ranks=options.tensor_parallel, cache_bytes=options.cache_bytes, matmul=matmul
        )
        self.weights = CurrentWeights(lambda path: engine(path, context.profile, limits))
        self._check = StepCheck(context)
        self._tasks: RunTasks | None = None
        self._rules: Rules | None = None
        self._unwanted: Demand | None = None
        """The last answer that asked for no more work: the next comes when it is another, or after a while."""

    async def poll(self) -> PollOutcome:
        """Make the work of one index."""
        facts = await self._context.facts()
        if reason := waiting_reason(facts):
            if facts.is_new:  # an engine takes about as long to start as its first step to come
                await self._start_engine()
            return Waiting(reason)
        index = next_to_make(facts.work.next, self._context.journal.indices(facts.work.next))
        if index is None:
            return Waiting("finished work waits for the chain")
        if await self._start_engine():  # which takes so long that there may be newer weights already
            return AGAIN
        with self._newest.held() as fetched:
            if fetched is None or fetched.checkpoint.step < facts.oldest_step:
                return Waiting(f"the weights of step {facts.state.steps - 1} are not here yet")
            return await self._make(index, fetched)

    async def _start_engine(self) -> bool:
        """Start the engine with the newest weights where it has none. Return whether it did."""
        if self.weights.loaded is not None:
            return False
        with self._newest.held() as fetched:
            if fetched is None:
                return False
            await self._get_rules(fetched.path)
            await self._check.start()
            await self.weights.load(fetched)
        return True

    async def _make(self, index: int, fetched: FetchedStep) -> PollOutcome:
        if reason := self._check.known(fetched.checkpoint.step):
            return Waiting(reason)
        tasks, rules = await self._get_rules(fetched.path)
        demand = await self._context.client.demand(self._context.run, self._unwanted)
        self._unwanted = None
        if reason := unwanted_reason(index, demand):
            self._unwanted = demand
            return Waiting(reason)
        await self.weights.load(fetched)
        return await self._produce(index, fetched, tasks, rules)

    async def close(self) -> None:
        """End the processes that score and measure."""
        await self._check.close()
        if self._rules is not None:
            self._rules.scorers.close()

    async def _get_rules(self, checkpoint: Path) -> tuple[RunTasks, Rules]:
        context = self._context
        if self._tasks is None:
            self._tasks = await RunTasks.fetch(context.client, context.terms, context.settings.worker.state_dir)
        if self._rules is None:
            self._rules = await asyncio.to_thread(
                make_rules, context.chain, context.run, context.terms, self._tasks, checkpoint
            )
        return self._tasks, self._rules

    async def _produce(self, index: int, fetched: FetchedStep, tasks: RunTasks, rules: Rules) -> PollOutcome:
        """Generate the work of an index, score and save it, unless the step is sat out."""
        checkpoint = fetched.checkpoint
        draw = rules.draw(await self._context.chain.draw_source(self._context.node), index)
        await tasks.ensure_slots((group.task for group in draw.groups), rules.at(checkpoint.step).task_set.epoch)
        assignment = Assignment(checkpoint.step, index, draw)
        requests = await asyncio.to_thread(make_requests, assignment, rules)
        started = time.monotonic()
        with self._context.rate.generating() as count:
            generations = await self.weights.generate(requests)
            tokens = sum(len(generation.logprobs) for generation in generations)
            count(tokens)
        seconds = time.monotonic() - started
        rollouts = await asyncio.to_thread(make_rollouts, assignment, rules, requests, generations)
        if reason := await self._check.fault(checkpoint.step, fetched.path, rollouts):
            return Waiting(reason)
        data = await asyncio.to_thread(write_rollouts, rollouts)
        root = (await asyncio.to_thread(rollout_tree, rollouts)).root
        self._context.journal.save(index, checkpoint.step, checkpoint.anchor, root, data)
        self._context.saved.set()
        TOKENS.inc(tokens)
        log.info(telemetry.GENERATED, step=checkpoint.step, index=index, tokens=tokens, seconds=round(seconds, 3))
        failpoint("worker.generated")
        return AGAIN
