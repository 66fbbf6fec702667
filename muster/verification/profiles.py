"""Verification profiles: how a run's work is measured, and how far off honest work can be.

A run's terms name its profile by hash; worker and validators then compute in the profile's dtype, prove with its codec
and judge by its limits. The limits are protocol constants with a calibration behind them. Changing one changes who is
rejected, so a changed profile gets a new name, never new numbers.

What honest work measures under each profile, how far beyond that the limits are, and what every known cheat measures
is in docs/verification.md, which `benchmarks/calibrate.py` and `benchmarks/adversaries.py` write. A limit that accuses
is at least twice as far out as the worst honest value there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from eth_utils.crypto import keccak

from muster.errors import ConfigError


@dataclass(frozen=True)
class Limit:
    """Two thresholds for one statistic; a value above one fails it."""

    reject: float
    """Above this a rollout is not used."""
    accuse: float
    """Above this its worker is accused."""


@dataclass(frozen=True)
class Profile:
    """One way to verify. The statistics are those of `validator.replay.Measurement`."""

    name: str
    codec: str
    """Key of `muster.proofs.CODECS`."""
    dtype: str
    """What worker and validator compute in: `float32` or `bfloat16`."""
    mean_gap: Limit
    worst_gap: Limit
    activation: Limit
    logprobs: Limit


CPU_FP32: Final = Profile(
    name="cpu-fp32-projection-v1",
    codec="projection",
    dtype="float32",
    # Where logits agree to 1e-5, a near-tie falls the other way once in 100,000 tokens, by about 1e-5. A completion
    # that the model is sure of is the same however it is sampled: no limit tells these apart, and none needs to.
    mean_gap=Limit(reject=5e-4, accuse=1e-3),
    worst_gap=Limit(reject=1e-3, accuse=5e-3),
    # Honest is the proof's rounding to float16, which cannot exceed 4.9e-4.
    activation=Limit(reject=1e-3, accuse=2e-3),
    logprobs=Limit(reject=1e-3, accuse=5e-3),
)

BF16: Final = Profile(
    name="bf16-projection-v1",
    codec="projection",
    dtype="bfloat16",
    # bfloat16 logits differ by up to some hundredths.
    mean_gap=Limit(reject=2e-2, accuse=4e-2),
    worst_gap=Limit(reject=0.25, accuse=0.5),
    # What changes a small model less than bfloat16 does goes unseen in a single rollout of it, such as int8 weights.
    # Where that matters, compute in float32.
    activation=Limit(reject=5e-2, accuse=0.1),
    logprobs=Limit(reject=0.3, accuse=0.6),
)

# With TOPLOC's published form instead. Its distance jumps: an entry that only one side keeps, at a tie, costs a
# completion of one chunk up to 0.07, however close the states are. So the limits leave room for one of these before
# they reject and for two before they accuse, and less is seen of cheaper weights (docs/verification.md).
CPU_FP32_TOPLOC: Final = replace(
    CPU_FP32, name="cpu-fp32-toploc-v1", codec="toploc", activation=Limit(reject=0.1, accuse=0.2)
)

PROFILES: Final[dict[str, Profile]] = {profile.name: profile for profile in (CPU_FP32, BF16, CPU_FP32_TOPLOC)}


def profile_hash(name: str) -> bytes:
    """Return what `Terms.profile` holds: keccak of the name. Raises ConfigError for a name that is no profile."""
    if name not in PROFILES:
        raise ConfigError(f"no verification profile {name!r}", hint=f"choose one of: {', '.join(PROFILES)}")
    return keccak(name.encode())


def profile_by_hash(value: bytes) -> Profile:
    """Return the profile that a run's terms name. Raises ConfigError when this version does not know it."""
    for profile in PROFILES.values():
        if keccak(profile.name.encode()) == value:
            return profile
    raise ConfigError(f"the run's verification profile 0x{value.hex()} is not known here", hint="upgrade muster")
