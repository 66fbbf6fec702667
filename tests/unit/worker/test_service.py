"""A worker begins by looking whether the run's profile allows its device: before it fetches or sends anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.errors import ConfigError
from muster.settings.schema import Settings, WorkerSettings
from muster.verification.profiles import BF16, CPU_FP32, Profile, profile_hash
from worker import engine as engine_room
from worker import service
from worker.engine import Engine, EngineLimits


class ReachedError(Exception):
    """The worker got past its checks."""


class Chain:
    def __init__(self, profile: Profile) -> None:
        self.profile = profile

    async def terms(self, run: int) -> Any:
        return SimpleNamespace(profile=profile_hash(self.profile.name))

    async def check_gas(self) -> None:
        raise ReachedError


@pytest.mark.parametrize(
    ("profile", "device", "error"),
    [(CPU_FP32, "cpu", ReachedError), (CPU_FP32, "cuda", ConfigError), (BF16, "cuda", ReachedError)],
)
async def test_a_worker_starts_only_on_a_device_of_the_profile(
    profile: Profile, device: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def session(settings: Settings, state: Path) -> AsyncIterator[Any]:
        yield SimpleNamespace(chain=Chain(profile), client=None, node="0x1", identity="test")

    monkeypatch.setattr(service, "node_session", session)
    monkeypatch.setattr(service, "use_temporary_folder", lambda path: None)
    monkeypatch.setattr(service, "device_kind", lambda: device)
    settings = Settings(worker=WorkerSettings(state_dir=tmp_path))
    with pytest.raises(error):
        await service.serve(settings)


def test_so_does_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_room, "device_kind", lambda: "cuda")
    with pytest.raises(ConfigError, match="is for cpu"):
        Engine(tmp_path, CPU_FP32, EngineLimits(1.0, 8, 8))
