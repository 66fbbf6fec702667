"""Measured cells made by hand, whose statistics are known before they are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.models.files import model_hash
from muster.verification.calibration import Calibration, calibrate
from muster.verification.measured import MeasuredCell
from muster.verification.profiles import BF16, CPU_FP32
from muster.verification.statistics import LEAST, TokenErrors


def errors(tokens: int = 256, *, distance: float = 0.0, gap: float = 0.0, error: float = 0.0) -> TokenErrors:
    """Return a row whose every token has this distance, and this gap and error of log-probability in expected errors.

    Its scales are 0, so that LEAST is the expected error of a gap, and of log-odds twice that where p is a half.
    """
    odds = error * LEAST / 0.5
    return TokenErrors(
        gaps=np.full(tokens, gap * LEAST),
        claimed=np.full(tokens, -math.log1p(math.exp(-odds))),
        logprobs=np.full(tokens, -math.log(2)),
        states=np.full(tokens, distance**2),
        gap_scales=np.zeros(tokens),
        logprob_scales=np.zeros(tokens),
        magnitudes=np.zeros(tokens),
    )


def cell(rows: Sequence[TokenErrors], name: str = "many at once", model: str = "as it is") -> MeasuredCell:
    """Return a cell; each row of 256 tokens or more is a separate unit."""
    return MeasuredCell(CPU_FP32.name, model, name, False, rows, len(rows))


def calibration_of(model: Path, temperature_micro: int = 1_000_000) -> Calibration:
    """Return a calibration of a model by one cell of honest work."""
    cells = [cell([errors(distance=0.0001)] * 20)]
    return calibrate(cells, [], BF16, model_hash=model_hash(model), temperature_micro=temperature_micro)
