"""A validator may give a second verdict on a commitment once its missing file has arrived, or its block is gone."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import RefusedError
from muster.ledger.tallies import CommitmentState
from muster.protocol.messages import Verdict
from orchestrator.verdicts import KeptCall, refuse_verdict
from testbed.samples.messages import a_verdict

BARE: dict[str, Any] = {"position": None, "measured": None, "threshold": None, "evidence": None}
MISSING = a_verdict(accepted=False, reason="data_missing", **BARE)
DRAWN, GONE = "0x" + "0a" * 32, "0x" + "0b" * 32
CALL = KeptCall(block=2, hash=DRAWN, order="[]", opens=100)


def refused(verdict: Verdict, earlier: Verdict) -> str:
    work = verdict.node, verdict.index, verdict.root, verdict.step
    committed = CommitmentState(*work, 0, "pending", None, 0, jailed=False)
    error = refuse_verdict(verdict, committed, earlier=earlier, file_hash=verdict.file_hash, call=CALL)
    assert error is None or isinstance(error, RefusedError)
    return str(error or "")


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"accepted": True, "reason": None}, True),
        ({"reason": "wrong_reward"}, True),
        ({"reason": "data_missing", "inspected": 5}, False),
    ],
)
def test_missing_data_may_be_judged_again_when_it_has_come(changes: dict[str, Any], accepted: bool) -> None:
    second = MISSING.model_copy(update=changes)
    assert (refused(second, MISSING) == "") is accepted
    assert "has given another verdict on" in refused(second, MISSING.model_copy(update={"reason": "wrong_root"}))


@pytest.mark.parametrize(
    ("earlier", "later", "taken"), [(GONE, DRAWN, True), (None, DRAWN, True), (DRAWN, GONE, False), (GONE, GONE, False)]
)
def test_a_look_gives_way_to_one_of_the_block_that_draws(earlier: str | None, later: str, taken: bool) -> None:
    first = MISSING.model_copy(update={"accepted": True, "reason": None, "drawn_by": earlier})
    second = first.model_copy(update={"drawn_by": later, "inspected": 5})
    assert (refused(second, first) == "") is taken
