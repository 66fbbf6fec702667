"""A validator's model: how much of the machine a replay takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ConfigError
from muster.rollouts.schema import Rollout
from muster.settings.schema import ValidatorSettings
from muster.verification.profiles import CPU_FP32
from validator import model as model_room
from validator.model import Model


async def test_a_replay_computes_on_as_many_threads_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[int] = []

    class Replayer:
        def __init__(self, folder: Path, profile: object, temperature: float, *, threads: int) -> None:
            made.append(threads)

        def load_weights(self, folder: Path) -> None: ...

        def replay(self, rollouts: list[Rollout]) -> list[Any]:
            return []

    class Checkpoints:
        @asynccontextmanager
        async def used(self, step: int) -> AsyncIterator[Path]:
            yield tmp_path

    monkeypatch.setattr(model_room, "Replayer", Replayer)
    for threads in (1, 3):
        model = Model(Checkpoints(), CPU_FP32, 1.0, threads=threads)  # type: ignore[arg-type]
        assert await model.replay(0, []) == []
    assert made == [1, 3]
    assert ValidatorSettings().threads == 1


def test_a_validator_starts_only_under_a_profile_that_allows_its_device() -> None:
    elsewhere = replace(CPU_FP32, devices=("cuda",))
    with pytest.raises(ConfigError, match="is for cuda, and this machine would compute on cpu"):
        Model(None, elsewhere, 1.0)  # type: ignore[arg-type]
