"""What a rejection means, in the words that its worker reads."""

from __future__ import annotations

from muster.protocol.reasons import EXPLANATIONS, POOLED, explain
from muster.verification.rules import CommittedWork
from testbed.samples.validator import NODE, ROOT, verdict


def test_a_rejection_by_a_pool_says_that_no_single_row_shows_it() -> None:
    c = CommittedWork(1, 3, NODE, 5, ROOT, hour=5, block=10)
    one = verdict(c, accepted=False, reason="sampling_mismatch", position=3, measured=9.0, threshold=8.0)
    assert explain(one) == EXPLANATIONS["sampling_mismatch"]
    pooled = one.model_copy(update={"position": None, "measured": 3.4, "threshold": 3.0})
    assert explain(pooled) == EXPLANATIONS["sampling_mismatch"] + POOLED
    assert "muster doctor --engine" in POOLED
    missing = verdict(c, accepted=False, reason="data_missing")
    assert explain(missing) == EXPLANATIONS["data_missing"]
