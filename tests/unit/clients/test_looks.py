"""Lists and calls as others say them: who signed a list, and in which order validators can be called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.chain.keys import Signer
from muster.clients.looks import WageAccount, WageCover, check_list, check_order
from muster.contracts.run_terms import Keys, Tenure
from muster.contracts.wages import Pot
from muster.errors import MalformedError, MismatchError
from muster.protocol.eip712 import sign_message
from muster.protocol.keys import ZERO_ADDRESS, RunKeys
from muster.protocol.looks import Seat, call_order, settles_at
from muster.protocol.messages import LookList, SignedText, ValidatorTotal
from muster.protocol.receipts import sign_text
from testbed.samples.commitments import WHERE
from testbed.samples.terms import keys_of, terms_of

TRAINER, OTHER = Signer.from_key(b"\x05" * 32), Signer.from_key(b"\x06" * 32)
RUN, HOUR = 1, 500_000
DRAWN = {"block_hash": bytes(range(32)), "node": "0x" + "ab" * 20, "index": 7, "at": 1_000}
A = "0x" + "aa" * 20


def shown(
    signer: Signer = TRAINER, *, run: int = RUN, signed_run: int = RUN, kind: str = "looks", twice: bool = False
) -> SignedText:
    totals = [ValidatorTotal(validator=one, total=5) for one in (A, A.replace("a", "A"))[: 1 + twice]]
    listed = LookList(run=run, hour=HOUR, looks=[], checks=[], totals=totals)
    signed = sign_text(signer, WHERE, kind, listed)
    return sign_message(signer, WHERE, signed.model_copy(update={"run": signed_run}))


def test_a_list_is_its_trainers() -> None:
    found = check_list(WHERE, shown(), RUN, keys_of(TRAINER.address))
    assert (found.hour, found.totals[0].total) == (HOUR, 5)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (shown(OTHER), "which was not the run's trainer"),
        (shown(run=RUN + 1), "the signature is for another run"),
        (shown(run=RUN + 1, signed_run=RUN + 1), "it is a list of run 2"),
        (shown(kind="report"), "signed as a report, not as a looks"),
        (shown().model_copy(update={"text": shown().text.replace('"5"', '"6"')}), "which was not the run's trainer"),
    ],
    ids=["another's", "another run's text", "another run's", "another kind's", "changed"],
)
def test_another_list_is_refused(other: SignedText, why: str) -> None:
    with pytest.raises(MismatchError, match=why):
        check_list(WHERE, other, RUN, keys_of(TRAINER.address))


def test_a_list_that_names_a_total_twice_is_refused() -> None:
    with pytest.raises(MalformedError, match="twice"):
        check_list(WHERE, shown(twice=True), RUN, keys_of(TRAINER.address))


@pytest.mark.parametrize(("since", "is_theirs"), [(settles_at(HOUR), False), (settles_at(HOUR) + 1, True)])
def test_a_trainer_whose_time_was_over_signs_no_list(since: int, *, is_theirs: bool) -> None:
    """Who trained when it was due may have been replaced before it was read."""
    old, new = (Keys(one.address, one.address, ZERO_ADDRESS) for one in (TRAINER, OTHER))
    keys = RunKeys((Tenure(old, 0), Tenure(new, since)))
    assert check_list(WHERE, shown(OTHER), RUN, keys)
    if is_theirs:
        assert check_list(WHERE, shown(), RUN, keys)
    else:
        with pytest.raises(MismatchError):
            check_list(WHERE, shown(), RUN, keys)


SEATS = [Seat(f"0x{number:040x}", since=0) for number in range(1, 7)]
TERMS = terms_of(jury_seniority=100, accepts_required=2)
ORDER = call_order(SEATS, **DRAWN, terms=TERMS)  # type: ignore[arg-type]


def order_with(*rests: str) -> list[str]:
    return call_order([replace(one, rests=one.address in rests) for one in SEATS], **DRAWN, terms=TERMS)  # type: ignore[arg-type]


@pytest.mark.parametrize("rests", [(), (ORDER[0],), (ORDER[5],), (ORDER[1], ORDER[3]), tuple(ORDER)], ids=len)
def test_whoever_rests_is_called_last(rests: tuple[str, ...]) -> None:
    check_order(order_with(*rests), SEATS, **DRAWN, terms=TERMS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "order",
    [
        [ORDER[1], ORDER[0], ORDER[3], ORDER[2], *ORDER[4:]],
        ORDER[:5],
        [*ORDER, A],
        [],
    ],
    ids=["no order of two parts", "one left out", "a stranger", "nobody"],
)
def test_an_order_that_no_rest_explains_is_refused(order: list[str]) -> None:
    with pytest.raises(MismatchError, match="calls others"):
        check_order(order, SEATS, **DRAWN, terms=TERMS)  # type: ignore[arg-type]


def test_while_few_are_senior_as_many_as_the_run_needs_are_called() -> None:
    young = [replace(one, since=950) for one in SEATS]
    order = call_order(young, **DRAWN, terms=TERMS)  # type: ignore[arg-type]
    assert len(order) == 2
    check_order(order, young, **DRAWN, terms=TERMS)  # type: ignore[arg-type]
    resting = [replace(one, rests=one.address == order[0]) for one in young]
    check_order(call_order(resting, **DRAWN, terms=TERMS), young, **DRAWN, terms=TERMS)  # type: ignore[arg-type]


def test_what_is_due_and_how_far_money_reaches() -> None:
    assert WageAccount(earned=9, posted=7, paid=3).due == 4
    assert WageAccount(earned=9, posted=3, paid=7).due == 0
    pot = Pot(posted=0, claimed=0, funded=100, announced=0, take_from=0)
    assert WageCover(pot, left=90, hourly=20).hours == 4.5
    assert WageCover(pot, left=90, hourly=0).hours is None
