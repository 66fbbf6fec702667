"""Which verdicts are looks: by place, numbers, drawing block and link."""

from __future__ import annotations

import numpy as np
import pytest

from muster.constants import HOUR_SECONDS
from muster.protocol.hashes import hex_hash
from muster.protocol.looks import hold_seconds, link_due_at, rows_of_look, wage
from muster.protocol.messages import Verdict
from muster.protocol.reasons import Reason
from muster.verification.look import encode_look, numbers_of
from muster.verification.look_facts import CalledWork, ShownLink, judge_arrived
from muster.verification.profiles import BF16, CPU_FP32
from muster.verification.rules import CommittedWork
from testbed.samples.messages import verdict_of
from testbed.samples.terms import terms_of

PROFILE = CPU_FP32
TERMS = terms_of(accepts_required=2)
HOUR, DRAWN = 500_000, bytes(range(32))
NODE = "0x" + "ab" * 20
A, B, C, D = (f"0x{number:040x}" for number in range(1, 5))
WORK = CommittedWork(run=1, step=2, node=NODE, index=7, root=b"\x05" * 32, hour=HOUR, block=9)
OPENS = HOUR * HOUR_SECONDS + 10
KNOWN = CalledWork(WORK, (A, B, C), OPENS, DRAWN, operator="op", work_class=0)
SEALED = (HOUR + 1) * HOUR_SECONDS + 60
LINKS = {who: ShownLink(b"\x01" * 32, SEALED) for who in (A, B, C, D)}
WHOLE = encode_look([np.zeros((2, numbers_of(PROFILE)))] * rows_of_look(TERMS, WORK.index), PROFILE)


def verdict(
    validator: str,
    *,
    accepted: bool = True,
    look: str = WHOLE,
    drawn_by: bytes = DRAWN,
    reason: Reason | None = None,
) -> Verdict:
    about = {"accepted": accepted, "look": look, "drawn_by": hex_hash(drawn_by), "reason": reason}
    return verdict_of(node=NODE, index=7, validator=validator, **about)


def whys(*came: tuple[Verdict, int], links: dict[str, ShownLink] = LINKS, refuted: str = "") -> dict[str, str | None]:
    found = judge_arrived(KNOWN, came, links, {refuted}, PROFILE, TERMS)
    return {one.placed.validator: one.why for one in found}


def test_the_called_count_and_who_is_not_called_or_comes_after_does_not() -> None:
    came = [(verdict(who), OPENS + second) for second, who in enumerate((A, B, C, D))]
    assert whys(*came) == {A: None, B: None, C: "late", D: "uncalled"}


def test_an_open_place_is_the_next_ones() -> None:
    after = OPENS + hold_seconds(TERMS)
    assert whys((verdict(A), OPENS), (verdict(C), after), (verdict(B), after + 1)) == {A: None, C: None, B: "late"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (verdict(A, look=""), "unread"),
        (verdict(A, look=WHOLE[:-2]), "incomplete"),
        (verdict(A, look=WHOLE[:-8] + "0000807f"), "incomplete"),
        (verdict(A, accepted=False), None),
        (verdict(A, accepted=False, reason="data_missing"), "unread"),
    ],
    ids=["nothing", "a byte short", "an infinite number", "a rejection with numbers", "numbers of a missing file"],
)
def test_numbers_are_whole_or_do_not_count(said: Verdict, why: str | None) -> None:
    assert whys((said, OPENS)) == {A: why}


def test_numbers_of_another_arithmetic_do_not_count() -> None:
    [look] = judge_arrived(KNOWN, [(verdict(A), OPENS)], LINKS, (), BF16, TERMS)
    assert look.why == "incomplete"


def test_a_look_at_rows_that_another_block_drew_holds_no_place() -> None:
    came = (verdict(A, drawn_by=bytes(32)), OPENS), (verdict(B), OPENS), (verdict(C), OPENS + hold_seconds(TERMS))
    assert whys(*came) == {A: "late", B: None, C: None}


def test_a_link_is_shown_in_time_and_after_the_look() -> None:
    assert whys((verdict(A), OPENS), links={}) == {A: "unlinked"}
    due = link_due_at(HOUR)
    assert whys((verdict(A), OPENS), links={A: ShownLink(b"", due)}) == {A: "unlinked"}
    assert whys((verdict(A), OPENS), links={A: ShownLink(b"", due - 1)}) == {A: None}
    assert whys((verdict(A), OPENS), links={A: ShownLink(b"", OPENS)}) == {A: "late"}


def test_a_refuted_rejection_gives_its_place_away() -> None:
    after = OPENS + hold_seconds(TERMS)
    came = (verdict(A, accepted=False), OPENS), (verdict(B), OPENS), (verdict(C), after)
    assert whys(*came) == {A: None, B: None, C: "late"}
    assert whys(*came, refuted=A) == {A: "refuted", B: None, C: None}
    assert whys((verdict(A), OPENS), *came[1:], refuted=A) == {A: None, B: None, C: "late"}, "it accepts by now"


def test_what_is_paid_and_replayed_follows_from_the_commitment() -> None:
    [look] = judge_arrived(KNOWN, [(verdict(A), OPENS)], LINKS, (), PROFILE, TERMS)
    assert look.placed.wage == wage(TERMS, 0, 7)
    assert (look.placed.hour, look.placed.operator, look.placed.came) == (HOUR, "op", OPENS)
    assert look.seeds.link == b"\x01" * 32
    assert len(look.rows(TERMS)) == rows_of_look(TERMS, 7)
