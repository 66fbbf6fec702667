"""What a commitment is worth: every rule of orchestrator.commitment_status, with its negative."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.contracts.court import Outcome
from orchestrator.commitment_status import CaseState, CommitmentStatus, Opinion, commitment_status

A, B, C, D = "0xa", "0xb", "0xc", "0xd"


def yes(validator: str, trusted: bool = True) -> Opinion:
    return Opinion(validator, True, None, trusted)


def no(validator: str, reason: str = "wrong_reward", trusted: bool = True) -> Opinion:
    return Opinion(validator, False, reason, trusted)


def judge(
    *opinions: Opinion, cases: tuple[CaseState, ...] = (), jailed: bool = False, required: int = 2
) -> CommitmentStatus:
    return commitment_status(opinions, cases, jailed=jailed, accepts_required=required)


PENDING, ACCEPTED, VOID = CommitmentStatus("pending"), CommitmentStatus("accepted"), CommitmentStatus("void")


def test_the_required_number_of_accepts_makes_it_accepted():
    assert judge() == PENDING
    assert judge(yes(A)) == PENDING
    assert judge(yes(A), yes(B)) == ACCEPTED
    assert judge(yes(A), required=1) == ACCEPTED


def test_a_validator_counts_once():
    assert judge(yes(A), yes(A)) == PENDING


def test_one_rejection_outweighs_all_accepts():
    assert judge(yes(A), yes(B), yes(C), no(D)) == CommitmentStatus("rejected", "wrong_reward")


def test_the_earliest_rejection_names_the_reason():
    assert judge(no(A, "sampling_mismatch"), no(B)) == CommitmentStatus("rejected", "sampling_mismatch")


def test_a_rejection_ends_when_its_own_case_ends_not_guilty():
    for outcome in ("open", "guilty", "no_quorum", "moot", "dismissed"):
        assert judge(yes(A), yes(B), no(C), cases=(CaseState(C, outcome),)).state == "rejected", outcome
    assert judge(yes(A), yes(B), no(C), cases=(CaseState(C, "not_guilty"),)) == ACCEPTED
    assert judge(yes(A), no(C), cases=(CaseState(C, "not_guilty"),)) == PENDING


def test_a_receipt_ends_what_anybody_said_of_missing_data_and_nothing_else():
    shown = (CaseState(D, "dismissed"),)
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=shown) == ACCEPTED
    assert judge(no(A, "data_missing"), cases=shown) == PENDING
    assert judge(no(A, "data_missing"), no(B), yes(C), yes(D), cases=shown) == CommitmentStatus(
        "rejected", "wrong_reward"
    )
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=(CaseState(D, "moot"),)).state == "rejected"


def test_a_late_file_makes_nobodys_data_missing_count():
    """The case was cured: the file is there, and the verdicts of who did not find it are about nothing any more."""
    shown = (CaseState(D, "cured"),)
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=shown) == ACCEPTED
    assert judge(no(A, "wrong_reward"), yes(B), yes(C), cases=shown).state == "rejected"


def test_somebody_elses_lost_case_releases_nothing():
    """A friend of the accused opens a case in order to lose it."""
    assert judge(yes(A), yes(B), no(C), cases=(CaseState(D, "not_guilty"),)).state == "rejected"


def test_an_open_case_holds_it_out():
    assert judge(yes(A), yes(B), cases=(CaseState(D, "open"),)) == PENDING
    both = (CaseState(C, "not_guilty"), CaseState(D, "open"))
    assert judge(yes(A), yes(B), no(C), cases=both).state == "rejected"


def test_the_convicted_have_no_say():
    assert judge(yes(A), yes(B, trusted=False)) == PENDING
    assert judge(yes(A), yes(B), no(C, trusted=False)) == ACCEPTED


def test_a_jailed_nodes_work_is_void_but_its_rejections_stay_named():
    assert judge(yes(A), yes(B), jailed=True) == VOID
    assert judge(jailed=True) == VOID
    assert judge(no(A), jailed=True) == CommitmentStatus("rejected", "wrong_reward")


opinions = st.lists(st.builds(Opinion, st.sampled_from("abcd"), st.booleans(), st.just("x"), st.booleans()))
outcomes = st.sampled_from([outcome.name.lower() for outcome in Outcome])
cases = st.lists(st.builds(CaseState, st.sampled_from("abcd"), outcomes))


@given(opinions, cases, st.booleans(), st.integers(1, 4))
def test_nothing_contested_is_ever_accepted(told, about, jailed, required):
    found = commitment_status(told, about, jailed=jailed, accepts_required=required)
    if found.state == "accepted":
        assert not jailed
        assert all(case.outcome != "open" for case in about)
        cleared = {case.challenger for case in about if case.outcome == "not_guilty"}
        assert all(o.validator in cleared for o in told if o.trusted and not o.accepted)
        assert len({o.validator for o in told if o.trusted and o.accepted}) >= required


@given(opinions, cases, st.booleans(), st.integers(1, 4), st.sampled_from("efgh"))
def test_one_more_rejection_never_helps(told, about, jailed, required, newcomer):
    rejected = commitment_status([*told, no(newcomer)], about, jailed=jailed, accepts_required=required)
    assert rejected.state == "rejected"
