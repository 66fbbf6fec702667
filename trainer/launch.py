"""Start a process of the trainer: alone, as the first of several ranks, or as a rank that follows the first."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

import torch

from muster.errors import ConfigError, MusterError
from muster.settings.schema import Settings, TrainerSettings
from trainer.distributed import Distributed, Ranks, started_by_torchrun
from trainer.learner import Recipe
from trainer.model_replica import Replica, follow
from trainer.service import serve as train

SILENCE_SECONDS: Final = 3600.0
"""Longest that the first rank may compute without a command, as in evaluation. While it waits, it sends heartbeats."""


async def serve(settings: Settings) -> None:
    """Train, or take part as one of several ranks."""
    options = settings.trainer
    if not started_by_torchrun():
        if options.precision != "float32":
            raise ConfigError(
                f"trainer.precision is {options.precision}, which only ranks under torchrun compute in",
                hint="torchrun --nproc-per-node=1 -m trainer --config FILE, or set it to float32",
            )
        return await train(settings, Ranks(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    ranks = Distributed(silence_seconds=SILENCE_SECONDS, dtype=getattr(torch, options.precision))
    try:
        if ranks.rank == 0:
            await train(settings, ranks)
        else:
            for number in (signal.SIGTERM, signal.SIGINT):  # torchrun sends them to all ranks: rank 0 ends the others
                asyncio.get_running_loop().add_signal_handler(number, lambda: None)
            await asyncio.to_thread(_follow, options, ranks)
    except (MusterError, asyncio.CancelledError):
        ranks.close()
        raise
    # After any other error nothing is broadcast: the others may be in the middle of an update. torchrun ends them.
    ranks.close()
    return None


def _follow(options: TrainerSettings, ranks: Distributed) -> None:
    """Receive the recipe from rank 0, then follow its commands."""
    command, _, fields = ranks.receive()
    if command == "begin":
        follow(Replica(options.model, Recipe.from_dict(fields).update, ranks), ranks)
