"""Profiles: found by the hash that a run's terms hold, and stricter about accusing than about rejecting."""

from __future__ import annotations

import pytest
from eth_utils.crypto import keccak

from muster.errors import ConfigError
from muster.verification.profiles import PROFILES, STATISTICS, Profile, profile_by_hash, profile_hash


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_accusing_is_stricter_than_rejecting(profile: Profile) -> None:
    """How far out both are of what honest work does is on docs/understand/verification.md, and held by its test."""
    for statistic in STATISTICS:
        limit = getattr(profile, statistic)
        assert 0 < limit.reject < limit.accuse


def test_the_hash_is_that_of_the_name_and_leads_back() -> None:
    assert profile_hash("cpu-fp32-projection-v3") == keccak(b"cpu-fp32-projection-v3")
    for name, profile in PROFILES.items():
        assert profile_by_hash(profile_hash(name)) is profile


def test_unknown_profiles_are_configuration_errors() -> None:
    with pytest.raises(ConfigError, match="no verification profile 'fp8'"):
        profile_hash("fp8")
    with pytest.raises(ConfigError, match="not known here"):
        profile_by_hash(bytes(32))
