"""Who a process of the trainer is: alone, the first of several ranks, or one that follows the first."""

from __future__ import annotations

import asyncio
from typing import Final

import torch

from muster.settings import Settings, TrainerSettings
from trainer.learner import Recipe
from trainer.ranks import Alone, Group, started_by_torchrun
from trainer.replica import Replica, follow
from trainer.service import serve as train

BESIDES: Final = 3600.0
"""Seconds that rank 0 may take for evaluation and publishing, on top of its longest wait for work."""


async def serve(settings: Settings) -> None:
    """Train, or have one's part in it."""
    if not started_by_torchrun():
        return await train(settings, Alone(_device()))
    options = settings.trainer
    idle = options.patience_seconds + options.idle_seconds + BESIDES
    ranks = Group(idle_seconds=idle, dtype=getattr(torch, options.precision))
    try:
        if ranks.rank == 0:
            await train(settings, ranks)
        else:
            await asyncio.to_thread(_follow, options, ranks)
    finally:
        ranks.close()
    return None


def _follow(options: TrainerSettings, ranks: Group) -> None:
    """What the others do: be told the recipe, then follow."""
    order, _, words = ranks.hear()
    if order == "begin":
        follow(Replica(options.model, Recipe.of_words(words).update, ranks), ranks)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
