"""The strict parser of calls: from the ids of one sampled turn to calls, each with one defined outcome.

A call opens and closes with the marker *tokens* of its style (`STYLES`). Markers that several ordinary tokens spell are
text, and so is a marker in the turn's thinking: a draft, which is never run. In a style without markers a turn is a
call if all of it behind the thinking is one, and else a text. JSON is read by RFC 8259. A value that is no string by
its parameter's type is read as JSON, and where a family's templates write Python's literals, as these.

What cannot be run is a `BadCall`, whose text tells the policy. Every function is total on hostile input, linear in its
length, and knows nothing of the machine: the same ids have the same calls everywhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    "bad_form",
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

_Call = tuple[str, dict[str, Any]]

CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
"""How most families spell the marker tokens."""

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
    "bad_form": "the call is not in the form that the model was made for",
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

    call_open: int | None
    call_close: int | None
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
) -> tuple[ToolCall | BadCall, ...]:
    """Return the calls of a sampled span, at most MAX_CALLS and one. With none the turn was the last one.

    decode: from ids to text, special tokens spelled out, without any cleaning.
    """
    body = list(tokens[:-1]) if len(tokens) and tokens[-1] in stop_tokens else list(tokens)
    calls: list[ToolCall | BadCall] = []
    for end_reason, block in _blocks(body, rules)[0][: MAX_CALLS + 1]:
        calls += [_bad(end_reason)] if end_reason else read_calls(decode(block), rules.style, rules.tools)
    if len(calls) > MAX_CALLS:
        calls[MAX_CALLS:] = [_bad("too_many")]
    return tuple(calls)


def thinking_is_open(tokens: Sequence[int], rules: CallRules) -> bool:
    """Return whether a sampled span ends in thinking."""
    return _blocks(tokens, rules)[1]


def thinking_length(tokens: Sequence[int], rules: CallRules) -> int:
    """Return how many tokens of a sampled span are thinking, its markers included."""
    return _blocks(tokens, rules)[2]


def _blocks(tokens: Sequence[int], rules: CallRules) -> tuple[list[tuple[BadReason | None, Sequence[int]]], bool, int]:
    """Return what stands between markers, each with why it has no end; whether thinking has none; its length."""
    markers, way = rules.markers, STYLES[rules.style]
    found: list[tuple[BadReason | None, Sequence[int]]] = []
    is_thinking, may_think, opened, thought, said = rules.opens_thinking, not rules.opens_thinking, -1, 0, 0
    for place, token in enumerate(tokens):
        if opened >= 0:
            if token == markers.call_close:
                found.append((None, tokens[opened:place]))
                opened = -1
            elif token == markers.call_open:
                found.append(("nested", ()) if way.closes else (None, tokens[opened:place]))
                opened = place + 1
        elif is_thinking:
            if token == markers.call_open and rules.call_ends_thinking:
                is_thinking, opened = False, place + 1
                continue
            thought, said = thought + 1, place + 1
            is_thinking = token != markers.think_close
        elif token == markers.call_open:
            may_think, opened = False, place + 1
        elif may_think and token in (markers.think_open, markers.think_close):
            may_think, is_thinking, thought, said = False, token == markers.think_open, 1, place + 1
    if not way.opens and not is_thinking:
        found.append((None, tokens[said:]))
    elif opened >= 0:
        found.append(("unclosed", ()) if way.closes else (None, tokens[opened:]))
    return found, is_thinking, thought


def read_calls(text: str, style: CallStyle, tools: Mapping[str, Tool]) -> list[ToolCall | BadCall]:
    """Read what stands between two markers; without markers, a turn, which is no call if it is not one whole."""
    way = STYLES[style]
    try:
        _check_text(text)
        return [_checked(name, arguments, tools) for name, arguments in way.read(text, tools)]
    except _BadCallError as error:
        return [BadCall(error.reason, f"error: {error.text}")] if way.opens else []


def _checked(name: str, arguments: dict[str, Any], tools: Mapping[str, Tool]) -> ToolCall | BadCall:
    tool = tools.get(name)
    if tool is None:
        return BadCall("unknown_tool", f"error: there is no tool of that name; there are {', '.join(sorted(tools))}")
    wrong = arguments_error(tool, arguments)
    return BadCall("wrong_arguments", f"error: {wrong}") if wrong else ToolCall(name, arguments)


class _BadCallError(Exception):
    def __init__(self, reason: BadReason) -> None:
        super().__init__(reason)
        self.reason: BadReason = reason
        self.text = _TEXTS[reason]


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

_STRING_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)


def _read_json(text: str, tools: Mapping[str, Tool], key: str = "arguments", before: str = "") -> list[_Call]:
    """Read an object. key: of its arguments. before: what may stand before it."""
    return [_named(_strict_json(text.strip(_BLANKS).removeprefix(before)), key)]


def _named(call: Any, key: str = "arguments", *further: str) -> _Call:
    """Return a call that is an object with a name, arguments and maybe further keys."""
    if not isinstance(call, dict):
        raise _BadCallError("not_object")
    if not isinstance(call.get("name"), str) or not call["name"]:
        raise _BadCallError("no_name")
    if not call.keys() <= {"name", key, *further}:
        raise _BadCallError("unknown_key")
    return call["name"], _object_of(call.get(key, {} if key == "arguments" else None))


def _object_of(arguments: Any) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise _BadCallError("bad_arguments")
    return arguments


def _read_mistral(text: str, tools: Mapping[str, Tool]) -> list[_Call]:
    """Read the list of older templates, or one call as name[CALL_ID]id[ARGS]{…}, whose id may be absent."""
    if text.lstrip(_BLANKS).startswith("["):
        return [_named(one, "arguments", "id") for one in _strict_json(text)]
    name, _, arguments = text.partition("[ARGS]")
    return [(name.partition("[CALL_ID]")[0].strip(_BLANKS), _object_of(_strict_json(arguments)))]


def _strict_json(text: str) -> Any:
    """Read JSON as RFC 8259 has it: no second key of a name, no NaN, numbers that are finite and not long."""
    text = text.strip(_BLANKS)
    _check_depth(text)
    value, end = _json_at(text, 0)
    if end < len(text):
        raise _BadCallError("bad_json")
    return value


def _json_at(text: str, place: int) -> tuple[Any, int]:
    """Return the value that begins at this place, and where what follows begins."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise _BadCallError("bad_json") from error
    _check_unicode(json.dumps(value, ensure_ascii=False))
    return value, end


