"""The strict parser of calls: from the ids of one sampled turn to calls, each with one defined outcome.

A call opens and closes with the marker *tokens*. Markers that several ordinary tokens spell are text, and so is a
marker in the turn's thinking: a draft, which is never run. Two styles of what stands between the markers are read:

- `json` (Hermes, Qwen): `{"name": "calculator", "arguments": {"expression": "1+1"}}`, by RFC 8259;
- `xml` (Qwen-coder): `<function=calculator><parameter=expression>1+1</parameter></function>`, a value without the line
  breaks at its two ends; one that is no string by its parameter's type is read as JSON.

What cannot be run is a `BadCall`, whose text tells the policy. Every function is total on hostile input, linear in its
length, and knows nothing of the machine: the same ids have the same calls everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from muster.environments.tools.base import TOOL_NAME, CallStyle, Tool, arguments_error

BadReason = Literal[
    "unclosed",
    "nested",
    "too_many",
    "too_large",
    "empty",
    "too_deep",
    "bad_json",
    "bad_xml",
    "bad_text",
    "bad_number",
    "repeated_key",
    "not_object",
    "unknown_key",
    "no_name",
    "unknown_tool",
    "bad_arguments",
    "wrong_arguments",
]

CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
"""How the marker tokens are spelled."""

MAX_CALLS: Final = 8
"""Most calls of one turn that are run; more are answered by a notice. Changing this, or one of the next three, changes
given tokens."""
MAX_CALL_CHARACTERS: Final = 32_768
"""Of what stands between two markers."""
MAX_DEPTH: Final = 32
"""Deepest nesting of brackets in a call."""
MAX_DIGITS: Final = 300
"""Of a number in a call."""

_BLANKS: Final = " \t\r\n"
_TEXTS: Final[Mapping[BadReason, str]] = {
    "unclosed": "the call was not closed",
    "nested": "another call was opened before the call was closed",
    "too_many": f"only the first {MAX_CALLS} calls of a turn are run",
    "too_large": f"the call has over {MAX_CALL_CHARACTERS} characters",
    "empty": "the call is empty",
    "too_deep": f"the call is nested deeper than {MAX_DEPTH}",
    "bad_json": "the call is not valid JSON",
    "bad_xml": "the call is not <function=name><parameter=name>value</parameter></function>",
    "bad_text": "a text in the call is not valid Unicode",
    "bad_number": "a number in the call is too long or too large",
    "repeated_key": "a key of the call stands there twice",
    "not_object": "the call is not a JSON object",
    "unknown_key": "the call has a key other than name and arguments",
    "no_name": "the call has no name",
    "bad_arguments": "the arguments are not a JSON object",
}


@dataclass(frozen=True)
class Markers:
    """Ids of the tokens that the parser goes by."""

    call_open: int
    call_close: int
    think_open: int | None = None
    think_close: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """A call that can be run: of a known tool, with arguments of the right types."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class BadCall:
    """A call that cannot be run."""

    reason: BadReason
    text: str
    """What the policy reads in place of a result."""


@dataclass(frozen=True)
class ParsedTurn:
    """What a sampled turn asks for."""

    calls: tuple[ToolCall | BadCall, ...]
    """In order, at most MAX_CALLS and one. None means that the turn was the last one."""
    is_thinking: bool
    """Whether its thinking was not closed."""


@dataclass(frozen=True)
class CallRules:
    """How the calls of an environment are read."""

    style: CallStyle
    markers: Markers
    tools: Mapping[str, Tool]
    opens_thinking: bool = False
    """Whether the prompt has opened the thinking of each turn."""
    call_ends_thinking: bool = False
    """Whether a call that is opened in unclosed thinking ends it; otherwise it is a draft."""


def parse_turn(
    tokens: Sequence[int], rules: CallRules, decode: Callable[[Sequence[int]], str], stop_tokens: Collection[int]
) -> ParsedTurn:
    """Read a sampled span. decode: from ids to text, special tokens spelled out, without any cleaning."""
    body = list(tokens[:-1]) if len(tokens) and tokens[-1] in stop_tokens else list(tokens)
    blocks, is_thinking, _ = _blocks(body, rules)
    calls: list[ToolCall | BadCall] = []
    for end_reason, block in blocks[:MAX_CALLS]:
        calls.append(_bad(end_reason) if end_reason else read_call(decode(block), rules.style, rules.tools))
    if len(blocks) > MAX_CALLS:
        calls.append(_bad("too_many"))
    return ParsedTurn(tuple(calls), is_thinking)


def thinking_is_open(tokens: Sequence[int], rules: CallRules) -> bool:
    """Return whether a sampled span ends in thinking."""
    return _blocks(tokens, rules)[1]


def thinking_length(tokens: Sequence[int], rules: CallRules) -> int:
    """Return how many tokens of a sampled span are thinking, its markers included."""
    return _blocks(tokens, rules)[2]


