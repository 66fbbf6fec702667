"""Comparing outputs: equal as in Python, whatever form a value has, at a cost that grows no faster than the value."""

from __future__ import annotations

import importlib.util
import time
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.authoring.tasks.from_reasoning_gym import TYPED_JSON
from muster.environments import comparing
from muster.environments.comparing import measured, readable, same_lines, same_text, same_value


def _guest_module() -> Any:
    spec = importlib.util.spec_from_file_location("typed_json", TYPED_JSON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


encode = _guest_module().encode
"""A Python value as the component writes it."""

# Values


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        ([1, 2], {"$tuple": [1, 2]}, True),
        (1, 1.0, True),
        (True, 1, True),
        (1, "1", False),
        (None, False, False),
        ("", None, False),
        (0.1, 0.1 + 1e-12, False),
        ({"$set": [1, 2]}, {"$set": [2, 1.0]}, True),
        ({"$set": [1]}, [1], False),
        ({"$frozenset": [1]}, {"$set": [1]}, True),
        ({"a": 1, "b": [2]}, {"b": {"$tuple": [2]}, "a": 1}, True),
        ({"$dict": [[1, 2], [3, 4]]}, {"$dict": [[3, 4], [1.0, 2]]}, True),
        ({"$dict": [["1", 2]]}, {"$dict": [[1, 2]]}, False),
        ({"$dict": [["a", 2]]}, {"a": 2}, True),
        ({"1": 2}, {"$dict": [[1, 2]]}, False),
        ({"$int": "0x10"}, {"$int": "0x10"}, True),
        (1e20, {"$int": hex(10**20)}, True),
        ({"$int": hex(10**20)}, 1e20, True),
        ({"$int": hex(10**20 + 1)}, 1e20, False),
        ({"$int": hex(10**20)}, {"$int": hex(10**20 + 1)}, False),
        ({"$int": "ten"}, 10, False),
        ({"$dict": [5]}, {}, False),
        ({"$dict": [[1]]}, {}, False),
        ({"$float": "nan"}, {"$float": "nan"}, True),
        ({"$bytes": "00"}, {"$bytes": "01"}, False),
        ({"$complex": [1, 2]}, {"$complex": [1.0, 2]}, True),
        ({"$tuple": [{"$set": [{"$tuple": [1]}]}]}, [{"$set": [[1.0]]}], True),
        ({"$set": [{"a": 1, "b": None}]}, {"$set": [{"$dict": [["b", None], ["a", 1.0]]}]}, True),
        ({"$set": [{"a": 1}]}, {"$set": [{"b": 1}]}, False),
        ({"$set": [{"a": 1}]}, {"$set": [{"a": 2}]}, False),
    ],
)
def test_values_are_equal_as_in_python(value: Any, expected: Any, equal: bool) -> None:
    assert same_value(value, expected, 0, distinct=False) is equal
    assert same_value(expected, value, 0, distinct=False) is equal


def test_tuples_are_no_lists_where_the_option_says_so() -> None:
    assert not same_value([1, 2], {"$tuple": [1, 2]}, 0, distinct=True)
    assert same_value({"$tuple": [1, 2]}, {"$tuple": [1, 2]}, 0, distinct=True)
    assert not same_value({"$set": [[1]]}, {"$set": [{"$tuple": [1]}]}, 0, distinct=True)


def test_a_large_integer_is_near_a_float_and_beyond_all_is_near_none() -> None:
    assert same_value(1e20, {"$int": hex(10**20 + 1)}, 1e-6, distinct=True)
    assert not same_value(1.1e20, {"$int": hex(10**20)}, 1e-6, distinct=True)
    assert not same_value(1e20, {"$int": hex(10**400)}, 1e-6, distinct=True)


def test_the_tolerance_is_absolute_or_relative() -> None:
    assert same_value([0.3], [0.1 + 0.2], 1e-6, distinct=False)
    assert same_value(1_000_000.5, 1_000_000, 1e-6, distinct=False)
    assert not same_value(0.001, 0, 1e-6, distinct=False)
    assert not same_value(2, 1, 1, distinct=False)  # integers are exact
    assert same_text("0.333333", "0.3333333", 1e-5)


@pytest.mark.parametrize(
    ("text", "expected", "equal"),
    [
        ("3\n", "3", True),
        ("1  2 \n3\n\n", "1 2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("1.0", "1", True),
        ("1e0", "1", True),
        ("0.1", "0.10000001", False),
        ("yes", "YES", False),
        ("nan", "inf", False),
        ("1_0", "10", False),
        ("１", "1", False),
        ("1" * 65, "1" * 65 + ".0", False),
        ("", "3", False),
        ("3\n4", "3", False),
    ],
)
def test_outputs_are_equal_word_by_word(text: str, expected: str, equal: bool) -> None:
    assert same_text(text, expected, 0) is equal


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)  # neither a task nor the component can hold those
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
TAGS = st.sampled_from(["$tuple", "$set", "$frozenset", "$dict", "$complex", "$int", "$float", "$bytes", "$x"])


