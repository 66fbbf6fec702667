"""Prompts: exact tokens, the announced budget, text back from any tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.environments.task import ChatMessage, Task, ask
from muster.errors import ConfigError
from muster.models.init import make_tokenizer
from muster.protocol.prompts import completion_text, prompt_text, prompt_tokens
from testbed.samples.texts import byte_pair_tokenizer

TASK = ask("sort 5231", answer="1235")
CORPUS = ["sort 5231", "sort 8287", "1235", "2788", "12+34="]
CHARACTER = make_tokenizer()


@pytest.fixture(scope="module", params=["character", "byte_pair"])
def tokenizer(request: pytest.FixtureRequest):
    return byte_pair_tokenizer(CORPUS) if request.param == "byte_pair" else make_tokenizer()


def test_prompt_announces_the_budget_where_the_template_wants_it(tokenizer) -> None:
    assert prompt_text(tokenizer, TASK, 12) == "<|user|>sort 5231<|budget|>12<|assistant|><think>"
    tokens = prompt_tokens(tokenizer, TASK, 12)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens.tolist()) == prompt_text(tokenizer, TASK, 12)
    assert not np.array_equal(tokens, prompt_tokens(tokenizer, TASK, 13))


def test_character_tokens_by_hand() -> None:
    tokens = prompt_tokens(CHARACTER, ask("1+1=", answer="2"), 9)
    special = 9  # seven special tokens and the two of thinking come first, then newline and the printable characters
    space = special + 1
    characters = [space + ord(c) - 32 for c in "1+1="]
    assert tokens.tolist() == [4, *characters, 5, space + ord("9") - 32, 6, 7]


def test_a_template_without_a_budget_gets_a_sentence() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert prompt_text(tokenizer, TASK, 40).startswith("sort 5231\n\nThink for about 40 tokens")
    assert prompt_text(tokenizer, TASK, 40, thinks=False) == "sort 5231"
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="chat template"):
        prompt_text(tokenizer, TASK, 40)


def test_every_message_of_a_conversation_is_in_the_prompt_and_the_reference_is_not() -> None:
    said = (ChatMessage("system", "Be brief."), ChatMessage("user", "sort 21"), ChatMessage("assistant", "12"))
    task = Task("talk", (*said, ChatMessage("user", "sort 87")), {"answer": "SECRET"}, level=9, author="SECRET")
    assert prompt_text(CHARACTER, task, 8) == (
        "<|system|>Be brief.<|user|>sort 21<|assistant|>12<|user|>sort 87<|budget|>8<|assistant|><think>"
    )
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    lines = prompt_text(tokenizer, task, 8).splitlines()
    assert lines[:4] == ["system: Be brief.", "user: sort 21", "assistant: 12", "user: sort 87"]
    assert lines[5].startswith("Think for about 8 tokens"), "the sentence is at the end of the last message"


def test_a_template_that_asks_for_the_date_gets_the_same_one_everywhere() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}|{{ messages[0]['content'] }}{{ thinking_budget }}"
    assert prompt_text(tokenizer, TASK, 40) == "26 Jul 2024|sort 523140"


def test_completion_text_spells_out_everything_but_the_final_eos(tokenizer) -> None:
    text = "..12 x</think>\n34"
    ids = tokenizer(text + "<|end|>", add_special_tokens=False)["input_ids"]
    assert completion_text(tokenizer, ids) == text
    assert completion_text(tokenizer, np.asarray(ids[:-1], np.int32)) == text
    assert completion_text(tokenizer, [*ids, ids[-1]]) == text + "<|end|>"
    assert completion_text(tokenizer, []) == ""


def test_a_second_stop_token_at_the_end_is_no_part_of_the_answer(tokenizer) -> None:
    [other] = tokenizer("<|user|>", add_special_tokens=False)["input_ids"]
    ids = tokenizer("</think>34", add_special_tokens=False)["input_ids"]
    assert completion_text(tokenizer, [*ids, other], {other}) == "</think>34"
    assert completion_text(tokenizer, [*ids, other, other], {other}) == "</think>34<|user|>"
    assert completion_text(tokenizer, [*ids, other]) == "</think>34<|user|>"


def test_ids_that_only_pad_the_embedding_do_not_vanish_from_an_answer() -> None:
    one, two = CHARACTER("12", add_special_tokens=False)["input_ids"]
    assert completion_text(CHARACTER, [one, len(CHARACTER), two]) == "1\ufffd2"
    assert completion_text(CHARACTER, [-1, one, two, 2**31 - 1]) == "\ufffd12\ufffd"


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 120), max_size=50))
def test_completion_text_is_total(tokens: list[int]) -> None:
    assert isinstance(completion_text(CHARACTER, tokens), str)
