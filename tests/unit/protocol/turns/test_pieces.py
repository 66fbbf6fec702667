"""Conversations in pieces: a call of any style is known by its marker tokens."""

from __future__ import annotations

import pytest

from muster.environments.tools.base import CallStyle
from muster.protocol.turns.calls import STYLES
from muster.protocol.turns.pieces import pieces_of
from testbed.samples.calls import WHOLE, decode, ids_of


def id_of(text: str) -> int | None:
    return WHOLE.index(text) if text in WHOLE else None


@pytest.mark.parametrize("style", [style for style, way in STYLES.items() if way.opens])
def test_a_call_of_any_style_is_a_piece(style: CallStyle) -> None:
    opens, closes = STYLES[style].opens, STYLES[style].closes
    said = f"Hm, {opens}?⟦{opens}⟧x" + (f"⟦{closes}⟧Ok" if closes else "")
    pieces = pieces_of([ids_of(said), ids_of("42")], decode, id_of)
    expected = [("said", f"Hm, {opens}?"), ("call", f"{opens}x{closes}"), ("said", "Ok"), ("given", "42")]
    assert pieces == [one for one in expected if closes or one[1] != "Ok"]
