"""The members of benchmarks/service.py do what members do: their uploads, commitments and verdicts are accepted."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.service import furnished, measure
from muster.clients.orchestrator import HELD_SECONDS
from muster.ledger.tables import tallies
from testbed.waiting import wait_until


@pytest.mark.slow
def test_members_of_the_load_have_their_work_accepted() -> None:
    with furnished(100, 500) as members:

        def accepted() -> int:
            rows = asyncio.run(members.big.orchestrator.rows(tallies, "status", "count"))
            return sum(count for status, count in rows if status == "accepted")

        before = accepted()
        found = measure(members, 100, HELD_SECONDS + 2.0)  # each held answer ends within it
        wait_until(lambda: accepted() > before, "a verdict counts")
    assert set(found.members["statuses"]) == {"200", "201"}
    assert found.refused == 0
    assert all(kind["answers"] for kind in found.members["kinds"].values())
