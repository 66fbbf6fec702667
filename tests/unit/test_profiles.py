"""Profiles: found by the hash that a run's terms hold, and stricter about accusing than about rejecting."""

from __future__ import annotations

import pytest
from eth_utils.crypto import keccak

from muster.errors import ConfigError
from muster.profiles import BF16, CPU_FP32, PROFILES, Profile, profile_by_hash, profile_hash
from muster.toploc import CODECS

# The largest honest value of each statistic over the calibration runs that `muster.profiles` describes.
WORST_HONEST = {
    CPU_FP32.name: {"mean_gap": 1e-5, "worst_gap": 1e-5, "activation": 4.1e-4, "logprobs": 1.2e-5},
    BF16.name: {"mean_gap": 5.0e-3, "worst_gap": 5.5e-2, "activation": 2.7e-2, "logprobs": 8.9e-2},
}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_accusing_is_stricter_and_twice_as_far_out_as_honest_work(profile: Profile) -> None:
    assert profile.codec in CODECS
    for statistic, honest in WORST_HONEST[profile.name].items():
        limit = getattr(profile, statistic)
        assert honest < limit.reject < limit.accuse
        assert limit.accuse >= 2 * honest


def test_the_hash_is_that_of_the_name_and_leads_back() -> None:
    assert profile_hash("cpu-fp32-projection-v1") == keccak(b"cpu-fp32-projection-v1")
    for name, profile in PROFILES.items():
        assert profile_by_hash(profile_hash(name)) is profile


def test_unknown_profiles_are_configuration_errors() -> None:
    with pytest.raises(ConfigError, match="no verification profile 'fp8'"):
        profile_hash("fp8")
    with pytest.raises(ConfigError, match="not known here"):
        profile_by_hash(bytes(32))
