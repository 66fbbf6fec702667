"""The parser of calls: every odd call has one outcome, held by vectors; nothing makes it raise or take long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.tools.base import CallStyle
from muster.protocol.turns.calls import (
    MAX_CALL_CHARACTERS,
    BadCall,
    BadReason,
    CallRules,
    ToolCall,
    parse_turn,
    read_calls,
    thinking_is_open,
)
from muster.protocol.turns.calls import STYLES as WAYS
from testbed.samples.calls import MARKERS, STOP, TOOLS, WHOLE, decode, ids_of, markers_of, rules_of, turn_of, vectors

Turn = tuple[ToolCall | BadCall, ...]
VECTORS = vectors()
NAMES = [vector["id"] for vector in VECTORS]


def outcomes(turn: Turn) -> list[Any]:
    return [[one.name, dict(one.arguments)] if isinstance(one, ToolCall) else one.reason for one in turn]


def parsed(vector: dict[str, Any]) -> Turn:
    ids = ids_of(turn_of(vector)) + ([STOP] if vector.get("stop", True) else [])
    return parse_turn(ids, rules_of(vector), decode, {STOP})


@pytest.mark.parametrize("vector", VECTORS, ids=NAMES)
def test_vector(vector: dict[str, Any]) -> None:
    turn = parsed(vector)
    assert outcomes(turn) == vector["calls"]
    assert thinking_is_open(ids_of(turn_of(vector)), rules_of(vector)) == vector.get("thinking", False)
    for one in turn:
        assert isinstance(one, ToolCall) or (one.text.startswith("error: ") and len(one.text) < 200)


def test_the_vectors_are_many_and_meet_every_outcome() -> None:
    assert len(set(NAMES)) == len(VECTORS) >= 200
    assert sum(vector.get("beside", True) for vector in VECTORS) >= 80
    met = {one for vector in VECTORS for one in vector["calls"] if isinstance(one, str)}
    assert met == set(get_args(BadReason))


def test_the_page_explains_every_difference_to_other_parsers() -> None:
    page = (Path(__file__).parents[4] / "docs" / "understand" / "turns.md").read_text(encoding="utf-8")
    assert {f"| `{vector['differs']}` |" in page for vector in VECTORS if "differs" in vector} == {True}


def test_types_in_vectors_are_those_of_the_arguments() -> None:
    """JSON equality in Python takes 1, 1.0 and true for one value."""
    turns = {vector["id"]: parsed(vector) for vector in VECTORS if vector["id"] in ("true", "an integer", "a float")}
    arguments = {name: turn[0].arguments for name, turn in turns.items() if isinstance(turn[0], ToolCall)}
    assert arguments["true"]["exact"] is True
    assert type(arguments["an integer"]["limit"]) is int
    assert type(arguments["a float"]["threshold"]) is float


def test_a_call_may_be_as_large_as_its_bound_and_no_larger() -> None:
    frame = '{"name":"search","arguments":{"query":""}}'
    room = MAX_CALL_CHARACTERS - len(frame)
    for letters, outcome in ((room, ToolCall), (room + 1, str)):
        (found,) = read_calls(frame.replace('""', f'"{"a" * letters}"'), "json", TOOLS)
        assert isinstance(found, ToolCall) == (outcome is ToolCall)


def test_the_end_token_belongs_to_no_call_and_a_turn_without_it_is_read_alike() -> None:
    ids = ids_of('⟦<tool_call>⟧{"name": "clock"}⟦</tool_call>⟧')
    rules = CallRules("json", MARKERS, TOOLS)
    assert parse_turn(ids, rules, decode, {STOP}) == parse_turn([*ids, STOP], rules, decode, {STOP})


PIECES = st.sampled_from(
    [
        *(f"⟦{one}⟧" for one in WHOLE),
        *WHOLE,
        '{"name": "calculator", "arguments": {"expression": "1+1"}}',
        "<function=calculator>",
        "<parameter=expression>",
        "</parameter>",
        "</function>",
        '{"name": ',
        '"search"',
        "}",
        "{",
        "[",
        '"',
        "\\",
        "\ud800",
        "\n",
    ]
)
TURNS = st.lists(PIECES | st.text(st.characters(exclude_characters="⟦⟧"), max_size=8), max_size=30).map("".join)
STYLES: tuple[CallStyle, ...] = get_args(CallStyle)


@given(TURNS, st.sampled_from(STYLES), st.booleans(), st.booleans())
def test_never_raises_and_is_the_same_again(text: str, style: CallStyle, opens: bool, ends: bool) -> None:
    rules = CallRules(style, MARKERS, TOOLS, opens_thinking=opens, call_ends_thinking=ends)
    ids = ids_of(text)
    turn = parse_turn(ids, rules, decode, {STOP})
    assert turn == parse_turn(ids, rules, decode, {STOP})
    assert len(turn) <= 9
    if not ends and thinking_is_open(ids, rules):
        assert not turn


@given(TURNS, st.sampled_from(STYLES))
def test_without_marker_tokens_there_is_no_call(text: str, style: CallStyle) -> None:
    ids = [one for one in ids_of(text) if one != MARKERS.call_open]
    assert not parse_turn(ids, CallRules(style, MARKERS, TOOLS), decode, {STOP})


@given(TURNS)
def test_a_draft_in_thinking_changes_nothing(text: str) -> None:
    draft = [one for one in ids_of(text) if one not in (MARKERS.think_close, STOP)]
    call = ids_of('⟦</think>⟧⟦<tool_call>⟧{"name": "clock"}⟦</tool_call>⟧')
    rules = CallRules("json", MARKERS, TOOLS, opens_thinking=True)
    assert parse_turn(draft + call, rules, decode, {STOP}) == parse_turn(call, rules, decode, {STOP})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "piece",
    [
        *("[", "{", '{"a":', '"', "\\", "\\'", "'", "<", ">", "<parameter=a>", "</parameter>", "<function=a>"),
        *("⟦<tool_call>⟧", "a", "a()", "a(b=", "b=1,"),
    ],
)
def test_time_grows_no_faster_than_the_turn(piece: str, style: CallStyle) -> None:
    opens, closes = (f"⟦{text}⟧" if text else "" for text in (WAYS[style].opens, WAYS[style].closes))
    rules = CallRules(style, markers_of(style), TOOLS)
    for before, behind in ((opens, closes), (opens + "clock(", closes), (opens, "")):
        ids = ids_of(before + piece * (32_000 // len(piece)) + behind)
        started = time.process_time()
        parse_turn(ids, rules, decode, {STOP})
        assert time.process_time() - started < 0.5


@pytest.mark.parametrize(("value", "name"), [("TRUE", "exact"), ("three", "limit"), ("['b'", "weights")])
@pytest.mark.parametrize("style", ["xml", "seed"])
def test_a_value_that_cannot_be_read_is_named_with_its_type(value: str, name: str, style: CallStyle) -> None:
    call = f"<function=search><parameter=query>a</parameter><parameter={name}>{value}</parameter></function>"
    (found,) = read_calls(call, style, TOOLS)
    assert isinstance(found, BadCall)
    assert found.text == f"error: the argument {name} is not of the type {TOOLS['search'].parameters[name].type}"
