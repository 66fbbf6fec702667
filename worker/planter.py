"""Make a trap of what was generated: generate a few rows again, each with one false token (`verification.planting`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import SystemRandom
from typing import Final

import numpy as np
import torch

from muster.models.weights import read_head
from muster.rollouts.spans import sampled_mask
from muster.verification.planting import HeadRows, Plant, Rivals, chances, draw_plants, false_claims
from muster.verification.profiles import Profile
from worker.engine import Generation, GenerationRequest
from worker.weights import CurrentWeights

TOKENS_AT_ONCE: Final = 4096
"""Tokens of which rows of the head are compared at a time."""


async def plant(
    weights: CurrentWeights,
    model: Path,
    profile: Profile,
    requests: Sequence[GenerationRequest],
    generations: Sequence[Generation],
    count: int,
) -> tuple[list[Generation], list[Plant]] | None:
    """Return the generations with exactly `count` false rows, and where these are. None: too few rows have a place.

    `generations` were made of `requests` with their runners-up, under the weights in the folder `model`.
    """
    head = await asyncio.to_thread(read_head, model)

    def proportions(row: int, made: Generation) -> np.ndarray:
        assert made.rivals is not None
        return chances(made.rivals, head_rows(head, made.rivals, profile), requests[row].seed, profile)

    lengths = [  # the mean chance of a row's tokens is that of its sampled ones
        (len(one.prompt_tokens) + len(made.tokens)) * len(made.tokens) / len(made.logprobs)
        for one, made in zip(requests, generations, strict=True)
    ]
    draws = draw_plants(lengths, lambda row: proportions(row, generations[row]), SystemRandom())
    found, plants = list(generations), []
    while missing := count - len(plants):
        drawn = await asyncio.to_thread(lambda wanted: list(islice(draws, wanted)), missing)
        if not drawn:
            return None
        again = [replace(requests[one.row], plant=one.token) for one in drawn]
        for one, made in zip(drawn, await weights.generate(again, rivals=True), strict=True):
            # In other company a token that was nearly tied may be another, and all that follows it.
            if len(made.tokens) > one.token and proportions(one.row, made)[one.token]:
                found[one.row] = claimed_falsely(made, one.token, head, profile)
                plants.append(one)
    return found, sorted(plants, key=lambda one: one.row)


def claimed_falsely(made: Generation, token: int, head: torch.Tensor, profile: Profile) -> Generation:
    """Return a false row with its false claims."""
    assert made.rivals is not None
    mask = sampled_mask(made.spans)
    rivals = made.rivals.at(mask)
    rows = head_rows(head, rivals, profile)
    return replace(made, logprobs=false_claims(rivals, rows, made.logprobs, int(mask[:token].sum()), profile))


def head_rows(head: torch.Tensor, rivals: Rivals, profile: Profile) -> HeadRows:
    """Return how large the head's rows of each sampled token and its runner-up are, and how far apart."""
    dtype: torch.dtype = getattr(torch, profile.dtype)
    pairs = [torch.from_numpy(one.astype(np.int64)).split(TOKENS_AT_ONCE) for one in (rivals.sampled, rivals.tokens)]
    parts = [[head[one].to(dtype).float() for one in pair] for pair in zip(*pairs, strict=True)]
    norms = [torch.stack([(a - b).norm(dim=1), a.norm(dim=1), b.norm(dim=1)]) for a, b in parts]
    return HeadRows(*torch.cat(norms, dim=1).numpy())
