"""A bandwidth cap grants its full rate to all connections together and saves up no idle time."""

from __future__ import annotations

import pytest

from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.rate_limit import TokenBucket
from muster.shardcast.fetch.sources import MAX_SOURCES, shard_seconds


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bytes_are_paid_for_after_they_went() -> None:
    clock = Clock()
    bucket = TokenBucket(1000, clock)
    assert bucket.spend(500) == 0.5
    assert bucket.spend(250) == 0.75, "another stream waits for both"
    clock.now += 0.5
    assert bucket.spend(0) == pytest.approx(0.25)


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    bucket = TokenBucket(1000, clock)
    bucket.spend(1000)
    clock.now += 3600
    assert bucket.spend(1000) == 1.0


def test_no_rate_is_no_bound() -> None:
    assert TokenBucket(0).spend(1 << 40) == 0.0


def test_a_shard_has_the_time_that_the_cap_makes_it_take() -> None:
    assert shard_seconds(FetchBounds(stall_seconds=20), 128 * 1024) == 21
    capped = FetchBounds(stall_seconds=20, streams=2, download_rate=MAX_SOURCES * 2 * 1024)
    assert shard_seconds(capped, 128 * 1024) == 20 + 128
    assert shard_seconds(FetchBounds(stall_seconds=20, download_rate=1 << 40), 128 * 1024) == 21
