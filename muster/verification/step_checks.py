"""A step's check: a worker's questions about its rows before it commits any of the step, line by line in JSON.

`python -m validator.step_check` answers. It is a process beside the worker's engine, which stays: starting one takes
longer than a small step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, FiniteFloat

from muster.protocol.messages import Message
from muster.settings.schema import MatmulSetting
from muster.verification.calibration_document import RowLimits
from muster.verification.profiles import PoolLimits

MODULE: Final = "validator.step_check"
MAX_LINE: Final = 1 << 15
"""Longest question or answer, in bytes."""


class StepQuestion(Message):
    """Whether honest rows of these weights would be rejected."""

    model: Path
    """Checkpoint folder."""
    rows: Path
    """Rollout file. It is read in that process: a worker asks about its own."""
    profile: str
    pool: PoolLimits
    limits: RowLimits
    temperature: FiniteFloat
    matmul: MatmulSetting
    seconds: Annotated[FiniteFloat, Field(gt=0)]
    """Rows are measured until this is over, and one in any case."""


class StepAnswer(Message):
    """What came of it."""

    rows: int
    """How many were measured."""
    fault: str = Field(max_length=1000)
    """Why this step's work would be lost; empty where nothing was found."""
