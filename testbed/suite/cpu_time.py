"""The cost of work in CPU time, which does not depend on the machine's load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from testbed.suite.durations import descendants, reaped

SCORER_SECONDS: Final = 60.0
"""CPU seconds for a hostile answer: a scorer that it ended starts again, which takes twelve of them."""


@contextmanager
def cpu_at_most(seconds: float) -> Iterator[None]:
    """Assert that this thread, and the processes below this one, compute for so many seconds at most in the block."""
    began = _spent()
    yield
    assert (spent := _spent() - began) < seconds, f"{spent:.1f} s of CPU time"


def _spent() -> float:
    return time.thread_time() + reaped() + sum(used.seconds for _, used in descendants(os.getpid()))
