"""When the seals of an hour close, and what is hidden until then."""

from __future__ import annotations

from dataclasses import replace

from muster.protocol.seals import closes_at, verdicts_hidden
from muster.protocol.terms import WorkClass
from scripts.contract_vectors import terms_with

TERMS = terms_with(1, WorkClass(10_000, (8,)))


def test_seals_close_two_hours_after_their_hour() -> None:
    assert closes_at(10) == (10 + 1 + 2) * 3600


def test_nothing_is_hidden_without_traps() -> None:
    committed_at = 10 * 3600
    assert not verdicts_hidden(TERMS, committed_at, committed_at)


def test_verdicts_are_hidden_until_the_seals_of_their_hour_have_closed() -> None:
    terms = replace(TERMS, trap_every=100, trap_prize=1, trap_tip=b"\x01" * 32, trap_epochs=1, trap_epoch_steps=1)
    for committed_at in (10 * 3600, 11 * 3600 - 1):
        assert verdicts_hidden(terms, committed_at, committed_at)
        assert verdicts_hidden(terms, committed_at, 13 * 3600 - 1)
        assert not verdicts_hidden(terms, committed_at, 13 * 3600)
