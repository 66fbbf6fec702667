"""A validator may give a second verdict on a commitment only once its missing file has arrived."""

from __future__ import annotations

from typing import Any

import pytest

from muster.errors import RefusedError
from muster.protocol.messages import Verdict
from orchestrator.tallies import CommitmentState
from orchestrator.verdicts import Known, refuse_verdict
from testbed.samples.messages import a_verdict

BARE: dict[str, Any] = {"position": None, "measured": None, "threshold": None, "evidence": None, "grades": None}
MISSING = a_verdict(accepted=False, reason="data_missing", **BARE)


def refused(verdict: Verdict, earlier: Verdict) -> str:
    work = verdict.node, verdict.index, verdict.root, verdict.step
    known = Known(earlier, CommitmentState(*work, 0, "pending", None, 0, jailed=False), verdict.file_hash)
    error = refuse_verdict(verdict, known)
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
