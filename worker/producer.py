"""Make work: draw, generate, score, save; at most AHEAD files more than the chain has taken."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from muster.clients.run_data import RunTasks, make_rules
from muster.errors import RefusedError
from muster.protocol.hashes import hex_hash
from muster.protocol.messages import Demand, PlantedRow, TrapMap, TrapPromise
from muster.protocol.traps import check_promise, planted_rows
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.runtime import telemetry
from muster.runtime.failpoints import failpoint
from muster.runtime.loop import AGAIN, PollOutcome, Waiting
from muster.verification.planting import Plant
from muster.verification.rules import Rules
from worker.context import WorkerContext
from worker.decisions import next_to_make, unwanted_reason, waiting_reason
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest
from worker.planter import plant
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
        await tasks.ensure(draw, rules.at(checkpoint.step).task_set.epoch)
        assignment = Assignment(checkpoint.step, index, draw)
        requests = await asyncio.to_thread(make_requests, assignment, rules)
        is_trap = await self._is_trap(index, checkpoint.step)
        trap = planted_rows(rules.terms.positions, index) if is_trap else 0
        started = time.monotonic()
        with self._context.machine.rate.generating() as count:
            generations, plants = await self._generate(requests, fetched.path, trap)
            tokens = sum(len(generation.logprobs) for generation in generations)
            count(tokens)
        seconds = time.monotonic() - started
        rollouts = await asyncio.to_thread(make_rollouts, assignment, rules, requests, generations)
        false = {plant.row for plant in plants}
        true = [row for row in rollouts if row.position not in false]
        if reason := await self._check.fault(checkpoint.step, fetched.path, true):
            return Waiting(reason)
        data = await asyncio.to_thread(write_rollouts, rollouts)
        root = (await asyncio.to_thread(rollout_tree, rollouts)).root
        rows = [PlantedRow(position=one.row, token=one.token) for one in plants]
        planted = TrapMap(salt=hex_hash(secrets.token_bytes(32)), rows=rows) if rows else None
        self._context.journal.save(index, checkpoint.step, checkpoint.anchor, root, data, planted)
        self._context.saved.set()
        TOKENS.inc(tokens)
        log.info(telemetry.GENERATED, step=checkpoint.step, index=index, tokens=tokens, seconds=round(seconds, 3))
        failpoint("worker.generated")
        return AGAIN

    async def _is_trap(self, index: int, step: int) -> bool:
        """Ask whether this commitment is to be a trap. Without a promise of the run's storage key it is none."""
        context = self._context
        if not context.terms.has_traps or index in context.without_trap:
            return False
        try:
            signature = await context.client.ask_for_trap(context.run, index, step)
        except RefusedError as error:
            log.debug("asked in vain for a trap", index=index, error=str(error))
            return False
        promise = TrapPromise(run=context.run, node=context.node, index=index, step=step, signature=signature)
        head = await context.chain.head()
        return check_promise(context.client.domain, promise, await context.chain.keys(context.run), head.timestamp)

    async def _generate(
        self, requests: Sequence[GenerationRequest], model: Path, trap: int
    ) -> tuple[list[Generation], list[Plant]]:
        """Generate what is requested; as a trap with so many false rows, if there is a place for all of them."""
        if not trap:
            return await self.weights.generate(requests), []
        generations = await self.weights.generate(requests, rivals=True)
        found = await plant(self.weights, model, self._context.profile, requests, generations, trap)
        return found or (generations, [])
