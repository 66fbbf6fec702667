"""Masters and epochs of private tests, and whose statement a grade is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import ConfigError, MalformedError, MismatchError
from muster.protocol.draws import chain_preimages
from muster.protocol.eip712 import UNSIGNED, Domain, sign_message
from muster.protocol.masters import (
    check_grade,
    check_master,
    earlier_master,
    epoch_of,
    epochs_begun,
    epochs_over,
    grades_commitment,
)
from muster.protocol.messages import Grade
from muster.protocol.terms import Terms, WorkClass
from scripts.contract_vectors import terms_with
from testbed.chain.rules import epochs_to_publish
from testbed.samples.messages import ELSEWHERE, HASH, HERE, KEY, OTHER, Key, a_verdict

PLAIN = terms_with(1, WorkClass(10_000, (8,)))
GRADES, SALT = "0x" + "09" * 32, "0x" + "04" * 32


def sealed_terms(epochs: int, steps: int) -> tuple[Terms, list[bytes]]:
    """Terms with private tests, and their masters from the first to the last."""
    masters = chain_preimages(b"m" * 32, epochs)
    tip = keccak(masters[0])
    return replace(PLAIN, grade_tip=tip, grade_epochs=epochs, grade_epoch_steps=steps), masters


def a_grade(where: Domain = HERE, key: Key = KEY, **changes: Any) -> Grade:
    fields: dict[str, Any] = {
        "run": 1,
        "step": 2,
        "node": OTHER.address,
        "index": 3,
        "root": HASH,
        "validator": KEY.address,
    }
    fields |= {"grades": GRADES, "salt": SALT, "signature": UNSIGNED}
    return sign_message(key, where, Grade(**(fields | changes)))


# Epochs


def test_an_epoch_is_its_steps_and_the_last_goes_on() -> None:
    terms, _ = sealed_terms(epochs=3, steps=10)
    assert [epoch_of(terms.grade_series, step) for step in (0, 9, 10, 19, 20, 29, 30, 10**6)] == [
        1,
        1,
        2,
        2,
        3,
        3,
        3,
        3,
    ]
    assert [epochs_begun(terms.grade_series, steps) for steps in (0, 1, 10, 11, 20, 21, 10**6)] == [0, 1, 1, 2, 2, 3, 3]
    assert [epochs_over(terms.grade_series, steps) for steps in (0, 1, 10, 11, 20, 21, 10**6)] == [0, 0, 0, 1, 1, 2, 2]
    assert [epochs_to_publish(terms.grade_series, step) for step in (0, 10, 19, 20, 29, 30, 10**6)] == [
        0,
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_run_without_private_tests_has_no_epochs() -> None:
    assert not PLAIN.has_private_tests
    assert not PLAIN.has_traps
    assert [
        f(series, 7)
        for series in (PLAIN.grade_series, PLAIN.trap_series)
        for f in (epoch_of, epochs_begun, epochs_over, epochs_to_publish)
    ] == [0] * 8


@given(epochs=st.integers(1, 65_535), steps=st.integers(1, 2**32 - 1), step=st.integers(0, 2**24))
def test_a_step_can_be_published_while_at_most_one_master_of_an_ended_epoch_is_missing(
    epochs: int, steps: int, step: int
) -> None:
    terms = replace(PLAIN, grade_tip=b"t" * 32, grade_epochs=epochs, grade_epoch_steps=steps)
    over = epochs_over(terms.grade_series, step + 1)
    whole = step // steps  # epochs' worth of steps before this one
    assert epochs_to_publish(terms.grade_series, step) == max(min(whole, epochs) - 1, 0)
    assert (
        over - 1
        <= epochs_to_publish(terms.grade_series, step)
        <= over
        < epochs_begun(terms.grade_series, step + 1)
        <= epochs
    )


# Masters


def test_a_master_gives_all_before_it_and_none_after() -> None:
    terms, masters = sealed_terms(epochs=4, steps=5)
    assert [earlier_master(masters[3], 4, epoch) for epoch in range(5)] == [terms.grade_tip, *masters]
    for wanted in (-1, 3, 5):
        with pytest.raises(MalformedError, match="does not follow"):
            earlier_master(masters[1], 2, wanted)


def test_only_the_chains_own_masters_are_taken() -> None:
    terms, masters = sealed_terms(epochs=3, steps=5)
    for epoch, master in enumerate(masters, 1):
        check_master(terms.grade_series, epoch, master)
        for other in {0, 1, 2, 3, 4} - {epoch}:
            with pytest.raises(MismatchError, match="does not lead to"):
                check_master(terms.grade_series, other, master)
    with pytest.raises(MismatchError):
        check_master(terms.grade_series, 1, b"x" * 32)
    with pytest.raises(MismatchError):
        check_master(PLAIN.grade_series, 1, b"x" * 32)


# Grades


def test_a_commitment_to_grades_names_its_validator_and_hides_by_its_salt() -> None:
    made = grades_commitment(GRADES, SALT, KEY.address)
    assert made == "0xa60a7e76c968a5fbb8586628f999b0eabdf8d9a6dce56189f9e395eb10e17621"
    assert (
        len({made, grades_commitment(GRADES, SALT, OTHER.address), grades_commitment(GRADES, GRADES, KEY.address)}) == 3
    )


def test_a_grade_is_its_validators_and_opens_its_verdict() -> None:
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, KEY.address))
    check_grade(HERE, a_grade(), verdict)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_grade_of_another_chain_or_deployment_is_refused(where: Domain) -> None:
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, KEY.address))
    with pytest.raises(MismatchError, match="not by its validator"):
        check_grade(HERE, a_grade(where), verdict)


def test_a_grade_signed_by_another_is_refused() -> None:
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, KEY.address))
    with pytest.raises(MismatchError, match="not by its validator"):
        check_grade(HERE, a_grade(key=OTHER), verdict)


@pytest.mark.parametrize(
    ("name", "value"), [("run", 2), ("step", 3), ("node", KEY.address), ("index", 4), ("root", GRADES)]
)
def test_a_grade_of_another_commitment_opens_nothing(name: str, value: object) -> None:
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, KEY.address))
    with pytest.raises(MismatchError, match=f"the grade's {name} is"):
        check_grade(HERE, a_grade(**{name: value}), verdict)


def test_a_commitment_copied_from_another_validator_cannot_be_opened() -> None:
    """A lazy validator repeats OTHER's commitment, and later learns OTHER's grades and salt."""
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, OTHER.address))
    with pytest.raises(MismatchError, match="does not open"):
        check_grade(HERE, a_grade(), verdict)


def test_other_grades_or_none_are_not_what_was_committed_to() -> None:
    verdict = a_verdict(grades=grades_commitment(GRADES, SALT, KEY.address))
    for other in (a_grade(grades=HASH), a_grade(salt=HASH)):
        with pytest.raises(MismatchError, match="does not open"):
            check_grade(HERE, other, verdict)
    with pytest.raises(MismatchError, match="does not open"):
        check_grade(HERE, a_grade(), a_verdict(grades=None))


def test_the_two_series_of_a_run_are_apart() -> None:
    terms, masters = sealed_terms(epochs=3, steps=10)
    tip = keccak(b"t" * 32)
    both = replace(terms, trap_every=100, trap_prize=5, trap_tip=tip, trap_epochs=1, trap_epoch_steps=4)
    assert both.has_traps
    assert [epoch_of(both.trap_series, step) for step in (0, 4, 40)] == [1, 1, 1]
    assert [epoch_of(both.grade_series, step) for step in (0, 10, 40)] == [1, 2, 3]
    check_master(both.trap_series, 1, b"t" * 32)
    for series, master in ((both.trap_series, masters[0]), (both.grade_series, b"t" * 32)):
        with pytest.raises(MismatchError, match="does not lead to"):
            check_master(series, 1, master)


# Terms


@pytest.mark.parametrize(
    "changes",
    [
        {"grade_tip": b"t" * 32},
        {"grade_tip": b"t" * 32, "grade_epochs": 1},
        {"grade_tip": b"t" * 32, "grade_epoch_steps": 1},
        {"grade_epochs": 1, "grade_epoch_steps": 1},
        {"grade_epochs": 1},
        {"grade_epoch_steps": 1},
    ],
)
def test_private_tests_have_all_of_their_terms_or_none(changes: dict) -> None:
    with pytest.raises(ConfigError, match="do not go together"):
        replace(PLAIN, **changes)


TRAPS = {"trap_every": 20, "trap_prize": 1, "trap_tip": b"t" * 32, "trap_epochs": 1, "trap_epoch_steps": 1}


@pytest.mark.parametrize("missing", TRAPS)
def test_traps_have_all_of_their_terms_or_none(missing: str) -> None:
    assert replace(PLAIN, **TRAPS).has_traps
    for changes in ({name: TRAPS[name] for name in TRAPS if name != missing}, {missing: TRAPS[missing]}):
        with pytest.raises(ConfigError, match="do not go together"):
            replace(PLAIN, **changes)
