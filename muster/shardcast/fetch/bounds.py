"""What one fetch may take of time, connections and disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class FetchBounds:
    """Bounds of one fetch. DEFAULT_BOUNDS hold for every node."""

    seconds: float = 3600.0
    """Longest time for all of it: the largest steps over a slow line take less."""
    give_up_seconds: float = 120.0
    """Longest time without a manifest, or without another good shard: relays need as long for a step that is new. A
    fetch gives up at once where all sources answer, have newer steps, and not this one."""
    stall_seconds: float = 20.0
    """A source that sends nothing for this long has failed. Twice what a relay holds a request for."""
    streams: int = 2
    """Connections to each source: one receives while the other waits for its answer."""
    max_bytes: int = 1 << 40
    """Largest version that is fetched. A run's checkpoints are far below; a source that says more is wrong."""
    download_rate: int = 0
    """Bytes per second that a fetch receives from all sources together; 0 for no bound."""


DEFAULT_BOUNDS: Final = FetchBounds()
