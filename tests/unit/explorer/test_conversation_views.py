"""Rollouts of several turns on the page: what was sampled and what was given are told apart, in words."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
from tokenizers import Tokenizer

from explorer import render
from explorer.rows import MAX_PIECES, MAX_TEXT, RowRead, read_row
from muster.rollouts.schema import Rollout
from testbed.samples.chat_templates import family_tokenizer
from testbed.samples.rollouts import rollout
from testbed.samples.texts import HOSTILE

TOKENIZER = family_tokenizer("Qwen2.5")
LIGHT = Tokenizer.from_str(TOKENIZER.backend_tokenizer.to_str())  # type: ignore[attr-defined]
GIVEN = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
CALL = "<tool_call>\n{}\n</tool_call>"


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def talk(*turns: str | list[int], fuel: tuple[int, ...] = (7,)) -> Rollout:
    parts = [ids_of(turn) if isinstance(turn, str) else turn for turn in turns]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int32)
    logprobs = np.zeros(sum(len(part) for part in parts[::2]), np.float32)
    return rollout(
        0, [one for part in parts for one in part], spans=ends, logprobs=logprobs, call_fuel=np.array(fuel, np.uint64)
    )


def read(row: Rollout) -> RowRead:
    return read_row(LIGHT, row, 4, "none")


def card(row: RowRead) -> str:
    source = '{% from "rollout_card.html" import rollout_card with context %}{{ rollout_card(row) }}'
    about = {
        "run": 1,
        "file_hash": "0x" + "11" * 32,
        "node": "0x" + "22" * 20,
        "name": "",
        "index": 0,
        "policy_step": 1,
    }
    about |= {"position": 0, "part": "p", "environment": "e", "graded": True}
    return render.environment().from_string(source).render(row=row.model_dump() | about | {"parts": []})


def test_pieces_are_the_whole_conversation_and_the_answer_is_the_last_turn() -> None:
    row = talk("I call " + CALL.format("x") + "<|im_end|>", GIVEN.format(42), "It is 42.<|im_end|>")
    found = read(row)
    assert [piece.kind for piece in found.pieces] == ["said", "call", "said", "given", "result", "given", "said"]
    whole = TOKENIZER.decode(row.completion_tokens[:-1])
    assert "".join(piece.text for piece in found.pieces) == whole
    assert (found.answer.text, found.call_fuel) == ("It is 42.", [7])
    assert (found.tokens, found.given) == (len(row.logprobs), len(ids_of(GIVEN.format(42))))


def test_markers_that_are_spelled_make_no_call() -> None:
    spelled = [one for letter in CALL.format("x") for one in ids_of(letter)]
    found = read(talk(spelled, GIVEN.format(42), "42<|im_end|>"))
    assert [piece.kind for piece in found.pieces] == ["said", "given", "result", "given", "said"]


def test_a_single_turn_has_no_pieces() -> None:
    found = read(talk(CALL.format("x") + "<|im_end|>", fuel=()))
    assert (found.pieces, found.given, found.call_fuel) == ([], 0, [])


def test_pieces_are_bounded() -> None:
    found = read(talk(CALL.format("") * 3 * MAX_PIECES, GIVEN.format("r" * 3 * MAX_TEXT), "42<|im_end|>"))
    assert len(found.pieces) == MAX_PIECES
    assert "too long to be shown" in card(found)
    found = read(talk("a", GIVEN.format("r" * 3 * MAX_TEXT), "42<|im_end|>"))
    assert sum(len(piece.text) for piece in found.pieces) == MAX_TEXT
    assert "too long to be shown" in card(found)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_card_names_each_piece_and_escapes_it(text: str) -> None:
    row = talk(text + CALL.format(text) + "<|im_end|>", GIVEN.format(text), "42<|im_end|>", fuel=(7, 0))
    page = card(read(row))
    names = re.findall(r'<li class="is-\w+"><h3>([^<]*)</h3><pre [^>]*aria-label="\1">', page)
    assert names == [
        "Sampled", "Sampled: a call", "Sampled", "Given: what the template writes", "Given: a result",
        "Given: what the template writes", "Sampled",
    ]  # fmt: skip
    assert "only these are trained on" in page
    assert re.search(r"Fuel of each call</dt><dd>7, 0</dd>", page)
    assert not re.search(r"<script|<img|<h1|[\x00\x1b\u202e]", page)
    shown = unescape("".join(re.findall(r"<pre [^>]*>(.*?)</pre>", page, re.DOTALL)))
    assert shown.count(render.shown(text)) == 3
