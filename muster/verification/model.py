"""The run's model, for whoever replays: any recent step's weights, one replay at a time, in a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import astuple, replace
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from muster.errors import MusterError, UnreachableError
from muster.models.arithmetic import HONEST, computing, perturbing
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.verification.bundles import ReplayedRow
from muster.verification.checks import Finding
from muster.verification.devices import check_device
from muster.verification.judging import Measurement, judge, judge_stable
from muster.verification.look import LookSeeds, Outcome, judge_look
from muster.verification.pools import HONEST_DRAWS
from muster.verification.profiles import Profile
from muster.verification.replay import DEVICE, Replayer, RowErrors, spread_share
from muster.verification.statistics import RowSums, TokenErrors, scaled_errors

_log = telemetry.logger("replay")

T = TypeVar("T")

TURN_TOKENS: Final = 8192
"""Tokens that are replayed before another may have its turn: some seconds of a small model."""

_LOADING: Final = threading.Lock()
"""Loading a model changes settings of torch and transformers that all threads share."""

DRAWS: Final = 32
"""Honest machines that a row is measured on before it is blamed: some differ only now and then from all others."""
_DRAW_TOKENS: Final = 4096
"""Tokens of these together, from which on there are fewer, and DRAWS_AT_ONCE at least."""
DRAWS_AT_ONCE: Final = 8
LOOK_DRAWS: Final = 16
"""Honest machines whose numbers of a row are computed before a look's are false."""


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


def replay_rows(
    replayer: Replayer, rollouts: Sequence[Rollout], seeds: LookSeeds | None = None, *, blame: bool = True
) -> list[ReplayedRow]:
    """Measure and judge the rows under the loaded weights, in order; with `seeds` of a look also its numbers.

    A row is blamed only by tokens on which honest machines agree. The clearest such row decides: the others' findings
    lead to no accusation. None does without `blame`.
    """
    # 1. What is wrong with each by itself.
    profile = replayer.profile
    errors = replayer.errors(rollouts, seeds)
    measured = [Measurement.of(row.errors, profile, row.position, row.detail) for row in errors]
    alone = [judge([row], profile) for row in measured]
    rows = [
        ReplayedRow(finding, row.sums, beyond=finding is not None and finding.accuse, look=error.look)
        for finding, row, error in zip(alone, measured, errors, strict=True)
    ]
    accusing = [(i, row.finding) for i, row in enumerate(rows) if row.finding is not None and row.finding.accuse]

    # 2. What is wrong with it where honest machines agree.
    for i, finding in sorted(accusing, key=_clearest_first):
        judged = blamed_for(replayer, rollouts[i], errors[i], finding) if blame else replace(finding, accuse=False)
        rows[i], blame = replace(rows[i], finding=judged), blame and not judged.accuse
    return rows


def _clearest_first(found: tuple[int, Finding]) -> float:
    """Return the key by which the worst finding comes first."""
    finding = found[1]
    assert finding.measured is not None, "a replay check measures something"
    assert finding.threshold
    return -min(finding.measured / finding.threshold, sys.float_info.max)


def blamed_for(replayer: Replayer, rollout: Rollout, row: RowErrors, finding: Finding) -> Finding:
    """Return what accuses a row by tokens on which honest machines agree; else `finding`, which then only rejects."""
    tokens = len(rollout.prompt_tokens) + len(rollout.completion_tokens)
    most = max(DRAWS_AT_ONCE, min(DRAWS, _DRAW_TOKENS // tokens))
    draws: list[TokenErrors] = []
    for some in islice(replayer.spread(rollout, DRAWS_AT_ONCE), -(-most // DRAWS_AT_ONCE)):
        draws += some
        stays = judge_stable(row.errors, draws, replayer.profile, row.position, row.detail)
        if stays is None or not stays.accuse:
            share = max(spread_share(draw, replayer.profile) for draw in draws)
            fault = f"the step is at fault: honest machines differ by {share:.1f} limits on this row"
            return replace(finding, accuse=False, detail=f"{finding.detail}; {fault}")
    return stays


def check_row(
    replayer: Replayer, rollout: Rollout, claimed: np.ndarray, seeds: LookSeeds, *, accepted: bool = False
) -> Outcome:
    """Return whether a look's numbers of a row, [2, K], are true under the loaded weights (`judge_look`).

    They are false as well where the row was `accepted` and is to blame. Other arithmetics and perturbed machines, which
    cost about as many replays as they are, compute it only where the claim is beyond the limit.
    """
    [row] = replayer.errors([rollout], seeds)
    assert row.look is not None
    finding = judge([Measurement.of(row.errors, replayer.profile, row.position, row.detail)], replayer.profile)
    if accepted and finding is not None and finding.accuse and blamed_for(replayer, rollout, row, finding).accuse:
        return "false"
    found = judge_look(claimed, row.look, [], replayer.profile)
    if found != "false":
        return found
    others: list[RowErrors] = []
    for arithmetic in HONEST[replayer.profile.dtype]:
        with computing(replayer.model, arithmetic):
            others += replayer.errors([rollout], seeds)
    with perturbing(replayer.model):
        others += replayer.errors([rollout] * LOOK_DRAWS, seeds)
    return judge_look(claimed, row.look, [one.look for one in others if one.look is not None], replayer.profile)


def shares_rejection(replayer: Replayer, rollout: Rollout) -> bool:
    """Return whether this machine or a perturbed one finds anything wrong with a row under the loaded weights."""
    errors = replayer.errors([rollout])
    with perturbing(replayer.model):
        errors += replayer.errors([rollout] * LOOK_DRAWS)
    profile = replayer.profile
    return judge([Measurement.of(row.errors, profile, row.position, row.detail) for row in errors], profile) is not None


def honest_sums(replayer: Replayer, rollouts: Sequence[Rollout]) -> list[RowSums]:
    """Return the most that a few honest machines' rows in the contexts of these would add to a pool, in order."""
    draws = [next(replayer.spread(row, HONEST_DRAWS)) for row in rollouts]
    sums = [[scaled_errors(one, replayer.profile).sums(replayer.profile) for one in row] for row in draws]
    return [
        RowSums(*(max(values, key=abs) for values in zip(*(astuple(one) for one in row), strict=True))) for row in sums
    ]
