"""Weights of a worker: those of the step before serve while the next ones travel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from worker.weights import NewestCheckpoint


async def test_the_step_before_serves_while_the_next_one_travels(tmp_path: Path) -> None:
    steps = [SimpleNamespace(step=step) for step in (1, 2)]
    travels, arrived = asyncio.Event(), asyncio.Event()

    async def latest(run: int, known: int) -> Any:
        return steps[known]

    async def fetched(step: int) -> Path:
        if step == 2:
            travels.set()
            await arrived.wait()
        return tmp_path / str(step)

    chain: Any = SimpleNamespace(latest_checkpoint=latest)
    checkpoints: Any = SimpleNamespace(get=fetched)
    newest = NewestCheckpoint(chain, 1, checkpoints)
    await newest.poll()
    fetching = asyncio.create_task(newest.poll())
    await travels.wait()
    with newest.held() as held:
        assert held is not None
        assert held.checkpoint.step == 1
    arrived.set()
    await fetching
    with newest.held() as held:
        assert held is not None
        assert held.checkpoint.step == 2
