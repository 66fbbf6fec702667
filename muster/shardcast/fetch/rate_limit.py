"""A bandwidth cap: how long to wait before the next bytes may go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """Lets `rate` bytes per second through, over all who share it; 0 lets everything through. Safe between threads.

    Bytes are counted after they went: the caller waits for as long as `spend` says, and may be late by one piece.
    """

    def __init__(self, rate: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._free_at = 0.0
        """When everything that went is within the rate."""
        self._lock = threading.Lock()

    def spend(self, size: int) -> float:
        """Note that `size` bytes went; return the seconds to wait before more may go."""
        if not self.rate:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + size / self.rate
            return self._free_at - now
