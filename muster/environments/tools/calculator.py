"""The calculator: exact arithmetic with whole numbers and fractions, by a pass over the expression without recursion.

An expression has numbers in ASCII digits with an optional point, `+ - * / // % **`, parentheses and signs; `^` is
`**`, and the signs ×, ÷ and − are read as well. The result is exact. Whatever is wrong is a result too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from muster.environments.tools.base import EarlierCall, Parameter, ToolResult

MAX_CHARACTERS: Final = 1024
"""Of an expression. Changing this, or one of the next three, changes given tokens."""
MAX_DIGITS: Final = 256
"""Of a number in an expression."""
MAX_BITS: Final = 2048
"""Of a numerator and of a denominator, also on the way to the result."""
DECIMALS: Final = 6
"""Of a fraction's approximation, rounded half up."""

_DIGITS: Final = "0123456789"
_SAME: Final = {"^": "**", "×": "*", "÷": "/", "−": "-"}
_OPERATORS: Final = ("**", "//", "+", "-", "*", "/", "%")
_BINDS: Final = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "sign": 3, "**": 4}
"""How strongly an operator binds: -2**2 is -4, as in mathematics."""


class CalculationError(Exception):
    """Why an expression has no value, in words for the policy."""


class Calculator:
    """The tool `calculator`. An operation costs one unit of fuel and one for each 64 bits of its operands."""

    name = "calculator"
    code = "1"
    description = "Works out an arithmetic expression exactly."
    parameters: Mapping[str, Parameter] = MappingProxyType(
        {
            "expression": Parameter(
                "string", "The expression, with + - * / // % ** and parentheses, such as (17 + 4) * 3"
            )
        }
    )

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        """Return the value of `expression`, or what is wrong with it."""
        work = _Calculation(fuel)
        try:
            return ToolResult(shown(work.value(arguments["expression"])), work.used)
        except CalculationError as error:
            return ToolResult(f"error: {error}", work.used)


def shown(value: Fraction) -> str:
    """Return a value as text: whole, with all of its decimals if these are few, or a fraction with an approximation."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = abs(value) * 10**DECIMALS
    rounded = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    whole, decimals = divmod(rounded, 10**DECIMALS)
    text = f"{'-' if value < 0 else ''}{whole}.{decimals:0{DECIMALS}d}"
    return text.rstrip("0") if scaled.denominator == 1 else f"{value.numerator}/{value.denominator} (about {text})"


class _Calculation:
    """One expression's way to its value: a stack of numbers and one of operators that wait for their right side."""

    def __init__(self, fuel: int) -> None:
        self.fuel = fuel
        self.used = 0
        self.numbers: list[Fraction] = []
        self.operators: list[str] = []

    def value(self, expression: str) -> Fraction:
        if len(expression) > MAX_CHARACTERS:
            raise CalculationError(f"the expression has over {MAX_CHARACTERS} characters")
        position, wants_number = 0, True
        while position < len(expression):
            if expression[position] in " \t\r\n":
                position += 1
            elif wants_number:
                position, wants_number = self._number(expression, position)
            else:
                position, wants_number = self._operator(expression, position)
        if wants_number:
            raise CalculationError("the expression ends where a number is expected")
        self._reduce(0)
        if self.operators:
            raise CalculationError("a parenthesis is not closed")
        return self.numbers[0]

    def _number(self, expression: str, position: int) -> tuple[int, bool]:
        """Read a number, a sign or an opening parenthesis. Return where it ends, and whether a number must follow."""
        character = _SAME.get(expression[position], expression[position])
        if character == "(":
            self.operators.append("(")
        elif character == "-":
            self.operators.append("sign")
        elif character != "+":
            end = position
            while end < len(expression) and expression[end] in _DIGITS + ".":
                end += 1
            self.numbers.append(_number(expression[position:end], expression, position))
            return end, False
        return position + 1, True

    def _operator(self, expression: str, position: int) -> tuple[int, bool]:
        """Read an operator between numbers, or a closing parenthesis. Return as `_number`."""
        if expression[position] == ")":
            self._reduce(0)
            if not self.operators:
                raise CalculationError("a parenthesis is closed that was never opened")
            self.operators.pop()
            return position + 1, False
        same = _SAME.get(expression[position])
        name = same or next((one for one in _OPERATORS if expression.startswith(one, position)), None)
        if name is None:
            raise CalculationError(f"an operator is expected, not {_named(expression[position])}")
        self._reduce(_BINDS[name] + (name == "**"))  # powers are taken from the right
        self.operators.append(name)
        return position + (1 if same else len(name)), True

    def _reduce(self, least: int) -> None:
        """Apply the operators since the last open parenthesis that bind at least this strongly."""
        while self.operators and self.operators[-1] != "(" and _BINDS[self.operators[-1]] >= least:
            operator, right = self.operators.pop(), self.numbers.pop()
            left = Fraction(0) if operator == "sign" else self.numbers.pop()
            self._pay(1 + (_bits(left) + _bits(right)) // 64)
            found = _apply("-" if operator == "sign" else operator, left, right)
            if _bits(found) > MAX_BITS:
                raise CalculationError("a result is too large")
            self.numbers.append(found)

    def _pay(self, cost: int) -> None:
        if self.used + cost > self.fuel:
            self.used = self.fuel
            raise CalculationError("out of fuel")
        self.used += cost


def _number(text: str, expression: str, position: int) -> Fraction:
    if not text:
        raise CalculationError(f"a number is expected, not {_named(expression[position])}")
    if len(text) > MAX_DIGITS:
        raise CalculationError(f"a number has over {MAX_DIGITS} digits")
    whole, point, decimals = text.partition(".")
    if "." in decimals or not whole or (point and not decimals):
        raise CalculationError(f"{text[:20]} is no number")
    return Fraction(int(whole + decimals), 10 ** len(decimals))


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator in ("/", "//", "%") and not right:
        raise CalculationError("division by zero")
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return Fraction(left // right)
        case "%":
            return left % right
    return _power(left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return a power with a whole exponent, whose size is known before it is worked out."""
    if exponent.denominator != 1:
        raise CalculationError("an exponent is not a whole number")
    if not base and exponent < 0:
        raise CalculationError("division by zero")
    if base in (-1, 0, 1):
        return base if exponent % 2 else base * base if exponent else Fraction(1)
    if (_bits(base) - 1) * abs(exponent.numerator) > MAX_BITS:
        raise CalculationError("a result is too large")
    return base**exponent.numerator


def _bits(value: Fraction) -> int:
    """Return the size of a value: the bits of its numerator or denominator, whichever has more."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _named(character: str) -> str:
    return repr(character) if character.isascii() and character.isprintable() else f"U+{ord(character):04X}"
