"""Rows that no model wrote: a token again and again, an end token, and made-up log-probabilities and proofs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span
from worker.engine import Generation, GenerationRequest
from worker.rollouts import bare_rows

TOKENS = 64
"""Token ids of which rows are made."""
SPECIAL, RARE = 20, 12
"""How many of them are the first of the vocabulary, and how many the last."""
LENGTHS = (12, 48, 96)
"""Of their completions, without the end token."""
LOGPROB = -1.0
"""What they claim of every token."""


def token_ids(vocabulary: int) -> list[int]:
    """Return TOKENS ids of a vocabulary, always the same ones."""
    others = Random("unrun rows").sample(range(SPECIAL, vocabulary - RARE), TOKENS - SPECIAL - RARE)
    return [*range(SPECIAL), *sorted(others), *range(vocabulary - RARE, vocabulary)]


def unrun_rows(prompt: np.ndarray, end: int, ids: Sequence[int], lengths: Sequence[int] = LENGTHS) -> list[Rollout]:
    """Return a row for each token and length. Its proof is of states that are zero."""
    random, completions = Random(56), [[one] * length + [end] for one in ids for length in lengths]
    requests = [GenerationRequest(prompt, random.getrandbits(63), len(tokens)) for tokens in completions]
    return bare_rows(requests, [made_up(np.array(tokens, np.int32)) for tokens in completions])


def made_up(tokens: np.ndarray) -> Generation:
    """Return what an engine would have generated, with a proof of states that are zero."""
    count = len(tokens)
    return Generation(tokens, np.full(count, LOGPROB, np.float32), "stop", bytes(8 * count), one_span(count))
