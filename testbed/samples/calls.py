"""Turns that call tools, as the vectors of `tests/unit/vectors/calls.json` write them.

A turn is a text, or a list of texts and of [text, how often it is repeated]. A token that a tokenizer has as a whole
stands in ⟦ and ⟧; everything else is spelled, one token a character.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from muster.environments.tools.base import CallStyle, EarlierCall, Parameter, Tool, ToolResult
from muster.environments.tools.calculator import Calculator
from muster.protocol.turns.calls import STYLES, CallRules, Markers

VECTORS: Final = Path(__file__).resolve().parents[2] / "tests" / "unit" / "vectors" / "calls.json"

WHOLE: Final = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_start|>", "<|im_end|>"),
    *("[TOOL_CALLS]", "<function_calls>", "</function_calls>", "<seed:tool_call>", "</seed:tool_call>"),
    *("<seed:think>", "</seed:think>", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
)
"""Tokens of more than one character, by id."""
MARKERS: Final = Markers(0, 1, 2, 3)
"""Of the styles `json` and `xml`."""
STOP: Final = WHOLE.index("<|im_end|>")

_PIECES: Final = re.compile("⟦([^⟧]*)⟧|([^⟦]+)")


class Search:
    """Finds nothing; it is there for its parameters, one of each type."""

    name, code = "search", "1"
    description = "Searches the corpus."
    parameters: Mapping[str, Parameter] = {
        "query": Parameter("string", "what to look for"),
        "limit": Parameter("integer", "most results", is_required=False),
        "threshold": Parameter("number", "least score", is_required=False),
        "exact": Parameter("boolean", "whether words must be equal", is_required=False),
        "weights": Parameter("array", "of the words", is_required=False),
        "filter": Parameter("object", "what results must have", is_required=False),
    }

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        return ToolResult("nothing found", min(fuel, len(arguments)))


class Clock:
    """Always noon: a tool without parameters."""

    name, code = "clock", "1"
    description = "Tells the time."
    parameters: Mapping[str, Parameter] = {}

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        return ToolResult("12:00", 0)


TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tool in (Calculator(), Search(), Clock())}


def vectors() -> list[dict[str, Any]]:
    """Return all vectors."""
    return json.loads(VECTORS.read_text(encoding="utf-8"))


def turn_of(vector: Mapping[str, Any]) -> str:
    """Return a vector's turn as one text, with whole tokens in ⟦ and ⟧."""
    parts = vector["turn"] if isinstance(vector["turn"], list) else [vector["turn"]]
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


def spelled(turn: str) -> str:
    """Return what a parser by text sees."""
    return turn.replace("⟦", "").replace("⟧", "")


def ids_of(turn: str) -> list[int]:
    """Return a turn's ids."""
    found: list[int] = []
    for whole, text in _PIECES.findall(turn):
        found += [WHOLE.index(whole)] if whole else [len(WHOLE) + ord(character) for character in text]
    return found


def decode(ids: Sequence[int]) -> str:
    """Return the text that ids spell."""
    return "".join(WHOLE[one] if one < len(WHOLE) else chr(one - len(WHOLE)) for one in ids)


def rules_of(vector: Mapping[str, Any]) -> CallRules:
    """Return the rules that a vector's turn is read by."""
    opens, ends = vector.get("opens", False), vector.get("ends", False)
    markers = markers_of(vector["style"])
    return CallRules(vector["style"], markers, TOOLS, opens_thinking=opens, call_ends_thinking=ends)


def markers_of(style: CallStyle) -> Markers:
    """Return the markers of a style among the whole tokens."""
    way = STYLES[style]
    ids = (WHOLE.index(text) if text else None for text in (way.opens, way.closes))
    return Markers(*ids, *(WHOLE.index(text) for text in way.thinking))
