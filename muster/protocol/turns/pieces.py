"""Conversations as people read them: in pieces, either sampled by the policy or given to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

from muster.protocol.turns.calls import STYLES

PieceKind = Literal["said", "call", "result", "given"]
"""Sampled by the policy: what it said, and what it wrote between the markers of a call, drafts in its thinking too.
Given to it, never trained on: results, and what else the template writes between turns."""
PIECE_NAMES: Final[Mapping[PieceKind, str]] = {
    "said": "Sampled",
    "call": "Sampled: a call",
    "result": "Given: a result",
    "given": "Given: what the template writes",
}

_RESULT: Final = re.compile("(<tool_response>.*?</tool_response>)", re.DOTALL)
_GIVEN: Final[tuple[PieceKind, PieceKind]] = "given", "result"
"""What a given text is split into by _RESULT, in turns."""


def pieces_of(
    spans: Iterable[Iterable[int]],
    decode: Callable[[Sequence[int]], str],
    id_of: Callable[[str], int | None],
) -> list[tuple[PieceKind, str]]:
    """Return the spans' tokens, sampled and given in turn, as pieces of text; empty ones are left out.

    A call begins and ends with the marker tokens of any style, since markers that a policy spells are text. In what is
    given the markers are text in some templates, and no result can spell one. id_of: a token's id.
    """
    opens, closes = {id_of(way.opens) for way in STYLES.values()}, {id_of(way.closes) for way in STYLES.values()}
    found: list[tuple[PieceKind, str]] = []
    for number, span in enumerate(spans):
        tokens = [int(token) for token in span]
        if number % 2:
            found.extend((_GIVEN[place % 2], text) for place, text in enumerate(_RESULT.split(decode(tokens))))
            continue
        parts: list[tuple[PieceKind, list[int]]] = [("said", [])]
        for token in tokens:
            if token in opens and parts[-1][0] == "said":
                parts.append(("call", []))
            parts[-1][1].append(token)
            if token in closes and parts[-1][0] == "call":
                parts.append(("said", []))
        found.extend((kind, decode(ids)) for kind, ids in parts)
    return [piece for piece in found if piece[1]]
