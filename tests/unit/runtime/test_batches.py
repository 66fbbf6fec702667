"""What arrives while a batch runs is the next batch, of a bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from muster.runtime.batches import Batches, Failure


class Ran:
    """Keeps the batches that ran. Each waits until it may end, and gives the lengths of its words."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_end = asyncio.Event()

    async def run(self, batch: Sequence[str]) -> list[int | Exception]:
        self.batches.append(list(batch))
        await self.may_end.wait()
        return [len(word) or Failure(ValueError("empty")) for word in batch]


def start(batches: Batches[str], *words: str) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(batches.add(word)) for word in words]


async def test_items_that_come_meanwhile_are_the_next_batch() -> None:
    ran = Ran()
    batches = Batches(ran.run, most=3)
    first = start(batches, "a")
    await asyncio.sleep(0.01)
    others = start(batches, "bb", "", "ccc", "dddd")
    await asyncio.sleep(0.01)
    ran.may_end.set()
    one, two, empty, three, four = await asyncio.gather(*first, *others, return_exceptions=True)
    assert (one, two, three, four) == (1, 2, 3, 4)
    assert isinstance(empty, ValueError)
    assert ran.batches == [["a"], ["bb", "", "ccc"], ["dddd"]]


async def test_bytes_of_a_batch_are_bounded() -> None:
    ran = Ran()
    ran.may_end.set()
    batches = Batches(ran.run, most=9, most_bytes=4, size_of=len)
    await asyncio.gather(*start(batches, "aa", "bb", "cc", "dddddddd", "e"))
    assert ran.batches == [["aa", "bb"], ["cc"], ["dddddddd"], ["e"]]


async def test_item_whose_turn_does_not_come_never_runs() -> None:
    ran = Ran()
    batches = Batches(ran.run, most=9)
    (first,) = start(batches, "a")
    await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await batches.add("late", wait=0.01)
    (cancelled,) = start(batches, "cancelled")
    await asyncio.sleep(0)
    cancelled.cancel()
    ran.may_end.set()
    assert await batches.add("next") == 4
    assert await first == 1
    assert ran.batches == [["a"], ["next"]]


async def test_batch_that_fails_fails_all_its_items_and_not_the_next() -> None:
    async def run(batch: Sequence[str]) -> list[int]:
        if "bad" in batch:
            raise OSError("broken")
        return [0] * len(batch)

    batches = Batches(run, most=2)
    outcomes = await asyncio.gather(*start(batches, "bad", "good", "good"), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["broken", "broken", "0"]
