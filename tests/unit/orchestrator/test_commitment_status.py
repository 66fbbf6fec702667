"""The status of a commitment: every rule of orchestrator.commitment_status, with its negative."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contracts.court import Outcome
from muster.protocol.looks import Seating
from orchestrator.commitment_status import CaseState, CommitmentStatus, Opinion, commitment_status

A, B, C, D = "0xa", "0xb", "0xc", "0xd"


CALL = Seating([A, B, C, D], opens=100, hold=60, places=2)


def yes(validator: str, trusted: bool = True, came: int = 100) -> Opinion:
    return Opinion(validator, True, None, came, trusted)


def no(validator: str, reason: str = "wrong_reward", trusted: bool = True, came: int = 100) -> Opinion:
    return Opinion(validator, False, reason, came, trusted)


def judge(
    *opinions: Opinion, cases: tuple[CaseState, ...] = (), jailed: bool = False, call: Seating | None = CALL
) -> CommitmentStatus:
    required = call.places if call else 2
    return commitment_status(opinions, cases, jailed=jailed, accepts_required=required, call=call)


PENDING, ACCEPTED, VOID = CommitmentStatus("pending"), CommitmentStatus("accepted"), CommitmentStatus("void")
REJECTED = CommitmentStatus("rejected", "wrong_reward")


def test_the_required_number_of_accepts_makes_it_accepted():
    assert judge() == PENDING
    assert judge(yes(A)) == PENDING
    assert judge(yes(A), yes(B)) == ACCEPTED
    assert judge(yes(A), call=replace(CALL, places=1)) == ACCEPTED


def test_nobody_decides_before_the_drawing_block_is_known():
    assert judge(yes(A), yes(B), call=None) == PENDING
    assert judge(no(A), call=None) == PENDING


def test_a_validator_counts_once():
    assert judge(yes(A), yes(A)) == PENDING


def test_only_verdicts_that_take_a_place_decide():
    assert judge(yes(A), yes(C)) == PENDING
    assert judge(yes(A), yes(B), no(C), no(D)) == ACCEPTED
    assert judge(yes(A), no(B), yes(C), yes(D)) == REJECTED


def test_a_place_that_lapses_opens_for_the_next():
    assert judge(yes(A), yes(C, came=160)) == ACCEPTED
    assert judge(yes(A), yes(B, came=160)) == PENDING
    assert judge(yes(A), no(B, came=160), yes(C, came=161)) == ACCEPTED
    assert judge(yes(A), yes(C, came=159)) == PENDING
    assert judge(yes(A), yes(C, came=220), yes(D, came=221)) == ACCEPTED


def test_the_earliest_rejection_names_the_reason():
    assert judge(no(A, "sampling_mismatch"), no(B)) == CommitmentStatus("rejected", "sampling_mismatch")


def test_a_rejection_of_who_is_not_called_counts_with_its_own_case():
    for outcome in ("open", "guilty", "no_quorum", "moot", "dismissed"):
        assert judge(yes(A), yes(B), no(C), cases=(CaseState(C, outcome),)) == REJECTED, outcome
    assert judge(yes(A), yes(B), no(C), cases=(CaseState(D, "guilty"),)) == ACCEPTED


def test_a_rejection_ends_when_its_own_case_ends_not_guilty():
    for outcome in ("open", "guilty", "no_quorum", "moot", "dismissed"):
        assert judge(yes(A), no(B), cases=(CaseState(B, outcome),)) == REJECTED, outcome
    assert judge(yes(A), yes(B), no(C), cases=(CaseState(C, "not_guilty"),)) == ACCEPTED
    assert judge(yes(A), no(B), cases=(CaseState(B, "not_guilty"),)) == PENDING
    assert judge(yes(A), no(B), yes(C, came=160), cases=(CaseState(B, "not_guilty"),)) == ACCEPTED


@pytest.mark.parametrize("outcome", ["dismissed", "cured"])
def test_a_file_that_is_there_clears_only_rejections_for_missing_data(outcome: str):
    shown = (CaseState(D, outcome),)
    assert judge(no(A, "data_missing"), yes(B), yes(C, came=160), cases=shown) == ACCEPTED
    assert judge(no(A, "data_missing"), cases=shown) == PENDING
    assert judge(no(A, "data_missing"), no(B), cases=shown) == REJECTED
    assert judge(no(A), yes(B), cases=shown) == REJECTED
    assert judge(no(A, "data_missing"), yes(B), cases=(CaseState(D, "moot"),)).state == "rejected"


def test_lost_case_clears_no_other_validators_rejection():
    """A friend of the accused may open a case only to lose it."""
    assert judge(yes(A), no(B), cases=(CaseState(D, "not_guilty"),)) == REJECTED


def test_open_case_blocks_acceptance():
    assert judge(yes(A), yes(B), cases=(CaseState(D, "open"),)) == PENDING
    assert judge(yes(A), no(B), cases=(CaseState(B, "not_guilty"), CaseState(D, "open"))) == REJECTED


def test_convicted_validators_take_no_place():
    assert judge(yes(A), yes(B, trusted=False)) == PENDING
    assert judge(yes(A), yes(B, trusted=False), yes(C, came=160)) == ACCEPTED
    assert judge(yes(A), no(B, trusted=False), yes(C, came=160)) == ACCEPTED


def test_a_jailed_nodes_work_is_void_but_its_rejections_stay_named():
    assert judge(yes(A), yes(B), jailed=True) == VOID
    assert judge(jailed=True) == VOID
    assert judge(no(A), jailed=True) == REJECTED
    assert judge(no(C), jailed=True) == VOID


seconds = st.integers(90, 300)
opinion_lists = st.lists(
    st.builds(Opinion, st.sampled_from("abcd"), st.booleans(), st.just("x"), seconds, st.booleans())
)
outcomes = st.sampled_from([outcome.name.lower() for outcome in Outcome])
case_lists = st.lists(st.builds(CaseState, st.sampled_from("abcd"), outcomes))
calls = st.builds(Seating, st.permutations("abcd"), st.just(100), st.just(60), st.integers(1, 4))


@given(opinion_lists, case_lists, st.booleans(), calls)
def test_accepted_work_is_uncontested_and_was_accepted_by_who_was_called(opinions, cases, jailed, call):
    found = commitment_status(opinions, cases, jailed=jailed, accepts_required=call.places, call=call)
    if found.state == "accepted":
        assert not jailed
        assert all(case.outcome != "open" for case in cases)
        assert len({one.validator for one in opinions if one.trusted and one.accepted}) >= call.places


@given(opinion_lists, case_lists, st.booleans(), calls, st.sampled_from("efgh"))
def test_one_more_rejection_helps_only_with_a_case(opinions, cases, jailed, call, newcomer):
    def status(*more: Opinion, court: list[CaseState]) -> CommitmentStatus:
        return commitment_status([*opinions, *more], court, jailed=jailed, accepts_required=call.places, call=call)

    assert status(no(newcomer), court=cases) == status(court=cases)
    assert status(no(newcomer), court=[*cases, CaseState(newcomer, "guilty")]).state == "rejected"
