"""False claims about true work. Pure: rows in, rows out; a row that a claim does not change is returned as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muster.constants import MICRO
from muster.proofs.projection import PROJECTIONS
from muster.rollouts.schema import Rollout


def edit_one_token(rows: Sequence[Rollout], *, vocabulary: int, end: int) -> list[Rollout]:
    """One token of each completion, not the one that ends it, replaced by another that does not end it either."""
    random, edited = np.random.default_rng(11), []
    others = np.array([token for token in range(vocabulary) if token != end])
    for row in rows:
        tokens = row.completion_tokens.copy()
        places = np.flatnonzero(tokens != end)
        if not len(places):
            edited.append(row)
            continue
        place = random.choice(places)
        tokens[place] = random.choice(others[others != tokens[place]])
        edited.append(replace(row, completion_tokens=tokens))
    return edited


def inflate_task_reward(rows: Sequence[Rollout]) -> list[Rollout]:
    return [row if row.task_reward == MICRO else replace(row, task_reward=MICRO) for row in rows]


def inflate_length_reward(rows: Sequence[Rollout]) -> list[Rollout]:
    return [row if row.length_reward == 0 else replace(row, length_reward=0) for row in rows]


def other_parts(rows: Sequence[Rollout]) -> list[Rollout]:
    """Claim that other parts of the score were met, and the true reward."""
    return [replace(row, parts=MICRO - row.parts) for row in rows]


def another_fuel(rows: Sequence[Rollout]) -> list[Rollout]:
    """Claim that scoring took a little more than it did."""
    return [replace(row, fuel=row.fuel + 1) for row in rows]


def spans_that_leave_tokens_out(rows: Sequence[Rollout]) -> list[Rollout]:
    """Claim that the last token of each completion was in no span, sampled or given."""
    return [replace(row, spans=row.spans - np.int32(1)) for row in rows]


def scale_logprobs(rows: Sequence[Rollout]) -> list[Rollout]:
    return [replace(row, logprobs=row.logprobs * np.float32(0.9)) for row in rows]


def shift_one_logprob(rows: Sequence[Rollout]) -> list[Rollout]:
    """Lower each last log-probability by a hundredth: 1% on the ratio of one token."""
    shifted = []
    for row in rows:
        logprobs = row.logprobs.copy()
        logprobs[-1] -= 0.01
        shifted.append(replace(row, logprobs=logprobs))
    return shifted


# Proofs: float16 numbers, four a token


def zero_proofs(rows: Sequence[Rollout]) -> list[Rollout]:
    return [replace(row, proof=bytes(len(row.proof))) for row in rows]


def constant_proofs(rows: Sequence[Rollout]) -> list[Rollout]:
    """Claim the same four numbers for every token of every completion."""
    constant = np.array([0.5, -0.5, 0.5, -0.5], "<f2").tobytes()
    return [replace(row, proof=constant * len(row.completion_tokens)) for row in rows]


def random_proofs(rows: Sequence[Rollout]) -> list[Rollout]:
    random = np.random.default_rng(13)
    return [replace(row, proof=random.standard_normal(len(row.proof) // 2).astype("<f2").tobytes()) for row in rows]


def shuffled_proofs(rows: Sequence[Rollout]) -> list[Rollout]:
    """Move the numbers of each completion's proof on by a token."""
    shuffled = []
    for row in rows:
        proof = np.roll(np.frombuffer(row.proof, "<f2").reshape(-1, PROJECTIONS), 1, axis=0).tobytes()
        shuffled.append(row if proof == row.proof else replace(row, proof=proof))
    return shuffled


def short_proofs(rows: Sequence[Rollout]) -> list[Rollout]:
    return [replace(row, proof=row.proof[:-8]) for row in rows]


# Ends


def cut(rows: Sequence[Rollout], *, end: int | None = None) -> list[Rollout]:
    """Leave out the last third of each completion; with `end`, put that token where it now stops."""
    found = []
    for row in rows:
        kept = row.completion_tokens[: len(row.completion_tokens) - max(1, len(row.completion_tokens) // 3)]
        if end is not None:
            kept = np.append(kept, np.int32(end))
        if not len(kept) or np.array_equal(kept, row.completion_tokens):
            found.append(row)
            continue
        found.append(replace(row, completion_tokens=kept.astype(np.int32), finish_reason="stop"))
    return found


def pad_after_end(rows: Sequence[Rollout], *, filler: int, limit: int) -> list[Rollout]:
    """Extend finished completions with filler, up to the limit."""
    found = []
    for row in rows:
        room = limit - len(row.completion_tokens)
        tokens = np.append(row.completion_tokens, np.full(room, filler, np.int32))
        found.append(row if not room else replace(row, completion_tokens=tokens, finish_reason="length"))
    return found


def pad_to_budget(rows: Sequence[Rollout], *, filler: int) -> list[Rollout]:
    """Completions that think too little begin with filler, so that they meet their budget exactly."""
    found = []
    for row in rows:
        room = max(0, row.budget - len(row.completion_tokens))
        tokens = np.append(np.full(room, filler, np.int32), row.completion_tokens)
        found.append(replace(row, completion_tokens=tokens) if room else row)
    return found