def _blocks(tokens: Sequence[int], rules: CallRules) -> tuple[list[tuple[BadReason | None, Sequence[int]]], bool, int]:
    """Return what stands between markers, each with why it has no end; whether thinking has none; its length."""
    markers = rules.markers
    found: list[tuple[BadReason | None, Sequence[int]]] = []
    is_thinking, may_think, opened, thought = rules.opens_thinking, not rules.opens_thinking, -1, 0
    for place, token in enumerate(tokens):
        if opened >= 0:
            if token == markers.call_close:
                found.append((None, tokens[opened:place]))
                opened = -1
            elif token == markers.call_open:
                found.append(("nested", ()))
                opened = place + 1
        elif is_thinking:
            if token == markers.call_open and rules.call_ends_thinking:
                is_thinking, opened = False, place + 1
                continue
            thought += 1
            is_thinking = token != markers.think_close
        elif token == markers.call_open:
            may_think, opened = False, place + 1
        elif may_think and token in (markers.think_open, markers.think_close):
            may_think, is_thinking, thought = False, token == markers.think_open, 1
    if opened >= 0:
        found.append(("unclosed", ()))
    return found, is_thinking, thought


def read_call(text: str, style: CallStyle, tools: Mapping[str, Tool]) -> ToolCall | BadCall:
    """Read what stands between two markers."""
    try:
        _check_text(text)
        name, arguments = _read_json(text) if style == "json" else _read_xml(text, tools)
    except _BadCallError as error:
        return _bad(error.reason)
    tool = tools.get(name)
    if tool is None:
        return BadCall("unknown_tool", f"error: there is no tool of that name; there are {', '.join(sorted(tools))}")
    wrong = arguments_error(tool, arguments)
    return BadCall("wrong_arguments", f"error: {wrong}") if wrong else ToolCall(name, arguments)


class _BadCallError(Exception):
    def __init__(self, reason: BadReason) -> None:
        super().__init__(reason)
        self.reason: BadReason = reason


def _bad(reason: BadReason) -> BadCall:
    return BadCall(reason, f"error: {_TEXTS[reason]}")


def _check_text(text: str) -> None:
    """Raise for a block that is too large, empty or no Unicode."""
    if len(text) > MAX_CALL_CHARACTERS:
        raise _BadCallError("too_large")
    if not text.strip(_BLANKS):
        raise _BadCallError("empty")
    _check_unicode(text)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _BadCallError("bad_text") from error


# JSON


def _read_json(text: str) -> tuple[str, dict[str, Any]]:
    call = _strict_json(text)
    if not isinstance(call, dict):
        raise _BadCallError("not_object")
    if not isinstance(call.get("name"), str) or not call["name"]:
        raise _BadCallError("no_name")
    if not call.keys() <= {"name", "arguments"}:
        raise _BadCallError("unknown_key")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _BadCallError("bad_arguments")
    return call["name"], arguments


def _strict_json(text: str) -> Any:
    """Read JSON as RFC 8259 has it: no second key of a name, no NaN, numbers that are finite and not long."""
    if _depth(text) > MAX_DEPTH:
        raise _BadCallError("too_deep")
    try:
        value = _DECODER.decode(text.strip(_BLANKS))
    except json.JSONDecodeError as error:
        raise _BadCallError("bad_json") from error
    _check_value(value)
    return value


def _depth(text: str) -> int:
    """Return how deep brackets are nested outside of strings."""
    depth, deepest, in_string, escaped = 0, 0, False, False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _BadCallError("repeated_key")
    for key, value in pairs:
        _check_unicode(key)
        _check_value(value)
    return found


def _check_value(value: Any) -> None:
    """Check a text, or those of a list; objects were checked when they were made."""
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, str):
            _check_unicode(one)
        elif isinstance(one, list):
            _check_value(one)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _BadCallError("bad_number")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_DIGITS or not math.isfinite(value := float(digits)):
        raise _BadCallError("bad_number")
    return value


def _constant(name: str) -> NoReturn:
    raise _BadCallError("bad_json")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


# XML

_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read_xml(text: str, tools: Mapping[str, Tool]) -> tuple[str, dict[str, Any]]:
    name, place = _tag(text, _skip_blanks(text, 0), _FUNCTION)
    arguments: dict[str, Any] = {}
    while not text.startswith(_FUNCTION_END, place := _skip_blanks(text, place)):
        key, start = _tag(text, place, _PARAMETER)
        end = text.find(_PARAMETER_END, start)
        if end < 0:
            raise _BadCallError("bad_xml")
        if key in arguments:
            raise _BadCallError("repeated_key")
        arguments[key] = text[start:end].removeprefix("\n").removesuffix("\n")
        place = end + len(_PARAMETER_END)
    if text[place + len(_FUNCTION_END) :].strip(_BLANKS):
        raise _BadCallError("bad_xml")
    return name, {key: _typed(value, key, tools.get(name)) for key, value in arguments.items()}


def _skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANKS:
        place += 1
    return place


def _tag(text: str, place: int, opening: str) -> tuple[str, int]:
    """Return the name in an opening tag at this place, and where what follows begins."""
    end = text.find(">", place)
    name = text[place + len(opening) : end]
    if not text.startswith(opening, place) or end < 0 or not TOOL_NAME.fullmatch(name):
        raise _BadCallError("bad_xml")
    return name, end + 1


def _typed(value: str, key: str, tool: Tool | None) -> Any:
    """Return a parameter's value by its type. Templates of this style write booleans as Python does."""
    if tool is None or key not in tool.parameters or tool.parameters[key].type == "string":
        return value
    if tool.parameters[key].type == "boolean" and value in ("True", "False"):
        return value == "True"
    return _strict_json(value)
