"""What becomes of a commitment: every rule of muster.protocol.acceptance, with its negative."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.contracts.court import Outcome
from muster.protocol.acceptance import CaseState, Decision, Opinion, decide, ended_decision
from muster.protocol.looks import Seating
from testbed.samples.messages import verdict_of

A, B, C, D = "0xa", "0xb", "0xc", "0xd"


CALL = Seating([A, B, C, D], opens=100, hold=60, places=2)


def yes(validator: str, trusted: bool = True, came: int = 100) -> Opinion:
    return Opinion(validator, True, None, came, trusted)


def no(validator: str, reason: Any = "wrong_reward", trusted: bool = True, came: int = 100) -> Opinion:
    return Opinion(validator, False, reason, came, trusted)


def decided(
    *opinions: Opinion, cases: tuple[CaseState, ...] = (), jailed: bool = False, call: Seating | None = CALL
) -> Decision:
    required = call.places if call else 2
    return decide(opinions, cases, jailed=jailed, accepts_required=required, call=call)


def judge(*opinions: Opinion, **about: Any) -> tuple[str, str | None]:
    found = decided(*opinions, **about)
    return found.state, found.reason


PENDING, ACCEPTED, VOID = ("pending", None), ("accepted", None), ("void", None)
REJECTED = ("rejected", "wrong_reward")


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
    assert judge(no(A, "sampling_mismatch"), no(B)) == ("rejected", "sampling_mismatch")


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
    assert judge(no(A, "data_missing"), yes(B), cases=(CaseState(D, "moot"),))[0] == "rejected"


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


def test_a_verdict_about_rows_of_another_block_counts_neither_way():
    call = replace(CALL, drawn_by="0x02")
    here, gone = (replace(yes(A), drawn_by=drawn_by) for drawn_by in ("0x02", "0x03"))
    assert judge(here, yes(B), call=call) == ACCEPTED
    assert judge(gone, yes(B), call=call) == PENDING
    assert judge(replace(no(A), drawn_by="0x03"), yes(B), yes(C, came=160), call=call) == ACCEPTED
    assert judge(here, yes(B), call=None) == PENDING


def test_a_refuted_rejection_counts_neither_way_unless_a_court_decides():
    refuted = replace(no(A), refuted=True)
    assert judge(refuted, yes(B), yes(C, came=160)) == ACCEPTED
    assert judge(refuted, yes(B)) == PENDING
    assert judge(refuted, yes(B), cases=(CaseState(A, "open"),)) == REJECTED
    assert Opinion.of(verdict_of(accepted=False, reason="wrong_reward"), 1, refuted=True).refuted
    assert not Opinion.of(verdict_of(), 1, refuted=True).refuted, "it came in place of the rejection"


# Sentences

REWARD = "a reward is not what the task's verifier gives"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (decided(), "Pending: 0 of the 2 validators that must accept it have accepted."),
        (decided(yes(A)), "Pending: 1 of the 2 validators that must accept it have accepted."),
        (
            decided(yes(A), yes(C)),
            "Pending: enough validators accepted it, but not as many that were called to look at it.",
        ),
        (decided(yes(A), yes(B), cases=(CaseState(D, "open", 6),)), "Pending: case 6 about it is open."),
        (decided(yes(A), yes(B)), "Accepted: 2 validators inspected it and found nothing wrong."),
        (decided(yes(A), no(B)), f"Rejected by 0xb: {REWARD}."),
        (decided(replace(no(A), position=3)), f"Rejected by Vera: {REWARD} (row 3)."),
        (
            decided(yes(A), jailed=True),
            "Void: no validator found it wrong, but its node was convicted, and all of its work is void.",
        ),
        (
            ended_decision("rejected", "wrong_reward", 20_000, jailed=True),
            "Rejected, wrong reward: its file and verdicts are gone, kept in the summary of 2024-10-04.",
        ),
        (
            ended_decision("accepted", None, 0, jailed=False),
            "Accepted: its file and verdicts are gone, kept in the summary of 1970-01-01.",
        ),
        (
            ended_decision("accepted", None, 1, jailed=True),
            "Void: its file and verdicts are gone, kept in the summary of 1970-01-02.",
        ),
    ],
)
def test_one_sentence_says_what_became_of_it_and_why(found: Decision, sentence: str):
    assert found.sentence(names={A: "Vera"}) == sentence


def test_what_has_no_file_cannot_be_inspected():
    for found in (decided(), decided(cases=(CaseState(A, "open", 6),))):
        assert found.sentence(has_file=False) == ("Pending: storage does not have its file, so it cannot be inspected.")
    assert decided(no(A)).sentence(has_file=False).startswith("Rejected by 0xa: ")


seconds = st.integers(90, 300)
opinion_lists = st.lists(
    st.builds(Opinion, st.sampled_from("abcd"), st.booleans(), st.just("x"), seconds, st.booleans())
)
outcomes = st.sampled_from([outcome.name.lower() for outcome in Outcome])
case_lists = st.lists(st.builds(CaseState, st.sampled_from("abcd"), outcomes))
calls = st.builds(Seating, st.permutations("abcd"), st.just(100), st.just(60), st.integers(1, 4))


@given(opinion_lists, case_lists, st.booleans(), calls)
def test_accepted_work_is_uncontested_and_was_accepted_by_who_was_called(opinions, cases, jailed, call):
    found = decide(opinions, cases, jailed=jailed, accepts_required=call.places, call=call)
    if found.state == "accepted":
        assert not jailed
        assert all(case.outcome != "open" for case in cases)
        assert len({one.validator for one in opinions if one.trusted and one.accepted}) >= call.places


@given(opinion_lists, case_lists, st.booleans(), calls, st.sampled_from("efgh"))
def test_one_more_rejection_helps_only_with_a_case(opinions, cases, jailed, call, newcomer):
    def status(*more: Opinion, court: list[CaseState]) -> tuple[str, str | None]:
        found = decide([*opinions, *more], court, jailed=jailed, accepts_required=call.places, call=call)
        return found.state, found.reason

    assert status(no(newcomer), court=cases) == status(court=cases)
    assert status(no(newcomer), court=[*cases, CaseState(newcomer, "guilty")])[0] == "rejected"