@given(JSON, JSON, TAGS, st.booleans())
def test_comparing_is_total_and_reflexive(value: Any, other: Any, tag: str, distinct: bool) -> None:
    for one in (value, {tag: value}, [{tag: [value, {tag: other}]}]):
        if measured(one):
            same_value(one, other, 0, distinct)
            same_value(one, {tag: other}, 0, distinct) if readable({tag: other}) else None
            if readable(one):
                assert same_value(one, one, 0, distinct)


LEAVES = st.sampled_from([None, False, True, 0, 1, 1.0, -0.5, 2**63, "", "1", "$a", b"", b"1"])
HASHABLE = st.recursive(
    LEAVES, lambda inner: st.frozensets(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=3),
    max_leaves=8,
)


def varied(value: Any, random: Random, change: bool) -> Any:
    """Returns an equal value with other types and another order, or, by a change, one that may differ."""
    if change and random.random() < 0.1:
        return random.choice([None, 0, 1, "1", (), frozenset()])
    match value:
        case bool() | int() | float() if value in (0, 1):
            return random.choice([bool(value), int(value), float(value)])
        case list() | tuple():
            return type(value)(varied(one, random, change) for one in value)
        case set() | frozenset():
            members = [varied(one, random, change) for one in random.sample(list(value), len(value))]
            return random.choice([frozenset(members), type(value)(members)])
        case dict():
            pairs = random.sample(list(value.items()), len(value))
            return {varied(key, random, change): varied(one, random, change) for key, one in pairs}
    return value


def with_tuples(value: Any) -> Any:
    """Returns a value whose lists are tuples."""
    match value:
        case list() | tuple():
            return tuple(map(with_tuples, value))
        case set() | frozenset():
            return frozenset(map(with_tuples, value))
        case dict():
            return {with_tuples(key): with_tuples(one) for key, one in value.items()}
    return value


@given(VALUES, st.randoms(use_true_random=False), st.booleans())
def test_comparing_agrees_with_equality_in_python(value: Any, random: Random, change: bool) -> None:
    other = varied(value, random, change)
    assert same_value(encode(other), encode(value), 0, distinct=True) is (other == value)
    without = with_tuples(other) == with_tuples(value)
    assert same_value(encode(other), encode(value), 0, distinct=False) is without
    assert change or other == value


WRAPPINGS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: {"$tuple": [inner]},
    "set": lambda inner: {"$frozenset": [inner]},
    "mapping": lambda inner: {"a": inner},
    "key": lambda inner: {"$dict": [[inner, 1]]},
    "value": lambda inner: {"$dict": [[1, inner]]},
    "quotes": lambda inner: {"$set": ['"', inner]},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_each_nested_value_is_hashed_once(wrapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(data: bytes) -> Any:
        hashed.append(len(data))
        return sha256(data)

    def cost(levels: int) -> tuple[int, int]:
        value: Any = "x"
        for _ in range(levels):
            value = WRAPPINGS[wrapping](value)
        hashed.clear()
        assert same_value({"$set": [value]}, {"$set": [value]}, 0, distinct=True)
        return len(hashed), sum(hashed)

    monkeypatch.setattr(comparing, "sha256", counted)
    (calls, size), (more_calls, more_size), (most_calls, most_size) = cost(0), cost(10), cost(20)
    assert 0 < most_calls - more_calls == more_calls - calls <= 10 * 2 * 3
    assert 0 < most_size - more_size == more_size - size <= 10 * 2 * 150


def test_comparing_64_nested_sets_takes_milliseconds() -> None:
    value: Any = frozenset()
    for _ in range(63):
        value = frozenset((value,))
    written = encode(value)
    assert measured(written)
    begun = time.process_time()
    assert same_value(written, written, 0, distinct=True)
    assert not same_value(written, {"$frozenset": [written]}, 0, distinct=True)
    assert time.process_time() - begun < 0.05


# Lines


@pytest.mark.parametrize(
    ("text", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        (" a b \n", "a b", True),
        ("a  b", "a b", False),
        ("1  2.0", "1 2", True),
        ("YES 1.0", "YES 1", False),
        ("1e3", "1000", True),
        ("0.1", "0.10000001", False),
        ("", "", True),
        ("1\n\n2", "1\n2", False),
        ("nan", "NaN", False),
        ("1_000", "1000", True),
        ("Infinity 1.0", "inf 1", True),
        ("Infinity", "-Infinity", False),
        ("sNaN 1.0", "sNaN 1", False),
        ("1" + "0" * 100_000, "1e100000", True),
        ("1e999999999999", "10e999999999998", True),
    ],
)
def test_lines_are_compared_as_livecodebench_does(text: str, expected: str, same: bool) -> None:
    assert same_lines(text, expected) is same
