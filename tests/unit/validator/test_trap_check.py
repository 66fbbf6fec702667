"""Which nodes get no more tickets, by the rows of their traps that a replay finds true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.errors import UnreachableError
from muster.protocol.messages import OpenedTrap, PlantedRow, TrapMap
from muster.verification.checks import Finding
from testbed.samples.messages import HASH
from testbed.samples.verification_context import Context, sampling_mismatch, thinking_rows
from validator.trap_check import ReplayedTrap, refused, replay_trap

ROWS = [1, 4, 6]


def trap_of(rows: list[int]) -> OpenedTrap:
    """A trap of which only the map is read."""
    planted = TrapMap(salt=HASH, rows=[PlantedRow(position=row, token=0) for row in rows])
    return OpenedTrap.model_construct(map=planted)


@pytest.mark.parametrize(
    ("traps", "refuse"),
    [
        ([(16, 4)], []),
        ([(16, 5)], ["node"]),
        ([(16, 0), (16, 9)], ["node"]),
        ([(16, 0), (16, 8)], []),
        ([(1, 1)], []),
        ([(1, 1), (1, 1)], ["node"]),
    ],
)
def test_node_is_refused_for_more_true_rows_than_chance_has(traps: list[tuple[int, int]], refuse: list[str]) -> None:
    found = [ReplayedTrap("node", 7, 3, named, tuple(range(true))) for named, true in traps]
    honest = ReplayedTrap("honest", 7, 3, 16, (3,))
    assert refused([honest, *found]) == refuse
    assert [trap.false for trap in found] == [named - true for named, true in traps]
    assert refused([ReplayedTrap("node", 7, 3, 16, unknown="gone")]) == []


async def replayed(findings: dict[int, Finding], **changes: Any) -> tuple[ReplayedTrap, Context]:
    """Return what is found of a trap that names ROWS, whose replay finds these things."""
    context = Context(findings=lambda _, rows: [findings.get(row.position) for row in rows])
    work = context.commit(thinking_rows(5, 3), 5)
    for name, value in changes.items():
        setattr(context, name, value)
    run: Any = context
    return await replay_trap(run, work, trap_of(ROWS)), context


async def test_only_rows_that_the_map_names_are_replayed() -> None:
    found = {4: sampling_mismatch(4), 6: sampling_mismatch(6, accuse=False), 2: sampling_mismatch(2)}
    trap, context = await replayed(found)
    assert (trap.index, trap.step, trap.named, trap.true, trap.false, trap.unknown) == (5, 3, 3, (1, 6), 1, "")
    assert context.replayed == len(ROWS)
    assert str(trap) == f"{trap.node}:5 of step 3: 1 of 3 rows are false; true: [1, 6]"


@pytest.mark.parametrize("gone", ["files", "uploads"])
async def test_file_that_is_gone_says_nothing(gone: str) -> None:
    trap, context = await replayed({}, **{gone: {}})
    assert (trap.true, trap.false, context.replayed) == ((), 0, 0)
    assert trap.unknown == "the file cannot be fetched: not here"


async def test_weights_that_are_gone_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> None:
        raise UnreachableError("step 3 cannot be replayed here")

    monkeypatch.setattr(Context, "replay", gone)
    trap, _ = await replayed({})
    assert (trap.true, trap.unknown) == ((), "step 3 cannot be replayed here")


async def test_file_that_is_bad_without_a_replay_says_nothing() -> None:
    context: Any = Context()
    first, *others = thinking_rows(5, 3)
    bad = [replace(first, seed=first.seed + 1), *others]
    trap = await replay_trap(context, context.commit(bad, 5), trap_of(ROWS))
    assert (trap.true, context.replayed) == ((), 0)
    assert trap.unknown == "the file itself is bad: wrong_draw"
