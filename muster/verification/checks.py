"""What makes a commitment good: the reasons to reject one, and the static checks, which need no forward pass.

Static checks run before replay checks, and the first failure decides; within a check the lowest position does.
Everything here is pure: the same rows, commitment and rules give the same finding on every machine. A jury relies on
that. The replay checks (sampling, activations, log-probabilities) are the validator's (`muster.verification.replay`);
`muster.verification.bundles` is how a finding travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from muster.constants import MAX_EVIDENCE_BYTES
from muster.environments.rewards import length_reward
from muster.errors import MismatchError
from muster.protocol.draws import Draw, GroupDraw
from muster.protocol.reasons import Reason
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import conversation_error, counted_length
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import last_turn, sampled_length, spans_error, termination_error
from muster.tasksets.grades import RowGrade
from muster.verification.rules import CommittedWork, Rules

LOGPROB_SLACK: Final = 1e-4
"""How far above zero rounding may lift a log-probability. Changing this changes who is `out_of_bounds`."""

MAX_ROW_BYTES: Final = MAX_EVIDENCE_BYTES // 4
"""Largest row: any single one fits into evidence with its task, or one too large to show could be as wrong as it likes.
Changing this changes what is `malformed`."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a commitment."""

    reason: Reason
    position: int | None = None
    """The first row that failed; None where the whole file is concerned."""
    measured: float | None = None
    threshold: float | None = None
    """What was measured and what it may be at most (or must be), where the check measures something."""
    accuse: bool = True
    """Whether this is beyond the accusing threshold. A statistic may reject without proving misbehaviour."""
    detail: str = ""
    """For people."""


