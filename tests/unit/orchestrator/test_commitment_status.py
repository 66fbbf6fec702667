"""The status of a commitment: every rule of orchestrator.commitment_status, with its negative."""

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


def test_receipt_clears_only_rejections_for_missing_data():
    shown = (CaseState(D, "dismissed"),)
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=shown) == ACCEPTED
    assert judge(no(A, "data_missing"), cases=shown) == PENDING
    assert judge(no(A, "data_missing"), no(B), yes(C), yes(D), cases=shown) == CommitmentStatus(
        "rejected", "wrong_reward"
    )
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=(CaseState(D, "moot"),)).state == "rejected"


def test_cured_case_clears_only_rejections_for_missing_data():
    """In a cured case the file has arrived, so verdicts that it is missing no longer apply."""
    shown = (CaseState(D, "cured"),)
    assert judge(no(A, "data_missing"), yes(B), yes(C), cases=shown) == ACCEPTED
    assert judge(no(A, "wrong_reward"), yes(B), yes(C), cases=shown).state == "rejected"


def test_lost_case_clears_no_other_validators_rejection():
    """A friend of the accused may open a case only to lose it."""
    assert judge(yes(A), yes(B), no(C), cases=(CaseState(D, "not_guilty"),)).state == "rejected"


def test_open_case_blocks_acceptance():
    assert judge(yes(A), yes(B), cases=(CaseState(D, "open"),)) == PENDING
    both = (CaseState(C, "not_guilty"), CaseState(D, "open"))
    assert judge(yes(A), yes(B), no(C), cases=both).state == "rejected"


def test_convicted_validators_do_not_count():
    assert judge(yes(A), yes(B, trusted=False)) == PENDING
    assert judge(yes(A), yes(B), no(C, trusted=False)) == ACCEPTED


def test_a_jailed_nodes_work_is_void_but_its_rejections_stay_named():
    assert judge(yes(A), yes(B), jailed=True) == VOID
    assert judge(jailed=True) == VOID
    assert judge(no(A), jailed=True) == CommitmentStatus("rejected", "wrong_reward")


opinion_lists = st.lists(st.builds(Opinion, st.sampled_from("abcd"), st.booleans(), st.just("x"), st.booleans()))
outcomes = st.sampled_from([outcome.name.lower() for outcome in Outcome])
case_lists = st.lists(st.builds(CaseState, st.sampled_from("abcd"), outcomes))


@given(opinion_lists, case_lists, st.booleans(), st.integers(1, 4))
def test_contested_commitment_is_never_accepted(opinions, cases, jailed, required):
    found = commitment_status(opinions, cases, jailed=jailed, accepts_required=required)
    if found.state == "accepted":
        assert not jailed
        assert all(case.outcome != "open" for case in cases)
        cleared = {case.challenger for case in cases if case.outcome == "not_guilty"}
        assert all(o.validator in cleared for o in opinions if o.trusted and not o.accepted)
        assert len({o.validator for o in opinions if o.trusted and o.accepted}) >= required


@given(opinion_lists, case_lists, st.booleans(), st.integers(1, 4), st.sampled_from("efgh"))
def test_one_more_rejection_never_helps(opinions, cases, jailed, required, newcomer):
    rejected = commitment_status([*opinions, no(newcomer)], cases, jailed=jailed, accepts_required=required)
    assert rejected.state == "rejected"
