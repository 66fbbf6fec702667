"""False claims of log-probabilities that are meant to steer the gradient, sized in expected errors.

`benchmarks/steering.py` searches the largest size of each that verification lets pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from muster.rollouts.schema import Rollout
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import sampled_places
from muster.verification.statistics import CLIP, LEAST, PRIOR_TOKENS
from testbed.adversaries.lab import AdversaryLab, Job


@dataclass(frozen=True, eq=False)
class LiedRow:
    """What a liar knows of one of its rows: float64 [tokens] each. It has the model, and sees the trainer's weights."""

    rollout: Rollout
    log_ratio: np.ndarray
    """The trainer's log-probabilities less its own true ones."""
    advantage: float
    units: np.ndarray
    """Expected errors of its log-odds, up to a factor."""
    random: np.random.Generator

    @property
    def logprobs(self) -> np.ndarray:
        return self.rollout.logprobs.astype(np.float64)

    @property
    def sign(self) -> float:
        return -1.0 if self.advantage < 0 else 1.0


Direction = Callable[[LiedRow], np.ndarray]
"""Which way each claim moves for a size of 1: expected errors [tokens]."""


def random_sign(row: LiedRow) -> np.ndarray:
    return row.random.choice([-1.0, 1.0], len(row.log_ratio))


def against_advantage(row: LiedRow) -> np.ndarray:
    """Claim less where the advantage is positive: the ratio rises, towards the clip."""
    return np.full(len(row.log_ratio), -row.sign)


def nearest_to_the_clip(row: LiedRow) -> np.ndarray:
    """Push the tokens that the clip is nearest to beyond it, as many as may be at the worst limit."""
    towards = row.sign * row.log_ratio
    return -row.sign * _chosen(row, towards)


def scaled(row: LiedRow) -> np.ndarray:
    """Move each claim in proportion to itself."""
    shape = row.logprobs / row.units
    return shape / max(1e-9, float(np.sqrt(np.square(shape).mean())))


def sure_tokens(row: LiedRow) -> np.ndarray:
    """Claim sure tokens to be unsure: log-odds leave these most room in nats."""
    left = np.maximum(-np.expm1(row.logprobs), LEAST)
    return -_chosen(row, -left) * LEAST / left / row.units


def largest_gradients(row: LiedRow) -> np.ndarray:
    """Push the tokens with the largest gradients towards the clip: the least probable ones."""
    return -row.sign * _chosen(row, -row.logprobs)


def _chosen(row: LiedRow, worth: np.ndarray) -> np.ndarray:
    """Return 1 for the tokens worth most, as many as the mean square lets be beyond CLIP: float64 [tokens]."""
    count = max(1, int(CPU_FP32.logprob_rms.reject**2 * (len(worth) + PRIOR_TOKENS) / CLIP**2))
    marked = np.zeros(len(worth))
    marked[np.argsort(-worth, kind="stable")[:count]] = 1.0
    return marked


LIES: Final[Mapping[str, Direction]] = {
    "all lower": lambda row: np.full(len(row.log_ratio), -1.0),
    "all higher": lambda row: np.full(len(row.log_ratio), 1.0),
    "scaled up": lambda row: scaled(row),
    "scaled down": lambda row: -scaled(row),
    "random sign": random_sign,
    "lower for good answers, higher for bad ones": against_advantage,
    "higher for good answers, lower for bad ones": lambda row: -against_advantage(row),
    "tokens nearest to the clip pushed beyond it": nearest_to_the_clip,
    "sure tokens claimed to be unsure": sure_tokens,
    "least probable tokens pushed towards the clip": largest_gradients,
}


def claim(row: LiedRow, direction: np.ndarray, size: float) -> np.ndarray:
    """Return the log-probabilities, moved in log-odds by `size` times `direction` expected errors: float32 [tokens]."""
    true = np.minimum(row.logprobs, -LEAST)
    odds = true - np.log(-np.expm1(true)) + size * direction * row.units
    return (-np.logaddexp(0.0, -odds)).astype(np.float32)


def distort(rollout: Rollout, size: float) -> bytes:
    """Return the row's projection proof as if each state were longer by this share."""
    numbers = np.frombuffer(rollout.proof, "<f2").astype(np.float64) * (1 + size)
    return numbers.astype("<f2").tobytes()


@torch.inference_mode()
def expected_units(lab: AdversaryLab, job: Job, rows: Sequence[Rollout]) -> list[np.ndarray]:
    """Return the expected errors of each row's log-odds: float64 [tokens] each.

    By rounding, and by states that are as far off as a proof may license.
    """
    replayer, profile, places = lab.replayer, lab.profile, sampled_places(rows)
    replayer.load_weights(lab.checkpoints[job.commitment.step])
    scores, _ = replayer._score(replayer._states(rows, places), rows, places)
    state_error = np.hypot(profile.state_error, profile.licence)
    units = np.hypot(state_error * scores.logprob_scales, profile.logit_rounding * scores.magnitudes) + 1e-5
    return np.split(units.astype(np.float64), np.cumsum(list(map(len, places)))[:-1])


UNLIMITED: Final[Mapping[str, Callable[[LiedRow], float]]] = {
    "one row in 168 beyond the clip": lambda row: -0.9 * row.sign,
    "one bad row in 168 weighed more than twice": lambda row: -0.9 if row.advantage < 0 else 0.0,
    "one row in 168 left out": lambda row: -9.0,
}
"""By kind, nats that each claim of a row is moved by. The largest that is not left out is `mismatch_bound`, 1 nat."""
