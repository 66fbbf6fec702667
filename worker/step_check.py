"""Whether a step is worth working on: asked of the judge's own code, in a process beside the engine.

Weights can be such that honest work of them is rejected. It leads to no accusation (`muster.verification.model`), but
the work is lost; so a worker measures its own rows before its first commitment of a step.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.runtime import telemetry
from muster.runtime.files import write_durably
from muster.runtime.module_command import module_command
from muster.verification.profiles import STATISTICS
from muster.verification.step_checks import MAX_LINE, MODULE, StepAnswer, StepQuestion
from worker.context import WorkerContext

MAX_SECONDS: Final = 60.0
"""Longest wait for an answer."""
COST: Final = 0.02
"""Share of the time between two steps that measuring takes."""
MAX_ROWS: Final = 64
"""Rows that are asked about."""

log = telemetry.logger("worker")


class StepCheck:
    """Asks once for each step. Without an answer a step counts as good: nothing is lost but work."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._process: Process | None = None
        self._begun = time.monotonic()
        self._step = -1
        self._fault = ""

    async def start(self) -> None:
        """Start the process, which loads its libraries while the engine does."""
        if self._context.settings.worker.measure_steps and self._process is None:
            command = module_command(MODULE)
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)

    def known(self, step: int) -> str:
        """Return why this step is sat out, as far as it was measured."""
        return self._fault if step == self._step else ""

    async def fault(self, step: int, model: Path, rows: Sequence[Rollout]) -> str:
        """Measure a step by rows of its first commitment. Return why it is sat out, or ""."""
        if step == self._step or not self._context.settings.worker.measure_steps:
            return self.known(step)
        now = time.monotonic()
        seconds = min(MAX_SECONDS, COST * max(now - self._begun, self._context.terms.min_step_interval))
        self._step, self._fault, self._begun = step, "", now
        try:
            async with asyncio.timeout(MAX_SECONDS):
                answer = await self._ask(model, rows, seconds)
        except (OSError, TimeoutError, ValidationError) as error:
            log.warning("a step is not measured", step=step, error=repr(error))
            await self.close()
            return ""
        log.info("measured a step", step=step, rows=answer.rows, seconds=round(time.monotonic() - now, 3))
        if answer.fault:
            self._fault = f"step {step} is sat out, validators would reject honest work of it: {answer.fault}"
            log.warning(self._fault)
        return self._fault

    async def _ask(self, model: Path, rows: Sequence[Rollout], seconds: float) -> StepAnswer:
        context, profile = self._context, self._context.profile
        file = Path.cwd() / context.settings.worker.state_dir / "step-check.parquet"
        some = sorted(rows, key=lambda row: len(row.completion_tokens))[:MAX_ROWS]
        await asyncio.to_thread(lambda: write_durably(file, write_rollouts(some)))
        question = StepQuestion(
            model=Path.cwd() / model,
            rows=file,
            profile=profile.name,
            pool=profile.pool,
            limits={name: getattr(profile, name).reject for name in STATISTICS},
            temperature=context.terms.temperature,
            matmul=context.settings.bfloat16_matmul,
            seconds=seconds,
        )
        await self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(question.model_dump_json().encode() + b"\n")
            await self._process.stdin.drain()
            return StepAnswer.model_validate_json((await self._process.stdout.readline())[:MAX_LINE])
        finally:
            file.unlink(missing_ok=True)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()
