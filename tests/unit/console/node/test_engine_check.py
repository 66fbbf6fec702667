"""What measured rows mean for the node that generated its rows, and how a probe's process fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.authoring.probe_process import failure
from muster.console.node.engine_check import assess
from muster.errors import CheckError, ConfigError
from muster.verification.calibration import has_own_limits
from muster.verification.judging import Measurement, worst_statistic
from muster.verification.pools import LEAST_TOKENS, UNIT_TOKENS
from muster.verification.profiles import BF16, CPU_FP32, Profile
from testbed.samples.cells import errors

ABOUT = {"probed": "run 1, step 4", "device": "cpu", "processor": ["avx2"], "matmul": "float32"}


def row(position: int = 0, profile: Profile = BF16, tokens: int = 10, **off: float) -> Measurement:
    """Return a row whose every token is so far off: `distance`, `gap` or `error` of `errors`."""
    return Measurement.of(errors(tokens, **off), profile, position)


def test_an_engine_whose_rows_are_accepted_may_join() -> None:
    rows = [row(), row(1, gap=0.5 * BF16.gap_worst.reject * 0.1)]
    found = assess(rows, BF16, ABOUT, {"generate_seconds": 1.0}, {})
    pool = found.pop("pool")
    assert pool["gap_mean"] == {"measured": rows[1].sums.gaps / LEAST_TOKENS, "limit": BF16.pool.gap_mean}
    assert found == ABOUT | {
        "profile": BF16.name,
        "rows": 2,
        "tokens": 20,
        "rejected": 0,
        "accused": 0,
        "worst_statistic": "gap_mean",
        "worst_value": rows[1].gap_mean,
        "rejected_above": BF16.gap_mean.reject,
        "accused_above": BF16.gap_mean.accuse,
        "generate_seconds": 1.0,
    }


def test_one_rejected_row_is_enough_to_stay_away() -> None:
    limit = BF16.gap_worst
    rows = [row(0, tokens=1), row(1, tokens=1, gap=limit.reject * 1.5), row(2, tokens=1, gap=limit.accuse * 2)]
    found = assess(rows, BF16, ABOUT, {}, {})
    assert (found["rejected"], found["accused"]) == (2, 1)
    said = "would reject 2 of 3 rows of this engine and accuse it for 1; first row 1: sampling_mismatch, measured 12 "
    assert said in found["error"]
    assert "do not join with this engine" in found["hint"]


def test_the_worst_statistic_is_the_nearest_to_its_limit() -> None:
    gap, error = row(0, CPU_FP32, gap=4.0, tokens=1), row(1, CPU_FP32, error=3.0, tokens=1)
    assert worst_statistic([gap, error], CPU_FP32) == ("gap_worst", gap.gap_worst)


def test_a_process_s_own_error_is_passed_on() -> None:
    error = failure("worker.probe", 78, "noise\nerror: no model at x\n  next: muster model init\n")
    assert (type(error), str(error), error.hint) == (ConfigError, "no model at x", "muster model init")
    error = failure("worker.probe", 3, "error: row 1 is not of the spec's request")
    assert (type(error), str(error)) == (CheckError, "row 1 is not of the spec's request")
    error = failure("worker.probe", 1, "Traceback\nRuntimeError: no memory\n")
    assert (type(error), str(error)) == (CheckError, "worker.probe ended with 1: RuntimeError: no memory")
    assert str(failure("worker.probe", -9, "")) == "worker.probe ended with -9: it printed nothing"


def test_rows_that_pass_one_by_one_may_be_too_far_off_together() -> None:
    """Under the limits of the run's own calibration, which are tighter than the profile's."""
    judged = replace(BF16, pool=BF16.pool.model_copy(update={"activation": 0.03}))
    rows = [row(tokens=UNIT_TOKENS, distance=0.031)]
    found = assess(rows, judged, ABOUT, {}, {})
    assert "together they are above the run's pool limit of activation: measured 0.031 above 0.03" in found["error"]
    assert found["pool"]["activation"] == {"measured": pytest.approx(0.031), "limit": 0.03}
    assert "error" not in assess(rows, BF16, ABOUT, {}, {})


def test_an_owner_s_limit_near_to_an_honest_cell_of_this_node_is_refused_with_the_cell_named() -> None:
    judged = replace(BF16, pool=BF16.pool.model_copy(update={"activation": 0.03}))
    cells = {"split sums": {"activation": 0.0149}, "sums in float32": {"activation": 0.0151, "gaps_beyond": 0.0}}
    found = assess([row()], judged, ABOUT, {}, cells)
    assert "pool limit of activation is 0.03, less than 2 times what honest work measures here" in found["error"]
    assert found["error"].endswith("in the cell 'sums in float32': 0.0151")
    assert "error" not in assess([row()], judged, ABOUT, {}, {"split sums": cells["split sums"]})


def test_only_an_owner_s_limits_are_measured_against_and_only_by_enough_tokens() -> None:
    judged = replace(BF16, pool=BF16.pool.model_copy(update={"activation": 0.03}))
    assert has_own_limits(judged, UNIT_TOKENS)
    assert not has_own_limits(judged, UNIT_TOKENS - 1), "their mean says too little"
    assert not has_own_limits(BF16, UNIT_TOKENS), "the profile's own limits are no owner's"
