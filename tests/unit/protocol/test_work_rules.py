"""Why no work comes in: one sentence for a worker, one for the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.protocol.work_rules import RunFacts, WorkerFacts, blocking_reason, run_blocking_reason

NOW = 1_800_000_000  # 2027-01-15 08:00 UTC
A = WorkerFacts(first_step=0, in_hour=0)
RUN = RunFacts(NOW, step=7, commitments_per_hour=5, validators=4, min_validators=4, workers={"a": A, "b": A})
SPENT = "all 5 commitments of this hour are made; the next hour begins 2027-01-15 09:00 UTC"
NEW = "begins at step 9, the second after joining; the newest is step 7"


def test_able_worker_has_no_blocking_reason() -> None:
    assert run_blocking_reason(RUN) == blocking_reason(A, RUN) == ""
    assert RUN.able == [A, A]
    last = replace(A, first_step=7, in_hour=4, unsettled=8, cover=9)
    assert blocking_reason(last, RUN) == ""
    short = replace(last, unsettled=9)
    assert blocking_reason(short, RUN) == (
        "9 commitments wait for their pay, and its stake covers no more: muster worker claim"
    )
    assert replace(RUN, workers={"a": short, "b": last}).able == [last]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"closed": True, "finished": True}, "the run is closed"),
        ({"finished": True}, "training is finished"),
        ({"step": None}, "the trainer has not published the first checkpoint yet"),
        ({"validators": 3}, "the run has 3 validators and takes no work before 4"),
        ({"paused_until": NOW + 3_600}, "the guardian paused commitments until 2027-01-15 09:00 UTC"),
        ({"escrow_short": True}, "the run's escrow cannot pay for another commitment: its owner must fund it"),
    ],
)
def test_run_wide_reason_blocks_every_worker(changes: dict[str, object], reason: str) -> None:
    run = replace(RUN, **changes)
    assert run_blocking_reason(run) == blocking_reason(A, run) == reason


def test_expired_pause_blocks_no_worker() -> None:
    assert run_blocking_reason(replace(RUN, paused_until=NOW)) == ""


def test_run_without_workers_says_how_to_join() -> None:
    assert run_blocking_reason(replace(RUN, workers={})) == "no worker is registered: muster worker join"


def test_each_worker_has_its_own_reason_and_the_run_has_them_all() -> None:
    spent, newcomer = replace(A, in_hour=5), replace(A, first_step=9)
    run = replace(RUN, workers={"a": spent, "b": replace(A, in_hour=6), "c": newcomer})
    assert blocking_reason(spent, run) == SPENT
    assert blocking_reason(newcomer, run) == NEW
    assert run_blocking_reason(run) == f"2 of 3 workers: {SPENT}; 1 of 3 workers: {NEW}"
    assert run_blocking_reason(replace(run, workers={"a": spent, "b": newcomer, "c": A})) == "", "one of them can work"
    assert (run.newcomers, run.able) == ([newcomer], [])
    paced = replace(run, step_seconds=41.6)
    assert blocking_reason(newcomer, paced) == f"{NEW}, and steps come every 42 s"
