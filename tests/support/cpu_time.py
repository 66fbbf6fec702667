"""What work costs, in CPU time: how busy the machine is changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_at_most(seconds: float) -> Iterator[None]:
    """Assert that this thread computes for so many seconds at most while the block runs."""
    began = time.thread_time()
    yield
    assert (spent := time.thread_time() - began) < seconds, f"{spent:.1f} s of CPU time"
