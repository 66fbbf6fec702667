"""Conversations as people read them: in pieces, what the policy sampled and what it was given told apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

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
    opens: Collection[int],
    closes: Collection[int],
) -> list[tuple[PieceKind, str]]:
    """Return the spans' tokens, sampled and given in turn, as pieces of text; empty ones are left out.

    opens, closes: the marker tokens of calls, since markers that a policy spells are text. In what is given the markers
    are text in some templates, and no result can spell one.
    """
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
