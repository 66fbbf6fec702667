"""Profiles hold for kinds of device, and no node starts on another kind."""

from __future__ import annotations

import pytest

from muster.errors import ConfigError
from muster.verification.devices import check_device, served_profiles
from muster.verification.profiles import BF16, CPU_FP32, PROFILES


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_profile_is_replayed_on_a_processor_and_only_bfloat16_on_a_gpu(profile) -> None:
    check_device(profile, "cpu")
    assert ("cuda" in profile.devices) == (profile.dtype == "bfloat16")


def test_float32_on_a_gpu_is_refused_with_profile_device_and_a_way_out() -> None:
    with pytest.raises(ConfigError, match=f"{CPU_FP32.name} is for cpu, .* compute on cuda") as refused:
        check_device(CPU_FP32, "cuda")
    assert "MUSTER_EXTRA=cpu make setup" in refused.value.hint
    assert f"cuda serves: {BF16.name}" in refused.value.hint


def test_another_device_serves_nothing() -> None:
    assert served_profiles("cpu") == list(PROFILES)
    assert served_profiles("tpu") == []
    with pytest.raises(ConfigError, match="is for cpu or cuda"):
        check_device(BF16, "tpu")
