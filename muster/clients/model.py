"""The run's model, for nodes that replay: any recent step's weights, one replay at a time, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from muster.errors import MusterError, UnreachableError
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.bundles import ReplayedRow
from muster.verification.devices import check_device
from muster.verification.look import LookSeeds
from muster.verification.model import honest_sums, replay_rows
from muster.verification.profiles import Profile
from muster.verification.replay import DEVICE, Replayer
from muster.verification.statistics import RowSums

_log = telemetry.logger("replay")

T = TypeVar("T")

TURN_TOKENS: Final = 8192
"""Tokens that are replayed before another may have its turn: some seconds of a small model."""

_LOADING: Final = threading.Lock()
"""Loading a model changes settings of torch and transformers that all threads share."""


class Checkpoints(Protocol):
    """Where the weights of a step come from (`muster.clients.run_data.CheckpointFetcher`)."""

    def used(self, step: int) -> AbstractAsyncContextManager[Path]:
        """Yield the folder of a step's weights, and keep it until left."""
        ...


class Model:
    """Replays rollouts of different steps, in the order in which it is asked."""

    def __init__(self, checkpoints: Checkpoints, profile: Profile, temperature: float, **options: Any) -> None:
        """`options`: of the `Replayer`. Raises ConfigError when the profile is not for DEVICE."""
        check_device(profile, DEVICE)
        self.profile = profile
        self._checkpoints = checkpoints
        self._temperature = temperature
        self._options = options
        self._replayer: Replayer | None = None
        self._turn = asyncio.Lock()

    async def replay(self, step: int, rollouts: Sequence[Rollout], seeds: LookSeeds | None = None) -> list[ReplayedRow]:
        """Return what the replay checks say of each row under the weights of its step; with `seeds` also its look.

        The rows must have passed the static checks. Raises UnreachableError when the weights cannot be fetched or the
        model is broken: that says nothing about the rows.
        """
        blamed = False

        def work(replayer: Replayer, rows: list[Rollout]) -> list[ReplayedRow]:
            """Replay some of the rows; one that stays blamed ends the search for another."""
            nonlocal blamed
            judged = replay_rows(replayer, rows, seeds, blame=not blamed)
            blamed = blamed or any(row.finding is not None and row.finding.accuse for row in judged)
            return judged

        return await self._with_weights(step, rollouts, work)

    async def honest_sums(self, step: int, rollouts: Sequence[Rollout]) -> list[RowSums]:
        """Return what an honest machine's rows in the contexts of these would add to a pool. Raises as `replay`."""
        return await self._with_weights(step, rollouts, honest_sums)

    async def _with_weights(
        self, step: int, rollouts: Sequence[Rollout], work: Callable[[Replayer, list[Rollout]], list[T]]
    ) -> list[T]:
        try:
            found: list[T] = []
            async with self._checkpoints.used(step) as folder:
                _log.info("replaying", step=step, rows=len(rollouts))
                for rows in _turns(rollouts):
                    async with self._turn:
                        found += await asyncio.to_thread(lambda rows=rows: work(self._loaded(folder), rows))
            return found
        except MusterError as error:
            raise UnreachableError(f"step {step} cannot be replayed here: {error}", hint=error.hint) from error

    async def reload(self) -> None:
        """Forget the model and everything loaded into it: the next replay starts from the checkpoint on disk."""
        async with self._turn:
            self._replayer = None

    def _loaded(self, folder: Path) -> Replayer:
        if self._replayer is None:
            with _LOADING:
                self._replayer = Replayer(folder, self.profile, self._temperature, **self._options)
        self._replayer.load_weights(folder)
        return self._replayer


def _turns(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    """Yield the rollouts in order, by about TURN_TOKENS at a time, so that no caller waits long for a turn."""
    ends = accumulate(len(rollout.prompt_tokens) + len(rollout.completion_tokens) for rollout in rollouts)
    for _, turn in groupby(zip(ends, rollouts, strict=True), key=lambda pair: pair[0] // TURN_TOKENS):
        yield [rollout for _, rollout in turn]
