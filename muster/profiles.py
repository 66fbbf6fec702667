"""Verification profiles: how a run's work is measured, and how far off honest work can be.

A run's terms name its profile by hash; worker and validators then compute in the profile's dtype, prove with its codec
and judge by its limits. The limits are protocol constants with a calibration behind them. Changing one changes who is
rejected, so a changed profile gets a new name, never new numbers.

The numbers beside the limits are what `benchmarks/calibrate.py` found on a CPU: vLLM against the transformers forward
of `validator.replay`, a trained model of 0.34M parameters at temperatures 1 and 0.6 and random ones of 0.34M and 20M,
prompts of 20 to 330 tokens, completions of 1 to 96, with and without a warm prefix cache. "Honest" is the largest value
of any rollout in these and earlier runs; an adversary's values are the least and the median of its 256 rollouts on the
trained model at temperature 1. A limit that accuses is at least twice as far out as the worst honest value.
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
    # Honest 0 and 0: where logits agree to 1e-5, a near-tie falls the other way once in 100,000 tokens, by about 1e-5.
    # One edited token has a worst gap of 1.9 (median 8.1). Greedy, a temperature of 1.2 and another seed have mean gaps
    # of 0 (median 0.23, 0.044, 0.54): a completion that the model is sure of is the same however it is sampled.
    mean_gap=Limit(reject=5e-4, accuse=1e-3),
    worst_gap=Limit(reject=1e-3, accuse=5e-3),
    # Honest 4.1e-4, all of it the proof's rounding to float16, which cannot exceed 4.9e-4. Noise of 2% 5.4e-3 (median
    # 3.4e-2); weights one step old at a learning rate of 3e-4 1.1e-2, in the ramp before it 3.2e-3; int8 weights 1.7e-3
    # (9.9e-3); constant, random and shuffled proofs 0.66.
    activation=Limit(reject=1e-3, accuse=2e-3),
    # Honest 1.2e-5. Log-probabilities scaled by 0.9: 1.9e-2 (median 0.23).
    logprobs=Limit(reject=1e-3, accuse=5e-3),
)

BF16: Final = Profile(
    name="bf16-projection-v1",
    codec="projection",
    dtype="bfloat16",
    # Honest 5.0e-3 and 5.5e-2: bfloat16 logits differ by up to some hundredths. One edited token 1.9; a mean gap of
    # greedy sampling has a median of 0.23, of a temperature of 1.2 0.045.
    mean_gap=Limit(reject=2e-2, accuse=4e-2),
    worst_gap=Limit(reject=0.25, accuse=0.5),
    # Honest 2.7e-2. Constant, random and shuffled proofs 0.66. What changes a small model less than bfloat16 does goes
    # unseen in a single rollout of it: noise of 2% 1.3e-2 (median 3.5e-2), one step old 1.7e-2 (5.4e-2), int8 6.1e-3
    # (1.3e-2). Where that matters, compute in float32.
    activation=Limit(reject=5e-2, accuse=0.1),
    # Honest 8.9e-2. Log-probabilities scaled by 0.9: 5.0e-2 (median 0.23), so caught where a token was unlikely.
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
