"""Who a process of the trainer is: alone, the first of several ranks, or one that follows the first."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

import torch

from muster.errors import ConfigError, MusterError
from muster.settings import Settings, TrainerSettings
from trainer.learner import Recipe
from trainer.ranks import Alone, Torchrun, started_by_torchrun
from trainer.replica import Replica, follow
from trainer.service import serve as train

SILENCE: Final = 3600.0
"""Seconds that the first rank may be at something, such as a batch of a score. While it waits, it says so."""


async def serve(settings: Settings) -> None:
    """Train, or have one's part in it."""
    options = settings.trainer
    if not started_by_torchrun():
        if options.precision != "float32":
            raise ConfigError(
                f"trainer.precision is {options.precision}, which only ranks under torchrun compute in",
                hint="torchrun --nproc-per-node=1 -m trainer --config FILE, or set it to float32",
            )
        return await train(settings, Alone(_device()))
    ranks = Torchrun(silence_seconds=SILENCE, dtype=getattr(torch, options.precision))
    try:
        if ranks.rank == 0:
            await train(settings, ranks)
        else:
            _leave_the_end_to_the_first()
            await asyncio.to_thread(_follow, options, ranks)
    except (MusterError, asyncio.CancelledError):
        ranks.close()
        raise
    # Nothing is said after any other error: the others may be in the middle of an update. torchrun ends them.
    ranks.close()
    return None


def _leave_the_end_to_the_first() -> None:
    """torchrun tells all ranks to end: the others do so when the first one says it, with no update half taken."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)


def _follow(options: TrainerSettings, ranks: Torchrun) -> None:
    """What the others do: be told the recipe, then follow."""
    order, _, words = ranks.hear()
    if order == "begin":
        follow(Replica(options.model, Recipe.of_words(words).update, ranks), ranks)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
