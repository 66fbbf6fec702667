"""Verification profiles: how a run's work is measured, and how far off honest work can be.

A run's terms name its profile by hash; worker and validators then compute in the profile's dtype and judge by its
limits. The limits are protocol constants with a calibration behind them. Changing one changes who is rejected, so a
changed profile gets a new name, never new numbers.

What honest work measures under each profile, how far beyond that the limits are, and what every known cheat measures
is in docs/understand/verification.md, which `benchmarks/calibrate.py` and `benchmarks/adversaries.py` write. A limit
that accuses is at least twice as far out as the worst honest value there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, FiniteFloat

from muster.errors import ConfigError
from muster.protocol.hashes import keccak
from muster.protocol.messages import Message
from muster.protocol.reasons import ROW_STATISTICS


@dataclass(frozen=True)
class Limit:
    """Two thresholds for one statistic; a value above one fails it."""

    reject: float
    """Above this a rollout is not used."""
    accuse: float
    """Above this its worker is accused."""


Measured = Annotated[FiniteFloat, Field(ge=0)]


class PoolLimits(Message):
    """Above these a unit of a pool leans (`muster.verification.pools`): at least twice the worst honest cell's mean."""

    gap_mean: Measured
    activation: Measured
    logprob_rms: Measured
    logprob_mean: Measured


class LookLimits(Message):
    """How far the numbers of a look may be from another machine's (`muster.verification.look`).

    At least twice, in bfloat16 2.5 times, what honest and perturbed machines differ by: SmolLM2-135M's differ by more
    than the demo's model's (`benchmarks/inspection.py --only look_honest`).
    """

    states: Annotated[FiniteFloat, Field(gt=0)]
    """Of sums of states."""
    leads: Annotated[FiniteFloat, Field(gt=0)]
    """Of sums of leads, in nats."""


@dataclass(frozen=True)
class Profile:
    """One way to verify. The limits are for `muster.verification.statistics.RowStatistics`."""

    name: str
    dtype: str
    """What worker and validator compute in: `float32` or `bfloat16`."""
    devices: tuple[str, ...]
    """Kinds of device that the limits hold for: `cpu`, `cuda`. GPUs compute float32 attention in TF32."""
    state_error: float
    """Relative error of the last hidden state that is always expected between two machines, whatever a proof shows."""
    logit_rounding: float
    """Relative error of a logit by rounding alone."""
    licence: float
    """Largest relative distance of one token's state, by the proofs of its row, that explains errors of its claims."""
    activation: Limit
    activation_cap: float
    """Largest relative distance of one token's state that counts in the row's."""
    pool: PoolLimits
    look: LookLimits
    # In expected errors (`muster.verification.statistics`), which is why they are the same for all.
    gap_mean: Limit = Limit(reject=0.4, accuse=0.8)
    gap_worst: Limit = Limit(reject=8.0, accuse=16.0)
    logprob_rms: Limit = Limit(reject=2.5, accuse=5.0)
    logprob_worst: Limit = Limit(reject=12.0, accuse=24.0)
    logprob_drift: Limit = Limit(reject=8.0, accuse=16.0)


STATISTICS: Final = tuple(ROW_STATISTICS)
"""Names of the statistics that have limits, in the order in which they are judged."""

CPU_FP32: Final = Profile(
    name="cpu-fp32-projection-v3",
    dtype="float32",
    devices=("cpu",),
    # A hundred times what two kernels of one machine differ by: room for other processors' order of summation.
    state_error=2e-5,
    logit_rounding=2.0**-22,
    licence=1e-4,
    # Honest is the proof's rounding to float16, which is not counted.
    activation=Limit(reject=1e-3, accuse=2e-3),
    activation_cap=0.05,
    pool=PoolLimits(gap_mean=0.02, activation=1e-4, logprob_rms=0.5, logprob_mean=0.1),
    look=LookLimits(states=2.4e-5, leads=1.2e-4),
)

BF16: Final = Profile(
    name="bf16-projection-v3",
    dtype="bfloat16",
    devices=("cpu", "cuda"),
    state_error=1e-2,
    logit_rounding=2.0**-9,
    licence=5e-2,
    # What changes a small model less than bfloat16 does goes unseen in a single rollout of it, such as int8 weights.
    # Where that matters, compute in float32.
    activation=Limit(reject=5e-2, accuse=0.1),
    activation_cap=0.2,
    pool=PoolLimits(gap_mean=0.08, activation=0.07, logprob_rms=2.2, logprob_mean=0.26),
    look=LookLimits(states=0.15, leads=0.9),
)

PROFILES: Final[dict[str, Profile]] = {profile.name: profile for profile in (CPU_FP32, BF16)}


def profile_for(dtype: str) -> str:
    """Return the name of the default profile for a model in this dtype."""
    return BF16.name if dtype == BF16.dtype else CPU_FP32.name


def profile_hash(name: str) -> bytes:
    """Return what `Terms.profile` holds: keccak of the name. Raises ConfigError for a name that is no profile."""
    if name not in PROFILES:
        raise ConfigError(f"no verification profile {name!r}", hint=f"choose one of: {', '.join(PROFILES)}")
    return keccak(name.encode())


def known_profile(value: bytes) -> Profile | None:
    """Return the profile whose name's hash this is. None: a run's own calibration, or one that is not known here."""
    return next((profile for profile in PROFILES.values() if keccak(profile.name.encode()) == value), None)


def profile_by_hash(value: bytes) -> Profile:
    """Return the profile that a run's terms name. Raises ConfigError when they name none that is known here."""
    if (known := known_profile(value)) is not None:
        return known
    raise ConfigError(f"the run's verification profile 0x{value.hex()} is not known here", hint="upgrade muster")
