"""Kept answers: concurrent callers share one, an expired one is made again, a failure is not kept."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref

import pytest

from muster.runtime.kept import MAX_KEPT, KeptAnswers


class Maker:
    def __init__(self) -> None:
        self.made = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False
        self.now = 100.0

    async def make(self) -> int:
        self.made += 1
        number = self.made
        await self.gate.wait()
        if self.failing:
            raise ValueError("no")
        return number


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def kept(maker: Maker) -> KeptAnswers:
    return KeptAnswers(5.0, lambda: maker.now)


async def test_concurrent_callers_share_one_answer(maker: Maker, kept: KeptAnswers) -> None:
    maker.gate.clear()
    asking = [asyncio.create_task(kept.get("a", maker.make)) for _ in range(100)]
    await asyncio.sleep(0)
    maker.gate.set()
    assert set(await asyncio.gather(*asking)) == {1}
    assert await kept.get("b", maker.make) == 2


async def test_an_answer_lasts_its_seconds(maker: Maker, kept: KeptAnswers) -> None:
    assert await kept.get("a", maker.make) == 1
    maker.now += 4.9
    assert await kept.get("a", maker.make) == 1
    maker.now += 0.1
    assert await kept.get("a", maker.make) == 2


async def test_expired_answer_is_released(maker: Maker) -> None:
    class Large:
        pass

    async def make() -> Large:
        return Large()

    kept = KeptAnswers(5.0, lambda: maker.now)
    first = weakref.ref(await kept.get("a", make))
    maker.now += 4.9
    await kept.get("b", make)
    gc.collect()
    assert first() is not None
    maker.now += 0.1
    await kept.get("c", make)
    gc.collect()
    assert first() is None


async def test_failure_reaches_every_caller_and_is_not_kept(maker: Maker, kept: KeptAnswers) -> None:
    maker.failing = True
    found = await asyncio.gather(*(kept.get("a", maker.make) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in found] == ["no"] * 3
    assert maker.made == 1
    maker.failing = False
    assert await kept.get("a", maker.make) == 2


async def test_cancelled_caller_does_not_cancel_shared_answer(maker: Maker, kept: KeptAnswers) -> None:
    maker.gate.clear()
    asking = [asyncio.create_task(kept.get("a", maker.make)) for _ in range(2)]
    await asyncio.sleep(0)
    asking[0].cancel()
    maker.gate.set()
    assert await asking[1] == 1


async def test_at_most_so_many_answers_are_kept(maker: Maker, kept: KeptAnswers) -> None:
    for key in range(MAX_KEPT + 1):
        await kept.get(key, maker.make)
    assert await kept.get(1, maker.make) == 2, "it is still kept"
    assert await kept.get(0, maker.make) == MAX_KEPT + 2, "the oldest is gone"


async def test_age_follows_from_the_seconds_that_making_took(maker: Maker) -> None:
    async def make_slowly() -> int:
        maker.now += 2.0
        return await maker.make()

    kept = KeptAnswers(lambda took: min(10.0, took * 3), lambda: maker.now)
    assert await kept.get("a", make_slowly) == 1
    maker.now += 3.9
    assert await kept.get("a", make_slowly) == 1
    maker.now += 0.1
    assert await kept.get("a", make_slowly) == 2, "six seconds after the making began"
    assert [await kept.get("b", maker.make), await kept.get("b", maker.make)] == [3, 4]


async def test_answer_that_is_asked_for_outlives_others(maker: Maker) -> None:
    kept = KeptAnswers(math.inf, most=2)
    for key in ("a", "b", "a", "c"):
        await kept.get(key, maker.make)
    assert ("a" in kept, "b" in kept, "c" in kept) == (True, False, True)


async def test_sum_of_sizes_is_bounded_and_one_is_kept_whatever_its_size() -> None:
    async def of_size(size: int) -> int:
        return size

    kept = KeptAnswers(math.inf, most_bytes=10, size_of=lambda size: size)
    for size in (4, 5, 1, 3):
        await kept.get(size, lambda size=size: of_size(size))
    assert [size for size in (4, 5, 1, 3) if size in kept] == [5, 1, 3]
    await kept.get(50, lambda: of_size(50))
    assert [size for size in (5, 1, 3, 50) if size in kept] == [50]


async def test_failure_leaves_no_answer(maker: Maker, kept: KeptAnswers) -> None:
    maker.failing = True
    with pytest.raises(ValueError, match="no"):
        await kept.get("a", maker.make)
    assert "a" not in kept
