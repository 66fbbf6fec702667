"""Spans: what of a completion was sampled, where its turns end, and what its row hash binds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.tools.base import MAX_TURNS
from muster.errors import MalformedError
from muster.rollouts.leaves import leaf_of, row_hash
from muster.rollouts.parquet import Columns, FileLimits, read_columns, read_rollouts, write_rollouts
from muster.rollouts.schema import SCHEMA, TURNS_SCHEMA, Rollout
from muster.rollouts.spans import (
    sampled_length,
    sampled_mask,
    spans_error,
    spans_of,
    termination_error,
)
from testbed.samples.rollouts import make_row, parquet, table_of

STOPS = frozenset({2, 3})
LIMIT = 12
LIMITS = FileLimits(rows=16, decoded_bytes=1 << 20)


def ends(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def turns_row(position: int = 0) -> Rollout:
    return replace(
        make_row(position, length=9),
        spans=ends(3, 6, 9),
        logprobs=np.full(6, -0.5, np.float32),
        call_fuel=np.array([7, 2**64 - 1], np.uint64),
    )


def test_the_mask_covers_the_sampled_spans_and_nothing_else() -> None:
    assert sampled_mask(ends(2, 5, 6)).tolist() == [True, True, False, False, False, True]
    assert sampled_length(ends(2, 5, 6)) == 3
    assert sampled_mask(ends(4)).all()
    assert [(s.start, s.end, s.sampled) for s in spans_of(ends(2, 5, 6))] == [(0, 2, True), (2, 5, False), (5, 6, True)]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=2 * MAX_TURNS - 1).filter(lambda one: len(one) % 2))
def test_every_alternation_of_non_empty_spans_is_right(lengths: list[int]) -> None:
    places = np.cumsum(lengths).astype(np.int32)
    total = int(places[-1])
    assert spans_error(places, total) == ""
    mask = sampled_mask(places)
    assert (len(mask), int(mask.sum())) == (total, sampled_length(places))
    assert [bool(mask[span.start : span.end].all()) for span in spans_of(places)] == [
        index % 2 == 0 for index in range(len(lengths))
    ]


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (ends(), "0 spans"),
        (ends(*range(1, 2 * MAX_TURNS + 2)), "129 spans"),
        (ends(4, 9), "the policy has the last word"),
        (ends(0, 4, 9), "is empty"),
        (ends(4, 4, 9), "is empty"),
        (ends(6, 4, 9), "do not rise"),
        (ends(-4, 4, 9), "is empty"),
        (ends(2, 4, 8), "end at 8, the completion at 9"),
        (ends(2, 2**31 - 1, 9), "do not rise"),
    ],
)
def test_other_spans_are_refused_in_words(places: np.ndarray, words: str) -> None:
    assert words in spans_error(places, 9)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9), st.integers(0, 20))
def test_any_spans_are_right_or_refused(values: list[int], length: int) -> None:
    places = ends(*values)
    if not spans_error(places, length):
        assert len(sampled_mask(places)) == length


@pytest.mark.parametrize(
    ("tokens", "places", "reason", "words"),
    [
        ([5, 5, 2], (3,), "stop", ""),
        ([5] * LIMIT, (LIMIT,), "length", ""),
        ([5, 2, 5], (3,), "stop", "goes on after an end token at 1"),
        ([5, 5, 5], (3,), "stop", "no end token"),
        ([5, 5, 2], (3,), "length", "says `length` at 3"),
        ([5, 2, 2, 9, 5, 3], (2, 4, 6), "stop", ""),
        ([5, 2, 2, 9, 5, 5], (2, 4, 6), "stop", "no end token"),
        ([5, 5, 2, 9, 5, 3], (2, 4, 6), "stop", "ends at 2 without an end token"),
        ([5, 2, 2, 9, 3, 3], (2, 4, 6), "stop", "goes on after an end token at 4"),
        ([2, *[9] * 5, *[5] * 6], (1, 6, LIMIT), "length", ""),
        ([2, *[9] * 5, *[5] * 5], (1, 6, LIMIT - 1), "length", "says `length` at 11"),
    ],
)
def test_each_turn_ends_at_its_first_stop_token(
    tokens: list[int], places: tuple[int, ...], reason: str, words: str
) -> None:
    error = termination_error(np.array(tokens), ends(*places), reason, STOPS, LIMIT)
    assert (words in error[0]) if words and error else error is None and not words


@pytest.mark.parametrize(
    ("tokens", "places", "reason", "words"),
    [
        ([5, 5, 5, 9, 5, 2], (3, 4, 6), "stop", ""),
        ([5, 5, 5, 9, 5, 5, 5], (3, 4, 7), "length", ""),
        ([5, 5, 9, 9, 5, 2], (2, 4, 6), "stop", "ends at 2 without an end token"),
        ([5, 5, 5, 2], (4,), "stop", "a turn of 4 tokens"),
        ([5, 5], (2,), "length", "says `length` at 2"),
    ],
)
def test_a_turn_may_be_cut_at_its_own_limit(
    tokens: list[int], places: tuple[int, ...], reason: str, words: str
) -> None:
    error = termination_error(np.array(tokens), ends(*places), reason, STOPS, LIMIT, turn_limit=3)
    assert (words in error[0]) if words and error else error is None and not words


def test_the_leaf_counts_given_tokens_and_the_row_hash_binds_the_fuel_of_calls() -> None:
    row = turns_row()
    assert leaf_of(row).length == 9
    changed = [
        replace(row, call_fuel=row.call_fuel[:1]),
        replace(row, call_fuel=row.call_fuel[::-1]),
        replace(row, spans=ends(3, 5, 9)),
    ]
    assert len({row_hash(one) for one in (row, *changed)}) == 4


def test_a_file_of_single_turns_has_no_column_of_calls() -> None:
    single = make_row()
    assert row_hash(single) == row_hash(replace(single, call_fuel=np.array([1], np.uint64)))
    assert write_rollouts([single]) == parquet(table_of([single], SCHEMA), use_dictionary=False, write_statistics=False)


def test_the_fuel_of_calls_survives_file_and_packing() -> None:
    rows = [turns_row(), make_row(1), turns_row(2)]
    columns = read_columns(write_rollouts(rows), LIMITS)
    for back in (columns.rollouts(), Columns.unpack(columns.pack()).rollouts()):
        assert [row.call_fuel.tolist() for row in back] == [[7, 2**64 - 1], [], [7, 2**64 - 1]]
        assert [row_hash(row) for row in back] == [row_hash(row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "schema", "words"),
    [
        ([turns_row()], SCHEMA, "no column for the fuel"),
        ([make_row()], TURNS_SCHEMA, "nothing was given"),
        ([turns_row(), replace(make_row(1), call_fuel=np.array([1], np.uint64))], TURNS_SCHEMA, "nothing was given"),
    ],
)
def test_fuel_that_no_row_hash_binds_is_refused(rows: list[Rollout], schema: pa.Schema, words: str) -> None:
    with pytest.raises(MalformedError, match=words):
        read_rollouts(parquet(table_of(rows, schema)))
