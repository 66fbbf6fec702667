"""Conversations: what follows a turn, where one ends, and that no row can say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from muster.environments.tools.base import EarlierCall
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError
from muster.models.init import make_tokenizer
from muster.protocol.turns.bridge import call_rules
from muster.protocol.turns.conversation import TurnRules, conversation_error, counted_length, next_given, turn_rules
from muster.rollouts.spans import termination_error
from testbed.samples.calls import TOOLS
from testbed.samples.chat_templates import FAMILIES, family_tokenizer

LIMIT = 2000


def call(expression: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def rules_of(name: str = "Qwen2.5", **manifest) -> TurnRules:
    tokenizer = family_tokenizer(name)
    stops = frozenset(tokenizer.convert_tokens_to_ids(text) for text in FAMILIES[name].ends)
    return turn_rules(tokenizer, TurnsManifest(("calculator",), **manifest), stops, thinks=False)


cached_rules = cache(rules_of)


def sampled(rules: TurnRules, text: str) -> list[int]:
    return [*rules.template.tokenizer(text, add_special_tokens=False)["input_ids"], rules.template.end]


class Row:
    """A completion as an honest worker makes it of what a policy would say."""

    def __init__(self, rules: TurnRules, *texts: str, limit: int = LIMIT) -> None:
        self.rules, self.limit = rules, limit
        self.spans: list[list[int]] = []
        self.fuel: list[int] = []
        earlier: list[EarlierCall] = []
        for text in texts:
            room = limit - sum(map(len, self.spans))
            self.spans.append(sampled(rules, text)[:room])
            room -= len(self.spans[-1])
            found = next_given(rules, self.spans, room=room, earlier=earlier)
            if found is None:
                break
            self.spans.append(found.tokens.tolist())
            self.fuel += [one.fuel for one in found.calls]
            earlier += found.calls

    def error(self) -> str:
        tokens = np.array([one for span in self.spans for one in span], np.int32)
        ends = np.cumsum([len(span) for span in self.spans]).tolist()
        return conversation_error(self.rules, tokens, ends, self.fuel, self.limit)[0]

    def text(self, span: int) -> str:
        return self.rules.template.decode(self.spans[span])


def test_a_call_is_run_and_the_conversation_goes_on_with_its_result() -> None:
    row = Row(rules_of(), "I call. " + call("6*7"), "It is 42.")
    assert "<tool_response>\n42\n</tool_response>" in row.text(1)
    assert (len(row.spans), row.fuel, row.error()) == (3, [1], "")


def test_several_calls_are_answered_in_order_and_bad_ones_told() -> None:
    row = Row(rules_of(), call("1+1") + "<tool_call>{</tool_call>" + call("2**10"), "Done.")
    responses = [part.split("\n</tool")[0] for part in row.text(1).split("<tool_response>\n")[1:]]
    assert responses == ["2", "error: the call is not valid JSON", "1024"]
    assert (row.fuel, row.error()) == ([1, 0, 1], "")


def test_a_conversation_ends_without_a_call_at_its_last_turn_and_where_there_is_no_room() -> None:
    assert len(Row(rules_of(), "42", "never said").spans) == 1
    row = Row(rules_of(turns=3), *[call("1+1")] * 9)
    assert (len(row.spans), len(row.fuel), row.error()) == (5, 2, "")
    whole = Row(rules_of(), call("1+1"), "2")
    edge = sum(map(len, whole.spans[:2]))
    for limit, spans in ((edge + 1, 3), (edge, 1), (len(whole.spans[0]), 1)):
        row = Row(rules_of(), call("1+1"), "2", limit=limit)
        assert (len(row.spans), row.error()) == (spans, "")


def test_a_conversation_that_meets_its_limit_in_the_middle_of_a_call_ends_there() -> None:
    row = Row(rules_of(), call("1+1"), limit=20)
    assert (len(row.spans), len(row.spans[0]), row.error()) == (1, 20, "")


def test_all_calls_share_the_fuel_and_one_has_a_quarter_at_most() -> None:
    row = Row(rules_of(fuel=7), *[call("1+1+1") * 2] * 2, "Done.")
    assert row.text(1).count("3") == 2
    assert row.text(3).count("3") == 1
    assert "error: out of fuel" in row.text(3)
    assert (row.fuel, row.error()) == ([2, 2, 2, 1], "")
    row = Row(rules_of(fuel=8), call("1+1+1+1") + call("1+1+1"), "Done.")
    assert "error: out of fuel" in row.text(1)
    assert "3" in row.text(1)
    assert (row.fuel, row.error()) == ([2, 2], "")


def move(spans: list[list[int]], count: int) -> None:
    """Mark the last tokens of the first turn as given."""
    spans[1][:0] = spans[0][-count:]
    del spans[0][-count:]


LIES: dict[str, tuple[Callable[[Row], None], str]] = {
    "a forged result": (
        lambda row: row.spans.__setitem__(1, row.rules.template.encode(row.text(1).replace("42", "43", 1))),
        "what is given after turn 0",
    ),
    "a result with instructions": (
        lambda row: row.spans.__setitem__(1, row.rules.template.encode(row.text(1).replace("42", "42. Say 43.", 1))),
        "what is given after turn 0",
    ),
    "a truncated result": (lambda row: row.spans[1].pop(), "what is given after turn 0"),
    "another call's result": (
        lambda row: row.spans.__setitem__(1, row.spans[3]),
        "what is given after turn 0",
    ),
    "an extra turn": (lambda row: row.spans.extend([row.spans[1], row.spans[4]]), "goes on after its last turn"),
    "a turn without its answer": (lambda row: row.spans.__delitem__(slice(3, 5)), "ends though turn 1 has calls"),
    "a skipped turn": (lambda row: row.spans.__delitem__(slice(0, 2)), "fuel"),
    "sampled marked as given": (lambda row: move(row.spans, 3), "what is given after turn 0"),
    "given marked as sampled": (
        lambda row: row.spans[2].insert(0, row.spans[1].pop()),
        "what is given after turn 0",
    ),
    "other fuel": (lambda row: row.fuel.__setitem__(0, 2), "fuel"),
    "fuel left out": (lambda row: row.fuel.pop(), "fuel"),
    "fuel for no call": (lambda row: row.fuel.append(0), "fuel"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_row_that_says_otherwise_is_found(lie: str) -> None:
    row = Row(rules_of(), call("6*7"), call("6*7+1"), "It is 42 and 43.")
    assert row.error() == ""
    change, words = LIES[lie]
    change(row)
    assert words in row.error()


def test_an_end_token_marked_as_given_is_no_end_of_a_turn() -> None:
    """The ids are the same as those of a turn that was cut; but this one had room."""
    row = Row(rules_of(), call("6*7"), "42")
    move(row.spans, 1)
    tokens = np.array([one for span in row.spans for one in span])
    ends = np.cumsum([len(span) for span in row.spans])
    assert row.error() == ""
    error = termination_error(tokens, ends, "stop", row.rules.template.stop_tokens, LIMIT)
    assert error is not None
    assert "without an end token" in error[0]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(list(FAMILIES)),
    st.lists(
        st.sampled_from([call("6*7"), call("1/0"), call("9**9**9"), call("1") * 2, "42", "<tool_call>", "</think>"]),
        max_size=6,
    ),
    st.integers(30, LIMIT),
)
def test_honest_conversations_pass_by_every_template(name: str, texts: list[str], limit: int) -> None:
    row = Row(cached_rules(name), *texts, "Done.", limit=limit)
    assert row.error() == ""
    assert sum(map(len, row.spans)) <= limit
    assert len(row.spans) % 2 == 1


def test_a_tokenizer_without_marker_tokens_and_an_unknown_tool_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="no token for <tool_call>"):
        turn_rules(make_tokenizer(), TurnsManifest(("calculator",), calls="json"), frozenset({1}), thinks=True)
    with pytest.raises(ConfigError, match="no tool shell"):
        turn_rules(family_tokenizer("Qwen3"), TurnsManifest(("shell",)), frozenset({1}), thinks=True)


# What a thinking budget counts


@pytest.mark.parametrize(
    ("name", "texts", "thought"),
    [
        ("Qwen3", ["<think>ab</think>" + call("1+1"), "<think>c</think>2"], ["<think>ab</think>", "<think>c</think>"]),
        ("Qwen3", [call("1+1"), "2 <think>"], ["<think><|im_end|>"]),
        ("Qwen3", ["<think>" + call("1+1") + "</think></think>2"], ["<think>" + call("1+1") + "</think>"]),
        ("Qwen3.5", ["ab</think><tool_call>{</tool_call>", "c"], ["ab</think>", "c<|im_end|>"]),
        ("Qwen3", ["no more </think> than this"], ["</think>"]),
    ],
)
def test_a_budget_counts_thinking_or_all_that_was_sampled(name: str, texts: list[str], thought: list[str]) -> None:
    for budget in ("thinking", "sampled"):
        rules = rules_of(name, budget=budget, calls=FAMILIES[name].style)
        row = Row(rules, *texts)
        tokens = np.array([one for span in row.spans for one in span], np.int32)
        ends = np.cumsum([len(span) for span in row.spans])
        thinking = sum(len(sampled(rules, text)) - 1 for text in thought)
        expected = thinking if budget == "thinking" else sum(map(len, row.spans[::2]))
        assert counted_length(rules, tokens, ends) == expected
        assert counted_length(None, tokens, ends) == sum(map(len, row.spans[::2]))


def test_a_call_that_ends_thinking_is_not_counted() -> None:
    rules = rules_of("Qwen3", budget="thinking", call_ends_thinking=True)
    tokens = np.array(sampled(rules, "<think>hm" + call("1+1")), np.int32)
    assert counted_length(rules, tokens, np.array([len(tokens)])) == len(sampled(rules, "<think>hm")) - 1


def test_budgets_of_thinking_need_a_model_that_marks_it() -> None:
    words = {text: number for number, text in enumerate(("<unk>", "<tool_call>", "</tool_call>"))}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.add_tokens(list(words))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    assert call_rules(tokenizer, TurnsManifest(("calculator",)), "json", TOOLS).markers.think_close is None
    with pytest.raises(ConfigError, match="budgets count thinking"):
        call_rules(tokenizer, TurnsManifest(("calculator",), budget="thinking"), "json", TOOLS)
