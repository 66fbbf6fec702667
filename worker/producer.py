"""Making work: draw, generate, score, save; a few files ahead of those the chain has taken, and never more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from muster import telemetry
from muster.failpoints import failpoint
from muster.inspection import Commitment, Rules
from muster.profiles import profile_by_hash
from muster.rollouts.file import write_rollouts
from muster.rollouts.leaves import rollout_tree
from muster.run_data import fetch_task_set, make_rules
from worker.decisions import Facts, must_wait, next_to_make
from worker.engine import Engine, EngineLimits
from worker.policy import Fetched, NewestCheckpoint, Policy
from worker.work import Assignment, requests_of, rollouts_of
from worker.workplace import Workplace

log = telemetry.logger("worker")
TOKENS = telemetry.counter("worker_tokens", "Completion tokens generated")


class Producer:
    """Fills the journal while there is demand. `close` frees the engine."""

    def __init__(self, place: Workplace, newest: NewestCheckpoint, engine: type[Engine]) -> None:
        self._place = place
        self._newest = newest
        profile, options = profile_by_hash(place.terms.profile), place.settings.worker
        self._policy = Policy(
            lambda path: engine(
                path,
                profile,
                EngineLimits.of_terms(place.terms, ranks=options.tensor_parallel, cache_bytes=options.cache_bytes),
            ),
            newest.generating,
        )
        self._rules: Rules | None = None

    async def close(self) -> None:
        await self._policy.close()

    async def turn(self) -> str:
        """Make the work of one index; returns why there is none to make, or ""."""
        facts = await self._place.facts()
        if reason := must_wait(facts):
            return reason
        index = next_to_make(facts.work.next, self._place.journal.indices(facts.work.next))
        if index is None:
            return "finished work waits for the chain"
        with self._newest.held() as fetched:
            if fetched is None or fetched.checkpoint.step < facts.oldest_step:
                return f"the weights of step {facts.state.steps - 1} are not here yet"
            return await self._make(index, fetched, facts)

    async def _make(self, index: int, fetched: Fetched, facts: Facts) -> str:
        """Make the work of an index with this checkpoint; returns why not, or ""."""
        rules = await self._get_rules(fetched.path)
        demand = await self._place.client.demand(self._place.run)
        if not demand.wanted:
            return f"no more work is wanted now: {demand.waiting_groups} groups wait for the trainer"
        starting = self._policy.loaded is None
        await self._policy.load(fetched)
        if not starting:  # starting an engine takes so long that there may be newer weights already
            await self._produce(index, fetched, facts, rules)
        return ""

    async def _get_rules(self, checkpoint: Path) -> Rules:
        if self._rules is None:
            place = self._place
            task_set = await fetch_task_set(place.client, place.terms, place.settings.worker.state_dir)
            self._rules = await asyncio.to_thread(make_rules, place.chain, place.run, place.terms, task_set, checkpoint)
        return self._rules

    async def _produce(self, index: int, fetched: Fetched, facts: Facts, rules: Rules) -> None:
        """Generate, score and save."""
        checkpoint = fetched.checkpoint
        commitment = Commitment(rules.run, checkpoint.step, self._place.node, index, bytes(32), hour=0, block=0)
        draw = rules.draw(commitment, checkpoint.entropy, facts.node.work_class)
        assignment = Assignment(checkpoint.step, index, draw)
        requests = await asyncio.to_thread(requests_of, assignment, rules)
        started = time.monotonic()
        generations = await self._policy.generate(requests)
        seconds = time.monotonic() - started
        rollouts = await asyncio.to_thread(rollouts_of, assignment, rules, requests, generations)
        data = await asyncio.to_thread(write_rollouts, rollouts)
        root = (await asyncio.to_thread(rollout_tree, rollouts)).root
        self._place.journal.save(index, checkpoint.step, checkpoint.anchor, root, data)
        self._place.saved.set()
        tokens = sum(len(generation.tokens) for generation in generations)
        TOKENS.inc(tokens)
        log.info("generated", step=checkpoint.step, index=index, tokens=tokens, seconds=round(seconds, 3))
        failpoint("worker.generated")
