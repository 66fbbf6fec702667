"""The run's model as a validator uses it: any recent step's weights, one replay at a time, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from muster.clients.run_data import CheckpointFetcher
from muster.errors import MusterError, UnreachableError
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.bundles import ReplayedRow
from muster.verification.devices import check_device
from muster.verification.profiles import Profile
from validator.replay import DEVICE, Replayer, judge

_log = telemetry.logger("validator")

TURN_TOKENS: Final = 8192
"""Tokens that are replayed before another may have its turn: some seconds of a small model."""

_LOADING: Final = threading.Lock()
"""Loading a model changes settings of torch and transformers that all threads share."""


class Model:
    """Replays rollouts of different steps, in the order in which it is asked."""

    def __init__(self, checkpoints: CheckpointFetcher, profile: Profile, temperature: float, **options: Any) -> None:
        """`options`: of the `Replayer`. Raises ConfigError when the profile is not for DEVICE."""
        check_device(profile, DEVICE)
        self.profile = profile
        self._checkpoints = checkpoints
        self._temperature = temperature
        self._options = options
        self._replayer: Replayer | None = None
        self._turn = asyncio.Lock()

    async def replay(self, step: int, rollouts: Sequence[Rollout]) -> list[ReplayedRow]:
        """Return what the replay checks say of each row under the weights of its step.

        The rows must have passed the static checks. Raises UnreachableError when the weights cannot be fetched or the
        model is broken: that says nothing about the rows.
        """
        try:
            found: list[ReplayedRow] = []
            async with self._checkpoints.used(step) as folder:
                _log.info("replaying", step=step, rows=len(rollouts))
                for rows in _turns(rollouts):
                    async with self._turn:
                        found += await asyncio.to_thread(self._replay, folder, rows)
            return found
        except MusterError as error:
            raise UnreachableError(f"step {step} cannot be replayed here: {error}", hint=error.hint) from error

    async def reload(self) -> None:
        """Forget the model and everything loaded into it: the next replay starts from the checkpoint on disk."""
        async with self._turn:
            self._replayer = None

    def _replay(self, folder: Path, rollouts: list[Rollout]) -> list[ReplayedRow]:
        if self._replayer is None:
            with _LOADING:
                self._replayer = Replayer(folder, self.profile, self._temperature, **self._options)
        self._replayer.load_weights(folder)
        measured = self._replayer.replay(rollouts)
        return [ReplayedRow(judge([row], self.profile), row.sums) for row in measured]


def _turns(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    """Yield the rollouts in order, as many at a time as keep nobody waiting for long: TURN_TOKENS, at least one."""
    turn: list[Rollout] = []
    tokens = 0
    for rollout in rollouts:
        length = len(rollout.prompt_tokens) + len(rollout.completion_tokens)
        if turn and tokens + length > TURN_TOKENS:
            yield turn
            turn, tokens = [], 0
        turn.append(rollout)
        tokens += length
    if turn:
        yield turn
