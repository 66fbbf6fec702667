"""The inputs of a validator's verdict: a storage that sends other tasks neither convicts nor clears a node."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.errors import MismatchError, NotFoundError, UnreachableError
from muster.protocol.draws import DrawSource
from testbed.samples.commitments import SOURCE, commitment_of, drawn, rules
from validator.context import RunVerificationContext


class Chain:
    """Of one node."""

    async def draw_source(self, node: str) -> DrawSource:
        assert node == SOURCE.node
        return SOURCE


def context_with(ensure_slots: Any) -> RunVerificationContext:
    nothing = cast(Any, None)
    tasks = cast(Any, SimpleNamespace(ensure_slots=ensure_slots))
    return RunVerificationContext(cast(Any, Chain()), nothing, nothing, nothing, rules(), tasks)


async def test_a_draw_fetches_no_task() -> None:
    async def ensure_slots(_: Iterable[int], epoch: int) -> None:
        raise AssertionError("a juror fetches a shard")

    assert await context_with(ensure_slots).draw(commitment_of()) == drawn()


async def test_tasks_to_inspect_by_are_fetched() -> None:
    fetched: list[tuple[list[int], int]] = []

    async def ensure_slots(slots: Iterable[int], epoch: int) -> None:
        fetched.append(([*slots], epoch))

    await context_with(ensure_slots).ensure_tasks([5, 7], 3)
    assert fetched == [([5, 7], 1)]


@pytest.mark.parametrize(
    "error",
    [MismatchError("another shard"), NotFoundError("none", status=404, title="not found"), UnreachableError("down")],
)
async def test_tasks_that_do_not_come_leave_a_commitment_unjudged(error: Exception) -> None:
    async def ensure_slots(_: Iterable[int], epoch: int) -> None:
        raise error

    with pytest.raises(UnreachableError):
        await context_with(ensure_slots).ensure_tasks([5], 3)