@dataclass(frozen=True)
class CheckedRow:
    """A row, what it must be, and what that is judged by."""

    rollout: Rollout
    draw: Draw
    rules: Rules

    @cached_property
    def position(self) -> int:
        """Return the position that the row claims."""
        return self.rollout.position

    @property
    def drawn(self) -> GroupDraw:
        """Return the task and budget that were drawn for the position."""
        return self.draw.groups[self.position // self.rules.terms.group_size]

    def finding(
        self, reason: Reason, detail: str, measured: float | None = None, threshold: float | None = None
    ) -> Finding:
        """Return a finding about this row."""
        return Finding(reason, self.position, measured, threshold, detail=detail)


# Whole files


def check_shape(rollouts: Sequence[Rollout], commitment: CommittedWork, terms: Terms) -> Finding | None:
    """Check the number of rows, that each is in its place, and that none is too large to be shown as evidence."""
    if len(rollouts) != terms.positions:
        detail = f"{len(rollouts)} rows, a commitment has {terms.positions}"
        return Finding("malformed", None, len(rollouts), terms.positions, detail=detail)
    for position, rollout in enumerate(rollouts):
        if finding := check_place(rollout, position, commitment, terms):
            return finding
        if rollout.nbytes > MAX_ROW_BYTES:
            detail = f"row {position} has {rollout.nbytes} bytes"
            return Finding("malformed", position, rollout.nbytes, MAX_ROW_BYTES, detail=detail)
    return None


def check_place(rollout: Rollout, position: int, commitment: CommittedWork, terms: Terms) -> Finding | None:
    """Check that a row states the run, step, group and sample of its `position`."""
    group, sample = divmod(position, terms.group_size)
    actual = (rollout.run, rollout.step, rollout.position, rollout.group, rollout.sample)
    expected = (commitment.run, commitment.step, position, group, sample)
    if actual != expected:
        detail = f"row {position} has run, step, position, group, sample {actual}, not {expected}"
        return Finding("malformed", position, detail=detail)
    return None


def check_root(rollouts: Sequence[Rollout], commitment: CommittedWork) -> Finding | None:
    """Check that the rows' Merkle root is the one that was committed."""
    root = rollout_tree(rollouts).root
    if root != commitment.root:
        detail = f"the rows' root is 0x{root.hex()}, the committed one 0x{commitment.root.hex()}"
        return Finding("wrong_root", detail=detail)
    return None


# Rows


def check_draw(row: CheckedRow) -> Finding | None:
    """Check that task, budget and seed are those of the draw."""
    r = row.rollout
    actual = (r.task, r.budget, r.seed)
    expected = (row.drawn.task, row.drawn.budget, row.draw.seeds[row.position])
    if actual == expected:
        return None
    return row.finding("wrong_draw", f"task, budget, seed {actual}, drawn were {expected}")


def check_prompt(row: CheckedRow) -> Finding | None:
    """Check that the prompt is the drawn task's and announces the drawn budget."""
    expected = row.rules.prompt(row.drawn.task, row.drawn.budget)
    if np.array_equal(row.rollout.prompt_tokens, expected):
        return None
    return row.finding("wrong_prompt", f"{len(row.rollout.prompt_tokens)} prompt tokens that are not the task's")


def check_bounds(row: CheckedRow) -> Finding | None:
    """Check lengths and values of tokens and log-probabilities.

    There are 1 to the limit tokens, all in the vocabulary, in one span or in several of a task with tools: else it is
    a `wrong_span`. There are as many log-probabilities as tokens that were sampled, each finite and at most zero.
    """
    tokens, logprobs = row.rollout.completion_tokens, row.rollout.logprobs
    limit = row.rules.terms.max_completion_tokens
    if not 1 <= len(tokens) <= limit:
        return row.finding("out_of_bounds", f"{len(tokens)} completion tokens", len(tokens), limit)
    error = spans_error(row.rollout.spans, len(tokens))
    if not error and len(row.rollout.spans) > 1 and row.rules.turns(row.drawn.task) is None:
        error = "the spans are not one sampled span, the whole completion"
    if error:
        return row.finding("wrong_span", error)
    sampled = sampled_length(row.rollout.spans)
    if len(logprobs) != sampled:
        detail = f"{len(logprobs)} log-probabilities for {sampled} tokens"
        return row.finding("out_of_bounds", detail, len(logprobs), sampled)
    if tokens.min() < 0 or tokens.max() >= row.rules.model.vocabulary:
        worst = int(tokens.min() if tokens.min() < 0 else tokens.max())
        return row.finding(
            "out_of_bounds", f"token {worst} is not in the vocabulary", worst, row.rules.model.vocabulary
        )
    if not np.isfinite(logprobs).all():
        return row.finding("out_of_bounds", "a log-probability is not finite")
    if logprobs.max() > LOGPROB_SLACK:
        return row.finding("out_of_bounds", "a log-probability above zero", float(logprobs.max()), LOGPROB_SLACK)
    return None


def check_termination(row: CheckedRow) -> Finding | None:
    """Check that the completion ends where and why it says, by the rule of `muster.rollouts.spans`."""
    r, rules = row.rollout, row.rules
    limit = rules.terms.max_completion_tokens
    error = termination_error(r.completion_tokens, r.spans, r.finish_reason, rules.model.stop_tokens, limit)
    return None if error is None else row.finding("wrong_termination", *error)


def check_turns(row: CheckedRow) -> Finding | None:
    """Check that every call was run, and that what was given is what the calls lead to, token by token.

    What another machine could have come to otherwise is no ground for a case. Raises UnreachableError when this machine
    cannot run a tool.
    """
    r, rules = row.rollout, row.rules
    turns = rules.turns(row.drawn.task)
    if turns is None:
        return None
    fuel, limit = r.call_fuel.tolist(), rules.terms.max_completion_tokens
    error, unsure = conversation_error(turns, r.completion_tokens, r.spans.tolist(), fuel, limit)
    return replace(row.finding("wrong_tool", error), accuse=not unsure) if error else None


def check_reward(row: CheckedRow) -> Finding | None:
    """Check that scoring again gives the row's score, its parts, its fuel and its length reward.

    A score that another machine could have come to otherwise is not judged. Raises UnreachableError when this machine
    cannot run the scorer. The row of a sealed task says nothing of its score, which the trainer grades.
    """
    r, slot = row.rollout, row.drawn.task
    if finding := _check_ungraded(row) if row.rules.is_sealed(slot) else _check_score(row):
        return finding
    expected = length_reward(row.drawn.budget, counted_length(row.rules.turns(slot), r.completion_tokens, r.spans))
    if r.length_reward != expected:
        return row.finding("wrong_reward", "the length reward is not the rule's", r.length_reward, expected)
    return None


def _check_ungraded(row: CheckedRow) -> Finding | None:
    r = row.rollout
    if (r.task_reward, r.parts.tolist(), r.fuel) == (0, [], 0):
        return None
    return row.finding("wrong_reward", "the task is sealed, so reward, parts and fuel are empty", r.task_reward, 0)


def _check_score(row: CheckedRow) -> Finding | None:
    r, rules = row.rollout, row.rules
    score = rules.score(row.drawn.task, last_turn(r.completion_tokens, r.spans))
    if score.unsure:
        return None
    expected = score.reward(rules.task_set.manifest(row.drawn.task))
    if r.task_reward != expected:
        return row.finding("wrong_reward", "the task reward is not the scorer's", r.task_reward, expected)
    if tuple(r.parts.tolist()) != score.parts:
        return row.finding("wrong_reward", f"the parts of the reward are not the scorer's, {score.parts}")
    if r.fuel != score.fuel:
        return row.finding("wrong_reward", "scoring used other fuel than the row says", r.fuel, score.fuel)
    return None


ROW_CHECKS: Final[dict[Reason, Callable[[CheckedRow], Finding | None]]] = {
    "wrong_draw": check_draw,
    "wrong_prompt": check_prompt,
    "out_of_bounds": check_bounds,
    "wrong_termination": check_termination,
    "wrong_tool": check_turns,
    "wrong_reward": check_reward,
}
"""In order; each relies on those before it."""


def check_rows(rollouts: Sequence[Rollout], draw: Draw, rules: Rules) -> Finding | None:
    """Run the row checks in order on rows whose positions are within the commitment (`check_shape`, `check_place`).

    What accuses comes before what only rejects.
    """
    rows = [CheckedRow(rollout, draw, rules.at(rollout.step)) for rollout in rollouts]
    rejecting: Finding | None = None
    for check in ROW_CHECKS.values():
        for row in rows:
            finding = check(row)
            if finding is not None and finding.accuse:
                return finding
            rejecting = rejecting or finding
    return rejecting


def grade_rows(rollouts: Iterable[Rollout], rules: Rules, master: bytes) -> Iterator[RowGrade]:
    """Grade the rows of sealed tasks, by the master of their step's epoch.

    Pure but for the scorers: rows that passed the static checks have the same grades everywhere. Raises MismatchError
    for a task that the run does not have, and as `Rules.grade`.
    """
    for row in rollouts:
        then = rules.at(row.step)
        if not 0 <= row.task < then.task_set.size:
            raise MismatchError(f"row {row.position} names a task that the run does not have")
        if then.is_sealed(row.task):
            answer = last_turn(row.completion_tokens, row.spans)
            yield then.grade(row.task, row.position, answer, master)


def check_file(rollouts: Sequence[Rollout], commitment: CommittedWork, draw: Draw, rules: Rules) -> Finding | None:
    """Run the static checks on a parsed file, in order: shape, root, and every row against its draw."""
    return (
        check_shape(rollouts, commitment, rules.terms)
        or check_root(rollouts, commitment)
        or check_rows(rollouts, draw, rules)
    )
