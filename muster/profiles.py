"""Verification profiles: how a run's work is measured, and how far off honest work can be.

A run's terms name its profile by hash; worker and validators then compute in the profile's dtype, prove with its codec
and judge by its limits. The limits are protocol constants with a calibration behind them. Changing one changes who is
rejected, so a changed profile gets a new name, never new numbers.

How the numbers were found: `benchmarks/calibrate.py` runs vLLM on CPU against the transformers forward of
`validator.replay`, for a trained model of 0.34M parameters and random ones of 0.34M and 20M, prompts of 20 to 320
tokens and completions of 1 to 96, prefix caching on, temperatures 1 and 0.6. "Honest" below is the largest value over
all rollouts of these runs; an adversary's number is its smallest over 256 rollouts of the trained model. A limit that
accuses is at least twice as far out as the worst honest value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eth_utils.crypto import keccak

from muster.errors import ConfigError


@dataclass(frozen=True)
class Limit:
    """Two thresholds for one statistic; a value above one fails it."""

    reject: float
    """Above this a rollout is not used."""
    accuse: float
    """Above this its worker is taken to court."""


@dataclass(frozen=True)
class Profile:
    """One way to verify. The statistics are those of `validator.replay.Measurement`."""

    name: str
    codec: str
    """Key of `muster.toploc.CODECS`."""
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
    # Honest 0 and 0: with logits equal to 1e-5, a near-tie falls the other way once in 100,000 tokens, by about 1e-5.
    # One edited token has a worst gap of 3.5 and more.
    mean_gap=Limit(reject=5e-4, accuse=1e-3),
    worst_gap=Limit(reject=1e-3, accuse=5e-3),
    # Honest 3.3e-4, all of it the proof's rounding to float16. Noise of 2% 5.4e-3; weights one step old at a learning
    # rate of 3e-4 3.2e-3; int8 weights 1.7e-3 (median 3.5e-3); other or forged proofs 0.7 and more.
    activation=Limit(reject=1e-3, accuse=2e-3),
    # Honest 1.2e-5. Log-probabilities scaled by 0.9 1.9e-2.
    logprobs=Limit(reject=1e-3, accuse=5e-3),
)

BF16: Final = Profile(
    name="bf16-projection-v1",
    codec="projection",
    dtype="bfloat16",
    # Honest 5.0e-3 and 5.0e-2: bfloat16 logits are apart by up to a few hundredths. One edited token 0.11 and 3.6.
    mean_gap=Limit(reject=2e-2, accuse=4e-2),
    worst_gap=Limit(reject=0.25, accuse=0.5),
    # Honest 2.6e-2 at 20M parameters, 1.4e-2 at 0.34M. Other or forged proofs 0.4 and more. Noise of 2% has a median of
    # 8e-2 at 20M but 1.2e-2 at 0.34M: for small models and small lies use the float32 profile.
    activation=Limit(reject=5e-2, accuse=0.1),
    # Honest 8.8e-2. Log-probabilities scaled by 0.9 a median of 0.14: caught where a token was unlikely.
    logprobs=Limit(reject=0.3, accuse=0.6),
)

PROFILES: Final[dict[str, Profile]] = {profile.name: profile for profile in (CPU_FP32, BF16)}


def profile_hash(name: str) -> bytes:
    """What `Terms.profile` holds: keccak of the name. Raises ConfigError for a name that is no profile."""
    if name not in PROFILES:
        raise ConfigError(f"no verification profile {name!r}", hint=f"choose one of: {', '.join(PROFILES)}")
    return keccak(name.encode())


def profile_by_hash(value: bytes) -> Profile:
    """The profile a run's terms name. Raises ConfigError when this version does not know it."""
    for profile in PROFILES.values():
        if keccak(profile.name.encode()) == value:
            return profile
    raise ConfigError(f"the run's verification profile 0x{value.hex()} is not known here", hint="upgrade muster")
