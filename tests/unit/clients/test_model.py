"""A validator's model: how much of the machine a replay takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.clients import model as model_room
from muster.clients.model import Model
from muster.errors import ConfigError
from muster.rollouts.schema import Rollout
from muster.settings.schema import MatmulSetting, Settings, ValidatorSettings
from muster.verification.look import LookSeeds
from muster.verification.profiles import CPU_FP32
from testbed.samples.commitments import honest_rows


async def test_a_replay_computes_on_as_many_threads_and_multiplies_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[int, MatmulSetting]] = []

    class Replayer:
        profile = CPU_FP32

        def __init__(
            self, folder: Path, profile: object, temperature: float, *, threads: int, matmul: MatmulSetting
        ) -> None:
            self.profile = profile
            made.append((threads, matmul))

        def load_weights(self, folder: Path) -> None: ...

        def errors(self, rollouts: list[Rollout], seeds: LookSeeds | None) -> list[Any]:
            return []

    class Checkpoints:
        @asynccontextmanager
        async def used(self, step: int) -> AsyncIterator[Path]:
            yield tmp_path

    monkeypatch.setattr(model_room, "Replayer", Replayer)
    chosen: list[tuple[int, MatmulSetting]] = [(1, "auto"), (3, "float32")]
    for threads, matmul in chosen:
        model = Model(Checkpoints(), CPU_FP32, 1.0, threads=threads, matmul=matmul)  # type: ignore[arg-type]
        assert await model.replay(0, honest_rows()[:1]) == []
    assert made == chosen
    assert ValidatorSettings().threads == 1
    assert Settings().bfloat16_matmul == "auto"


def test_a_validator_starts_only_under_a_profile_that_allows_its_device() -> None:
    elsewhere = replace(CPU_FP32, devices=("cuda",))
    with pytest.raises(ConfigError, match="is for cuda, and this machine would compute on cpu"):
        Model(None, elsewhere, 1.0)  # type: ignore[arg-type]
