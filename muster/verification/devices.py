"""Which kinds of device may compute under a profile: others round differently than its limits allow for."""

from __future__ import annotations

from muster.errors import ConfigError
from muster.verification.profiles import PROFILES, Profile


def check_device(profile: Profile, device: str) -> None:
    """Raise ConfigError when a worker or validator on this kind of device (`cpu`, `cuda`) is not allowed by a profile.

    Does not apply to the trainer: its computations are not replayed.
    """
    if device in profile.devices:
        return
    allowed, others = " or ".join(profile.devices), ", ".join(served_profiles(device)) or "none"
    hint = f"work for a run with another profile ({device} serves: {others})"
    if profile.devices == ("cpu",):
        hint = (
            "set CUDA_VISIBLE_DEVICES= and install the engine for processors (MUSTER_EXTRA=cpu make setup), or " + hint
        )
    raise ConfigError(f"profile {profile.name} is for {allowed}, and this machine would compute on {device}", hint=hint)


def served_profiles(device: str) -> list[str]:
    """Return the names of the profiles that a kind of device may compute under."""
    return [profile.name for profile in PROFILES.values() if device in profile.devices]
