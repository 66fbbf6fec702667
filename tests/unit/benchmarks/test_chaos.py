"""The pure parts of benchmarks/chaos.py: its plan, its history, and the checker, which finds planted faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chaos import Outcome, figures, missing, outcome_of
from benchmarks.chaos_checker import (
    BOOK,
    CRASH,
    CRASHED,
    DOUBLE,
    LOST,
    SKIPPED,
    STUCK,
    UNHEALED,
    VIEW,
    Book,
    Truth,
    Violation,
    check,
    unkept,
)
from benchmarks.chaos_faults import FAULTS
from benchmarks.chaos_history import GONE, Event, History, read_history
from benchmarks.chaos_plan import CHAIN, DEEPEST, KINDS, OF_CHAIN, OF_LINES, plan
from muster.errors import RefusedError, UnreachableError

MEMBERS = ["w1", "w2", "v1", "trainer"]
SERVERS = ["orchestrator", "relay"]
NODE, ROOT, OTHER, JUDGE = "0xA1", "0x01", "0x02", "0xB1"


# --- The plan


@given(seed=st.integers(0, 1 << 32), seconds=st.floats(0, 600))
def test_a_plan_follows_from_its_seed_and_never_strikes_a_target_twice_at_once(seed: int, seconds: float) -> None:
    faults = plan(seed, seconds, MEMBERS, SERVERS)
    assert faults == plan(seed, seconds, MEMBERS, SERVERS)
    assert all(fault.at > 0 and fault.at + fault.seconds < seconds for fault in faults)
    assert all(fault.size <= DEEPEST for fault in faults if fault.kind in ("reorg", "lag"))
    assert all((fault.target == CHAIN) == (fault.kind in OF_CHAIN) for fault in faults)
    assert all(fault.target in MEMBERS for fault in faults if fault.kind in OF_LINES)
    for target in {fault.target for fault in faults}:
        struck = [fault for fault in faults if fault.target == target]
        for earlier, later in pairwise(struck):
            assert earlier.at + earlier.seconds < later.at


def test_twelve_minutes_have_every_kind_and_many_faults() -> None:
    faults = plan(1, 720, MEMBERS, SERVERS)
    assert Counter(fault.kind for fault in faults).keys() == set(KINDS)
    assert len(faults) >= 40
    assert plan(2, 720, MEMBERS, SERVERS) != faults


def test_every_kind_of_fault_can_be_inflicted() -> None:
    assert tuple(FAULTS) == KINDS


# --- The history


def test_history_tells_what_was_acknowledged_refused_and_left_open(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, "w1")
    with history.request("commit", index=3) as more:
        more["block"] = 7
    for error in (RefusedError("no", status=422, title="no"), UnreachableError("silence")):
        with pytest.raises(type(error)), history.request("upload", index=4):
            raise error
    path.write_bytes(path.read_bytes() + b'{"at": 5, "by": "w1", "req')  # killed while it wrote
    History(path, "w1").note(GONE, index=3)
    found = [(event.operation, event.state, dict(event.what)) for event in read_history([path])]
    assert found == [
        ("commit", "invoked", {"index": 3}),
        ("commit", "ok", {"index": 3, "block": 7}),
        ("upload", "invoked", {"index": 4}),
        ("upload", "failed", {"index": 4}),
        ("upload", "invoked", {"index": 4}),
        ("upload", "unknown", {"index": 4}),
        ("gone", "ok", {"index": 3}),
    ]


# --- The checker


def ok(operation: str, by: str = "w1", state: Any = "ok", **what: Any) -> Event:
    return Event(0.0, by, "1", operation, state, what)


def commit(root: str = ROOT, operation: str = "commit", **more: Any) -> Event:
    return ok(operation, node=NODE, index=0, root=root, **more)


CLEAN = [
    ok("upload", index=0, root=ROOT, file="0xF1"),
    commit(),
    ok("verdict", "v1", validator=JUDGE, node=NODE, index=0, root=ROOT),
    ok("publish", "trainer", step=0, root="0xC0"),
    ok("claim", node=NODE, through=0),
    ok("seal", "v1", node=JUDGE, hour=9),
    ok("fetch", step=0, root="0xC0", problems=[]),
]
TRUTH = Truth(
    files=frozenset({"0xF1"}),
    verdicts=frozenset({(JUDGE, NODE, 0, ROOT)}),
    commitments=[(NODE, 0, ROOT)],
    served=frozenset({(NODE, 0, ROOT)}),
    shown=frozenset({(NODE, 0, ROOT)}),
    settled={NODE: 1},
    due={NODE: 0},
    roots={0: "0xC0"},
    steps=(1, 2),
    seals=frozenset({(JUDGE, 9)}),
    hours=frozenset({9}),
    books=(Book("Runs", 5, 5),),
)


def test_clean_history_has_no_violations() -> None:
    open_ended = [ok("upload", state="unknown", file="0xF2"), commit(OTHER, state="failed")]
    assert check([*CLEAN, *open_ended], TRUTH) == []


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (0, {"files": frozenset()}),
        (1, {"commitments": [], "served": frozenset(), "shown": frozenset()}),
        (2, {"verdicts": frozenset()}),
        (3, {"roots": {0: "0xC1"}}),
        (4, {"settled": {NODE: 0}}),
        (5, {"seals": frozenset()}),
    ],
)
def test_planted_lost_write_is_found(event: int, changes: dict[str, Any]) -> None:
    (found,) = check(CLEAN, replace(TRUTH, **changes))
    assert found.kind == LOST
    assert found.what.startswith(f"{CLEAN[event].operation} by {CLEAN[event].by}: ")


@pytest.mark.parametrize(
    ("events", "changes"),
    [
        ([commit(OTHER)], {"commitments": [(NODE, 0, ROOT), (NODE, 0, OTHER)]}),
        ([], {"commitments": [(NODE, 0, ROOT)] * 2}),
    ],
)
def test_planted_double_commitment_is_found(events: list[Event], changes: dict[str, Any]) -> None:
    seen = frozenset(changes["commitments"])
    found = check([*CLEAN, *events], replace(TRUTH, served=seen, shown=seen, **changes))
    roots = ", ".join(sorted({root for _, _, root in changes["commitments"]}))
    assert found == [Violation(DOUBLE, f"{NODE} index 0: {roots}")]


def test_planted_skipped_claim_wrong_book_and_stuck_trainer_are_found() -> None:
    assert check(CLEAN, replace(TRUTH, due={NODE: 3})) == [
        Violation(SKIPPED, f"{NODE} did not claim 3 commitments that were due")
    ]
    assert check(CLEAN, replace(TRUTH, books=(Book("Runs", 5, 6),))) == [
        Violation(BOOK, "Runs holds 5, and by its books 6")
    ]
    assert check(CLEAN, replace(TRUTH, steps=(2, 2))) == [
        Violation(STUCK, "2 steps were published when the faults ended, and 2 after healing")
    ]


def test_reorg_may_take_a_commitment_that_is_reported_gone_with_its_verdict() -> None:
    """Its index gets another root then; without the report both would be promised."""
    there = frozenset({(NODE, 0, OTHER)})
    moved = replace(TRUTH, commitments=[*there], served=there, shown=there, verdicts=frozenset())
    assert check([*CLEAN, commit(operation=GONE), commit(OTHER)], moved) == []
    assert {found.kind for found in check([*CLEAN, commit(OTHER)], moved)} == {LOST, DOUBLE}
    assert unkept([*CLEAN, commit(OTHER)], {(NODE, 0, OTHER)}) == [CLEAN[1]]


@pytest.mark.parametrize("view", ["served", "shown"])
def test_a_service_that_differs_from_the_chain_a_crash_and_slow_healing_are_found(view: str) -> None:
    crashed = ok(CRASHED, "faults", process="w1", status=1, said="Traceback")
    truth = replace(TRUTH, **{view: frozenset({(NODE, 1, ROOT)})}, unhealed=("claims",))
    assert [found.kind for found in check([*CLEAN, crashed], truth)] == [VIEW, VIEW, CRASH, UNHEALED]


# --- The document


def test_violations_of_all_seeds_are_one_figure_and_faults_another() -> None:
    history = [*CLEAN, ok("fault", "faults", kind="kill"), ok("fault_refused", "faults", kind="reorg")]
    one = outcome_of(1, 60.0, history, [Violation(LOST, "a file")])
    assert (one.faults, one.refused, one.acknowledged["commit"]) == (Counter(kill=1), 1, 1)
    lost, faults = figures([one, Outcome(2, 60.0, Counter(stop=9), 0, Counter())])
    assert (lost["ours"], lost["holds"], lost["found"]) == (1, False, [{"seed": 1, "kind": LOST, "what": "a file"}])
    assert (faults["ours"], faults["target"], faults["holds"]) == (10, 6.7, True)
    assert missing([one]).keys() == set(KINDS) - {"kill"}
