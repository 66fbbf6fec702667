"""Turn a draw into requests, and generations into rows that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.environments.manifest import Score
from muster.environments.rewards import length_reward
from muster.protocol.draws import Draw
from muster.protocol.turns.conversation import counted_length
from muster.rollouts.schema import Rollout, bare_row
from muster.rollouts.spans import last_turn
from muster.verification.rules import Rules
from worker.engine import Generation, GenerationRequest


@dataclass(frozen=True)
class Assignment:
    """One commitment to be: which step's policy generates it, and what its rows must be."""

    step: int
    index: int
    draw: Draw


def make_requests(assignment: Assignment, rules: Rules) -> list[GenerationRequest]:
    """Make one request per position, in order."""
    rules = rules.at(assignment.step)
    terms = rules.terms
    requests = []
    for position, seed in enumerate(assignment.draw.seeds):
        group = assignment.draw.groups[position // terms.group_size]
        prompt = rules.prompt(group.task, group.budget)
        turns = rules.turns(group.task)
        requests.append(GenerationRequest(prompt, seed, terms.max_completion_tokens, turns))
    return requests


def make_rollouts(
    assignment: Assignment, rules: Rules, requests: Sequence[GenerationRequest], generations: Sequence[Generation]
) -> list[Rollout]:
    """Make the rows of the commitment, scored but for those of sealed tasks: the trainer grades these."""
    rules = rules.at(assignment.step)
    return [_scored(row, assignment, rules) for row in bare_rows(requests, generations)]


def bare_rows(
    requests: Sequence[GenerationRequest], generations: Sequence[Generation], *, first: int = 0
) -> list[Rollout]:
    """Make rows of requests that are no commitment's, with positions from `first` on.

    As far as replay reads them they are as a worker would write them; they have no task, and no reward.
    """
    return [
        bare_row(
            request.prompt_tokens,
            generation.tokens,
            generation.logprobs,
            position=position,
            seed=request.seed,
            spans=generation.spans,
            call_fuel=generation.call_fuel,
            finish_reason=generation.finish_reason,
            proof=generation.proof,
        )
        for position, (request, generation) in enumerate(zip(requests, generations, strict=True), first)
    ]


def _scored(row: Rollout, assignment: Assignment, rules: Rules) -> Rollout:
    """Return the row at its place in the commitment, with its task and its scores."""
    group, sample = divmod(row.position, rules.terms.group_size)
    drawn = assignment.draw.groups[group]
    sealed = rules.is_sealed(drawn.task)
    counted = counted_length(rules.turns(drawn.task), row.completion_tokens, row.spans)
    score = Score(()) if sealed else rules.score(drawn.task, last_turn(row.completion_tokens, row.spans))
    return replace(
        row,
        run=rules.run,
        step=assignment.step,
        group=group,
        sample=sample,
        task=drawn.task,
        budget=drawn.budget,
        task_reward=0 if sealed else score.reward(rules.task_set.manifest(drawn.task)),
        parts=np.array(score.parts, np.int64),
        fuel=score.fuel,
        length_reward=length_reward(drawn.budget, counted),
    )
