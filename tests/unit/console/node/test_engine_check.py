"""What a report means for the node that generated its rows, and how a probe's process fails."""

from __future__ import annotations

from dataclasses import replace

from muster.authoring.probe_process import failure
from muster.console.node.engine_check import assess
from muster.errors import CheckError, ConfigError
from muster.verification.probes import ProbedRow, ProbeFinding, ProbeReport
from muster.verification.profiles import BF16, STATISTICS

ABOUT = {"probed": "run 1, step 4", "device": "cpu", "processor": ["avx2"], "matmul": "float32"}


def row(position: int, gap_worst: float) -> ProbedRow:
    limit, finding = BF16.gap_worst, None
    if gap_worst > limit.reject:
        accuse = gap_worst > limit.accuse
        threshold = limit.accuse if accuse else limit.reject
        finding = ProbeFinding(
            reason="sampling_mismatch", measured=gap_worst, threshold=threshold, accuse=accuse, detail="gap"
        )
    statistics = dict.fromkeys(STATISTICS, 0.0) | {"gap_worst": gap_worst}
    return ProbedRow(position=position, tokens=10, statistics=statistics, finding=finding)


def test_an_engine_whose_rows_are_accepted_may_join() -> None:
    limit = BF16.gap_worst
    report = ProbeReport(profile=BF16.name, rows=[row(0, 0.0), row(1, limit.reject / 2)], unit={})
    found = assess(report, BF16, ABOUT, {"generate_seconds": 1.0})
    assert found == ABOUT | {
        "profile": BF16.name,
        "rows": 2,
        "tokens": 20,
        "rejected": 0,
        "accused": 0,
        "worst_statistic": "gap_worst",
        "worst_value": limit.reject / 2,
        "rejected_above": limit.reject,
        "accused_above": limit.accuse,
        "generate_seconds": 1.0,
        "pool": {},
    }


def test_one_rejected_row_is_enough_to_stay_away() -> None:
    limit = BF16.gap_worst
    report = ProbeReport(
        profile=BF16.name, rows=[row(0, 0), row(1, limit.reject * 1.5), row(2, limit.accuse * 2)], unit={}
    )
    found = assess(report, BF16, ABOUT, {})
    assert (found["rejected"], found["accused"]) == (2, 1)
    said = "would reject 2 of 3 rows of this engine and accuse it for 1; first row 1: sampling_mismatch"
    assert said in found["error"]
    assert "do not join with this engine" in found["hint"]


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
    unit = {"gap_mean": 0.01, "activation": 0.031, "logprob_rms": 1.0, "logprob_mean": 0.0, "gaps_beyond": 0.0}
    report = ProbeReport(profile=BF16.name, rows=[row(0, 0.0)], unit=unit)
    found = assess(report, judged, ABOUT, {})
    assert "together they are above the run's pool limit of activation: measured 0.031 above 0.03" in found["error"]
    assert found["pool"]["activation"] == {"measured": 0.031, "limit": 0.03}
    assert "error" not in assess(report, BF16, ABOUT, {})


def test_an_owner_s_limit_near_to_an_honest_cell_of_this_node_is_refused_with_the_cell_named() -> None:
    judged = replace(BF16, pool=BF16.pool.model_copy(update={"activation": 0.03}))
    cells = {"split sums": {"activation": 0.0149}, "sums in float32": {"activation": 0.0151, "gaps_beyond": 0.0}}
    rows = [row(position, 0.0) for position in range(26)]
    report = ProbeReport(profile=BF16.name, rows=rows, unit={"activation": 0.01}, cells=cells)
    found = assess(report, judged, ABOUT, {})
    assert "pool limit of activation is 0.03, less than 2 times what honest work measures here" in found["error"]
    assert found["error"].endswith("in the cell 'sums in float32': 0.0151")
    assert "error" not in assess(report, BF16, ABOUT, {}), "the profile's own limits are no owner's"
    few = report.model_copy(update={"rows": rows[:25]})
    assert "error" not in assess(few, judged, ABOUT, {}), "a mean over 250 tokens says too little"
