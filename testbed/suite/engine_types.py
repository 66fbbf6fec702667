"""What the engine's fixtures give a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from worker.engine import GenerationRequest

Requests = Callable[..., list[GenerationRequest]]
UsingWeights = Callable[[Path], AbstractContextManager[None]]