def _check_depth(text: str) -> None:
    """Raise where brackets are nested too deep outside of strings."""
    depth = 0
    for piece in _STRING_OR_BRACKET.findall(text):
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        if depth > MAX_DEPTH:
            raise _BadCallError("too_deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _BadCallError("repeated_key")
    return found


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

_SPACE, _NAME = r"[ \t\r\n]*", rf"({TOOL_NAME.pattern})"
_FUNCTION: Final = re.compile(rf"<function={_NAME}>{_SPACE}", re.ASCII)
_PARAMETER: Final = re.compile(rf"<parameter={_NAME}>(.*?)</parameter>{_SPACE}", re.ASCII | re.DOTALL)
_FUNCTION_END: Final = "</function>"


def _read_xml(
    text: str, tools: Mapping[str, Tool], read: Callable[[str], Any] = _strict_json, edge: str = "\n"
) -> list[_Call]:
    """Read a call whose values stand between two edges. read: from a value that is no string."""
    text, arguments = text.strip(_BLANKS), {}
    (name,), place = _part(_FUNCTION, text, 0, "bad_xml")
    while not text.startswith(_FUNCTION_END, place):
        (key, value), place = _part(_PARAMETER, text, place, "bad_xml")
        if key in arguments:
            raise _BadCallError("repeated_key")
        arguments[key] = value.removeprefix(edge).removesuffix(edge)
    if place + len(_FUNCTION_END) < len(text):
        raise _BadCallError("bad_xml")
    return [(name, {key: _typed(value, key, tools.get(name), read) for key, value in arguments.items()})]


def _part(pattern: re.Pattern[str], text: str, place: int, reason: BadReason) -> tuple[Sequence[str], int]:
    """Return the groups of what a pattern finds at this place, and where what follows begins."""
    match = pattern.match(text, place)
    if match is None:
        raise _BadCallError(reason)
    return match.groups(), match.end()


def _typed(value: str, key: str, tool: Tool | None, read: Callable[[str], Any]) -> Any:
    """Return a parameter's value by its type. Templates of this style write booleans as Python does."""
    if tool is None or key not in tool.parameters or (kind := tool.parameters[key].type) == "string":
        return value
    if kind == "boolean" and value in ("True", "False"):
        return value == "True"
    try:
        return read(value)
    except _BadCallError as error:
        if error.reason in ("bad_json", "bad_form"):
            error.text = f"the argument {key} is not of the type {kind}"
        raise


# Python

_LITERAL: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|['"]|\b(?:True|False|None)\b""", re.DOTALL)
_NAMES: Final = {"True": "true", "False": "false", "None": "null"}
_ESCAPE: Final = re.compile(
    r"""\\(?:x([\da-fA-F]{2})|U(00(?:0[\da-fA-F]|10)[\da-fA-F]{4})|.)|\"""", re.ASCII | re.DOTALL
)
_CALL: Final = re.compile(rf"{_SPACE}{_NAME}{_SPACE}\({_SPACE}", re.ASCII)
_KEY: Final = re.compile(rf"{_NAME}{_SPACE}={_SPACE}", re.ASCII)
_BEHIND: Final = re.compile(rf"{_SPACE}(?:,{_SPACE}|(?=\)))")


def _as_json(text: str) -> str:
    """Return Python's literals as JSON has them. Escapes that neither has are left, and refused as JSON."""

    def literal(match: re.Match[str]) -> str:
        if match[0] in ("'", '"'):
            raise _BadCallError("bad_form")
        return _NAMES.get(match[0]) or f'"{_ESCAPE.sub(escape, match[0][1:-1])}"'

    def escape(match: re.Match[str]) -> str:
        if code := match[1] or match[2]:
            return json.dumps(chr(int(code, 16)))[1:-1]
        return {'"': '\\"', "\\'": "'"}.get(match[0], match[0])

    return _LITERAL.sub(literal, text)


def _read_python(text: str, tools: Mapping[str, Tool]) -> list[_Call]:
    """Read name(key=value, …), one call after the other."""
    text, place, found = _as_json(text).strip(_BLANKS), 0, []
    _check_depth(text)
    while place < len(text):
        (name,), place = _part(_CALL, text, place, "bad_form")
        arguments: dict[str, Any] = {}
        while not text.startswith(")", place):
            (key,), place = _part(_KEY, text, place, "bad_form")
            if key in arguments:
                raise _BadCallError("repeated_key")
            arguments[key], place = _json_at(text, place)
            _, place = _part(_BEHIND, text, place, "bad_form")
        found.append((name, arguments))
        place += 1
    return found


# Styles


@dataclass(frozen=True)
class Style:
    """How a family of models writes calls."""

    read: Callable[[str, Mapping[str, Tool]], list[_Call]]
    """From what stands between two markers to names and arguments."""
    parser: str
    """vLLM's, by its name."""
    opens: str = CALL_BEGIN
    """The marker before a call; without one the turn as a whole is a call, or none."""
    closes: str = CALL_END
    """The marker behind it; without one a call ends where the next one opens, or with the turn."""
    thinking: tuple[str, str] = ("<think>", "</think>")


STYLES: Final[Mapping[CallStyle, Style]] = {
    "json": Style(_read_json, "hermes"),
    "xml": Style(_read_xml, "qwen3_coder"),
    "llama": Style(partial(_read_json, key="parameters", before="<|python_tag|>"), "llama3_json", "", ""),
    "mistral": Style(_read_mistral, "mistral", "[TOOL_CALLS]", ""),
    "olmo3": Style(_read_python, "olmo3", "<function_calls>", "</function_calls>"),
    "seed": Style(
        partial(_read_xml, read=lambda value: _strict_json(_as_json(value)), edge=""),
        "seed_oss",
        "<seed:tool_call>",
        "</seed:tool_call>",
        ("<seed:think>", "</seed:think>"),
    ),
}
"""By name, in the order in which a model's own is looked for."""
