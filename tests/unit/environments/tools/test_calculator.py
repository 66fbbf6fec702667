"""The calculator: exact, bounded, the same fuel everywhere, and every error a result."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.tools.base import arguments_error, function_schema
from muster.environments.tools.calculator import MAX_BITS, MAX_CHARACTERS, Calculator

TOOL = Calculator()
FUEL = 10_000


def result(expression: str, fuel: int = FUEL) -> str:
    return TOOL.run({"expression": expression}, fuel).text


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1+1", "2"),
        (" 2 + 3 * 4 ", "14"),
        ("(2+3)*4", "20"),
        ("2-3-4", "-5"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("(-2)^2", "4"),
        ("2**-1", "0.5"),
        ("--3", "3"),
        ("+3", "3"),
        ("2*-3+1", "-5"),
        ("7/2", "3.5"),
        ("7/3", "7/3 (about 2.333333)"),
        ("-7/3", "-7/3 (about -2.333333)"),
        ("2/3", "2/3 (about 0.666667)"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("0.1+0.2", "0.3"),
        ("1/3+1/3+1/3", "1"),
        ("1/8", "0.125"),
        ("1/10000000", "1/10000000 (about 0.000000)"),
        ("6×7", "42"),
        ("42÷6−1", "6"),
        ("12345678901234567890*98765432109876543210", "1219326311370217952237463801111263526900"),
        ("0**0", "1"),
        ("(-1)**99999999999999999999", "-1"),
        ("(0-1)**0", "1"),
        ("1**(10**100)", "1"),
    ],
)
def test_values_are_exact(expression: str, expected: str) -> None:
    assert result(expression) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "ends where a number is expected"),
        ("1+", "ends where a number is expected"),
        ("(", "ends where a number is expected"),
        ("(1", "a parenthesis is not closed"),
        ("1)", "never opened"),
        ("()", "a number is expected, not ')'"),
        ("1 2", "an operator is expected, not '2'"),
        ("1,000", "an operator is expected, not ','"),
        ("2 apples", "an operator is expected, not 'a'"),
        ("x", "a number is expected, not 'x'"),
        ("__import__('os')", "a number is expected, not '_'"),
        ("٣", "a number is expected, not U+0663"),
        ("\ud800", "a number is expected, not U+D800"),
        ("\x00", "a number is expected, not U+0000"),
        ("1.2.3", "1.2.3 is no number"),
        (".5", ".5 is no number"),
        ("5.", "5. is no number"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "an exponent is not a whole number"),
        ("9**9**9**9", "a result is too large"),
        ("2**-99999999999", "a result is too large"),
        ("10**300*10**300*10**300", "a result is too large"),
        ("1" * 257, "a number has over 256 digits"),
        ("1" * (MAX_CHARACTERS + 1), "over 1024 characters"),
        ("(" * 1024, "ends where a number is expected"),
    ],
)
def test_whatever_is_wrong_is_a_result(expression: str, words: str) -> None:
    text = result(expression)
    assert text.startswith("error: ")
    assert words in text


def test_fuel_is_counted_and_bounds_the_work() -> None:
    assert TOOL.run({"expression": "1+2*3"}, FUEL).fuel == 2
    assert TOOL.run({"expression": "2**100*2**100"}, FUEL).fuel == 1 + 1 + (1 + 202 // 64)
    short = TOOL.run({"expression": "1+1+1+1"}, 2)
    assert (short.text, short.fuel) == ("error: out of fuel", 2)
    assert TOOL.run({"expression": "1+1+1"}, 2).text == "3"
    assert TOOL.run({"expression": "42"}, 0) == TOOL.run({"expression": "42"}, FUEL)


OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@given(
    st.recursive(
        st.integers(0, 10**6).map(lambda n: (str(n), Fraction(n))),
        lambda inner: st.tuples(inner, st.sampled_from(sorted(OPERATORS)), inner).map(
            lambda t: (f"({t[0][0]} {t[1]} {t[2][0]})", OPERATORS[t[1]](t[0][1], t[2][1]))
        ),
        max_leaves=12,
    )
)
def test_agrees_with_exact_fractions(case: tuple[str, Fraction]) -> None:
    expression, expected = case
    if expected.numerator.bit_length() <= MAX_BITS // 2:
        assert result(expression) == str(expected)


@given(st.text(st.sampled_from("0123456789.+-*/%^() x\ud800"), max_size=60) | st.text(max_size=40))
def test_never_raises_and_never_takes_long(expression: str) -> None:
    started = time.process_time()
    found = TOOL.run({"expression": expression}, FUEL)
    assert time.process_time() - started < 0.1
    assert 0 <= found.fuel <= FUEL
    assert found == TOOL.run({"expression": expression}, FUEL)
    assert len(found.text) < 2_000


def test_arguments_are_checked_by_the_parameters() -> None:
    assert arguments_error(TOOL, {"expression": "1"}) == ""
    assert arguments_error(TOOL, {}) == "the argument expression is missing"
    assert arguments_error(TOOL, {"expression": 1}) == "the argument expression is not of the type string"
    assert "does not know" in arguments_error(TOOL, {"expression": "1", "more": 2})


def test_the_schema_is_the_one_that_chat_templates_want() -> None:
    function = function_schema(TOOL)["function"]
    assert function["name"] == "calculator"
    assert function["parameters"]["required"] == ["expression"]
    assert function["parameters"]["properties"]["expression"]["type"] == "string"
