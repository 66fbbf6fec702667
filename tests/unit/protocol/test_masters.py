"""Masters and epochs of private tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import MalformedError, MismatchError
from muster.protocol.draws import chain_preimages
from muster.protocol.masters import check_master, earlier_master, epoch_of, epochs_trained
from muster.protocol.terms import Terms
from testbed.samples.terms import terms_of

PLAIN = terms_of()


def sealed_terms(epochs: int, steps: int) -> tuple[Terms, list[bytes]]:
    """Terms with private tests, and their masters from the first to the last."""
    masters = chain_preimages(b"m" * 32, epochs)
    tip = keccak(masters[0])
    return replace(PLAIN, grade_tip=tip, grade_epochs=epochs, grade_epoch_steps=steps), masters


# Epochs


def test_an_epoch_is_its_steps_and_the_last_goes_on() -> None:
    series = sealed_terms(epochs=3, steps=10)[0].grade_series
    assert [epoch_of(series, step) for step in (0, 9, 10, 19, 20, 29, 30, 10**6)] == [1, 1, 2, 2, 3, 3, 3, 3]


def test_an_epoch_is_over_once_its_last_work_is_too_stale_and_the_last_never_is() -> None:
    series = sealed_terms(epochs=3, steps=10)[0].grade_series
    assert [epochs_trained(series, step, 2) for step in (0, 9, 11, 12, 21, 22, 32, 10**6)] == [0, 0, 0, 1, 1, 2, 2, 2]


@given(epochs=st.integers(1, 9), steps=st.integers(1, 9), step=st.integers(0, 99), level=st.integers(1, 5))
def test_no_work_that_can_be_trained_on_is_of_an_epoch_that_is_over(
    epochs: int, steps: int, step: int, level: int
) -> None:
    series = replace(PLAIN, grade_tip=b"t" * 32, grade_epochs=epochs, grade_epoch_steps=steps).grade_series
    oldest = epoch_of(series, max(0, step - level))
    assert epochs_trained(series, step, level) == oldest - 1


def test_a_run_without_private_tests_has_no_epochs() -> None:
    assert not PLAIN.has_private_tests
    assert epoch_of(PLAIN.grade_series, 7) == 0


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
