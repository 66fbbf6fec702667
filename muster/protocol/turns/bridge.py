"""The bridge from a sampled span to the next one: the ids that are given between them.

A given span is what the model's own chat template renders after the end marker of an assistant's turn: the rest of that
turn, the results of tools or a user's message, and what opens the next turn. It is derived by rendering a short known
conversation with these messages and taking what follows. So whatever a template does with messages (merge results,
trim them, write them as JSON) is done, and what the policy sampled is never rendered again: its thinking stays, and its
tokens stay as they are.

`turn_template` checks at the door that a template can be used so: what it renders after a turn may depend on the
messages only, not on what came before them, and its own calls are read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, product
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from muster.environments.answers import THINK_END
from muster.environments.tools.base import CallStyle, Tool, function_schema
from muster.environments.tools.manifest import TurnsManifest
from muster.environments.tools.registry import make_tools
from muster.errors import ConfigError, MalformedError
from muster.protocol.prompts import render, tokens_text
from muster.protocol.turns.calls import STYLES, CallRules, Markers, ToolCall, thinking_is_open
from muster.protocol.turns.reading import StyleError, takes_one_call
from muster.protocol.turns.results import cut, escape, escape_pattern

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK_BEGIN: Final = "<think>"
HIDDEN: Final = "[this result cannot be shown]"
"""Given in place of messages that would spell a token of the template even when escaped."""

_QUESTION: Final = {"role": "user", "content": "What is asked?"}
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_CALL_ID: Final = "call{:05d}"
"""Some templates want an id of nine letters and digits."""


@dataclass(frozen=True)
class GivenMessage:
    """What a tool or a user says between two sampled turns."""

    role: Literal["tool", "user"]
    content: str
    name: str = ""
    """Of the tool."""


@dataclass(frozen=True, eq=False)
class TurnTemplate:
    """A model's chat template that was found fit for several turns. Made by `turn_template`."""

    tokenizer: PreTrainedTokenizerBase
    rules: CallRules
    stop_tokens: frozenset[int]
    end: int
    """The token by which the template ends an assistant's turn."""
    thinks: bool
    limit: int
    """Most characters of a message."""
    pattern: re.Pattern[str]
    """Finds the tokens that no message may spell."""
    guarded: frozenset[int]
    """Their ids."""
    one_call: bool = False
    """Whether the template takes no more than one call of a turn."""

    @property
    def end_text(self) -> str:
        """Return how the template spells its end marker."""
        return str(self.tokenizer.convert_ids_to_tokens(self.end))

    def given_text(self, messages: Sequence[GivenMessage], *, opens_turn: bool = True) -> str:
        """Return what the template renders after the end marker of a turn that these messages follow.

        opens_turn: whether the next turn is opened as well. Raises MalformedError if the turn has no end marker.
        """
        mark = _unused(messages)
        text = self.rendered([_QUESTION, *_turns(mark, messages)], opens_turn=opens_turn)
        return text[self.end_of(text, mark) :]

    def rendered(self, messages: Sequence[Mapping[str, Any]], *, opens_turn: bool) -> str:
        """Return the messages as the template renders them."""
        tools = [function_schema(tool) for tool in self.rules.tools.values()]
        return render(self.tokenizer, messages, thinks=self.thinks, tools=tools, opens_turn=opens_turn)

    def prompt(self) -> str:
        """Return a question as the template renders it, with its tools, the next turn opened."""
        return self.rendered([_QUESTION], opens_turn=True)

    def turn_text(self, calls: Sequence[ToolCall], text: str, thought: str) -> tuple[str, bool]:
        """Return what a turn says that has calls, as the template renders it, and whether it begins in thinking.

        text, thought: what stands before the calls. Raises MalformedError where the template refuses the turn.
        """
        # 1. The turn, followed by results.
        ids = [_CALL_ID.format(number) for number in range(len(calls))]
        given = [GivenMessage("tool", "a result", one.name) for one in calls]
        turn: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            **({"reasoning_content": thought} if thought else {}),
        }
        functions = [{"name": one.name, "arguments": dict(one.arguments)} for one in calls]
        turn["tool_calls"] = [_tool_call(one, function) for one, function in zip(ids, functions, strict=True)]
        beginning = self.rendered([_QUESTION], opens_turn=False)
        rest = _rest(self.rendered([_QUESTION, turn, *_given(given)], opens_turn=False), beginning)

        # 2. Without what opens it: all of that, or all but the thinking that the prompt opens.
        opening = _rest(self.prompt(), beginning)
        opens, closes = STYLES[self.rules.style].thinking
        header = opening if rest.startswith(opening) else opening.partition(opens)[0].partition(closes)[0]
        if not rest.startswith(header):
            raise ConfigError(f"turns begin by {rest[:40]!r}, and the prompt opens them by {header[:40]!r}")
        said = rest.removeprefix(header)
        return said[: said.index(self.end_text)], self.rules.opens_thinking and header == opening

    def end_of(self, text: str, mark: str) -> int:
        """Return where the turn ends that has this mark in it. Raises MalformedError."""
        place = text.rfind(mark)
        end = text.find(self.end_text, place)
        if place < 0 or end < 0:
            raise MalformedError(f"behind an assistant's message the template writes no {self.end_text}")
        return end + len(self.end_text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some of a turn's tokens, without cleaning. Total on hostile ids."""
        return tokens_text(self.tokenizer, tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that stands behind the end marker."""
        ids = [int(one) for one in self.tokenizer(self.end_text + text, add_special_tokens=False)["input_ids"]]
        assert ids[0] == self.end, f"{self.end_text} is not one token"
        return ids[1:]


def bridge(
    template: TurnTemplate, prompt: Sequence[int], spans: Sequence[Sequence[int]], messages: Sequence[GivenMessage]
) -> np.ndarray:
    """Return the ids given after the last sampled span: int32 [given tokens].

    prompt, spans: the conversation so far, spans in turn sampled and given; of these only the last one counts, so that
    what is given depends on nothing that could have been rendered otherwise. Total on hostile messages.
    """
    last = spans[-1]
    closing: list[int] = []
    if not len(last) or last[-1] not in template.stop_tokens:
        close = template.rules.markers.think_close
        is_open = thinking_is_open(last, template.rules)
        closing = [close, template.end] if close is not None and is_open else [template.end]
    shown = [replace(one, content=escape(cut(one.content, template.limit), template.pattern)) for one in messages]
    ids = template.encode(template.given_text(shown))
    frame = _frame(template, tuple(replace(one, content=HIDDEN) for one in messages))
    if _guarded(ids, template) != _guarded(frame, template):
        ids = frame
    return np.array(closing + ids, np.int32)


@lru_cache(64)
def _frame(template: TurnTemplate, harmless: tuple[GivenMessage, ...]) -> list[int]:
    """Return the ids of messages that say nothing of their own: the same for all results of the same tools."""
    return template.encode(template.given_text(harmless))


def _guarded(ids: Sequence[int], template: TurnTemplate) -> list[int]:
    return [one for one in ids if one in template.guarded]


def _unused(messages: Sequence[GivenMessage]) -> str:
    """Return a word that no message has in it: the first of a fixed row."""
    words = (f"turn{number}mark" for number in count())
    return next(word for word in words if not any(word in one.content for one in messages))


def _turns(mark: str, messages: Sequence[GivenMessage]) -> list[dict[str, Any]]:
    """Return an assistant's turn with a mark in it, and the messages, as chat templates want them.

    Of a turn that results follow, one call stands for all: some templates allow no more, and none counts them.
    """
    said: dict[str, Any] = {"role": "assistant", "content": mark}
    name = next((one.name for one in messages if one.role == "tool"), None)
    if name is not None:
        said["tool_calls"] = [_tool_call(_CALL_ID.format(0), {"name": name, "arguments": {"text": mark}})]
    return [said, *_given(messages)]


def _tool_call(name: str, function: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "id": name, "function": function}


def _given(messages: Sequence[GivenMessage]) -> list[dict[str, Any]]:
    given: list[dict[str, Any]] = []
    for number, one in enumerate(messages):
        given.append({"role": one.role, "content": one.content})
        if one.role == "tool":
            given[-1] |= {"name": one.name, "tool_call_id": _CALL_ID.format(number)}
    return given


# The door


def call_rules(
    tokenizer: PreTrainedTokenizerBase,
    manifest: TurnsManifest,
    style: CallStyle,
    tools: Mapping[str, Tool] | None = None,
) -> CallRules:
    """Return how calls of a style are read with a tokenizer.

    tools: those of the manifest by name; without them they cannot run code. Raises StyleError where the tokenizer does
    not have the style's tokens, ConfigError where it or this version cannot do the rest.
    """
    tools, way = make_tools(manifest) if tools is None else tools, STYLES[style]
    call_open, call_close, *thinking = (_single(tokenizer, one) for one in (way.opens, way.closes, *way.thinking))
    if tools and ((way.opens and call_open is None) or (way.closes and call_close is None)):
        raise StyleError(
            f"the tokenizer has no token for {way.opens} or {way.closes}",
            hint="tools need a model that was made for calls in this form",
        )
    markers = Markers(call_open, call_close, *thinking)
    if manifest.budget == "thinking" and markers.think_close is None:
        raise ConfigError(f"budgets count thinking, and the tokenizer has no token for {way.thinking[1]}")
    return CallRules(style, markers, tools, call_ends_thinking=manifest.call_ends_thinking)


def _single(tokenizer: PreTrainedTokenizerBase, text: str) -> int | None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return int(ids[0]) if len(ids) == 1 and tokens_text(tokenizer, ids) == text else None


def turn_template(
    tokenizer: PreTrainedTokenizerBase,
    rules: CallRules,
    stop_tokens: frozenset[int],
    *,
    thinks: bool = True,
    limit: int = 4096,
) -> TurnTemplate:
    """Return a tokenizer's chat template for several turns, or raise ConfigError that says why it cannot be used."""
    special = _guarded_tokens(tokenizer)
    guarded = frozenset(special.values())
    template = TurnTemplate(tokenizer, rules, stop_tokens, -1, thinks, limit, escape_pattern(special), guarded)
    try:
        template = replace(template, end=_end_marker(template))
        opens = _opens_thinking(template)
        _check_pairs(template)
        template = replace(template, rules=replace(rules, opens_thinking=opens))
        one_call = takes_one_call(template)
    except MalformedError as error:
        raise ConfigError(f"the chat template is not fit for several turns: {error}") from error
    return replace(template, one_call=one_call)


def _guarded_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens that no message may spell, by their text: special ones, and others that look like markup."""
    found = {}
    for number, token in tokenizer.added_tokens_decoder.items():
        text = str(token.content)
        if len(text) > 2 and (token.special or (text[0] in "<[" and text[-1] in ">]")):
            found[text] = number
    return found


_KINDS: Final[Mapping[str, tuple[GivenMessage, ...]]] = {
    "a result": (GivenMessage("tool", "first", "calculator"),),
    "two results": (GivenMessage("tool", "first", "calculator"), GivenMessage("tool", "second", "search")),
}
"""Kinds of what is given after a turn; the template is checked with every pair of them."""


def _end_marker(template: TurnTemplate) -> int:
    """Return the one stop token by which the template ends an assistant's turn, whatever follows."""
    texts = {str(template.tokenizer.convert_ids_to_tokens(one)): one for one in sorted(template.stop_tokens)}
    ends = set()
    for messages in _KINDS.values():
        mark = _unused(messages)
        text = template.rendered([_QUESTION, *_turns(mark, messages)], opens_turn=True)
        places = {text.find(one, text.rfind(mark)): one for one in texts}
        if mark not in text or not (found := [place for place in places if place >= 0]):
            raise MalformedError(f"behind an assistant's message it writes none of {', '.join(texts)}")
        ends.add(places[min(found)])
    if len(ends) != 1:
        raise MalformedError(f"turns end by different tokens, {' and '.join(sorted(ends))}, by what follows")
    return texts[ends.pop()]


def _opens_thinking(template: TurnTemplate) -> bool:
    """Return whether the template opens the thinking of each turn. Raises MalformedError if only of some."""
    openings = {
        _rest(template.rendered([_QUESTION], opens_turn=True), template.rendered([_QUESTION], opens_turn=False))
    }
    for messages in _KINDS.values():
        openings.add(_rest(template.given_text(messages), template.given_text(messages, opens_turn=False)))
    if "" in openings and (openings != {""} or not _needs_no_opening(template)):
        raise MalformedError("it does not open the assistant's turn")
    begin, end = STYLES[template.rules.style].thinking
    thinks = {one.rfind(begin) > one.rfind(end) for one in openings}
    if len(thinks) != 1:
        raise MalformedError("it opens thinking in some turns only")
    return thinks.pop()


def _needs_no_opening(template: TurnTemplate) -> bool:
    """Return whether what an assistant says follows at once, as in Mistral's templates."""
    said = {"role": "assistant", "content": "later"}
    histories = [[_QUESTION], *([_QUESTION, *_turns("earlier", messages)] for messages in _KINDS.values())]
    texts = [[template.rendered(one, opens_turn=False) for one in (each, [*each, said])] for each in histories]
    return all(longer.removeprefix(text).lstrip().startswith("later") for text, longer in texts)


def _rest(text: str, beginning: str) -> str:
    if not text.startswith(beginning):
        raise MalformedError("what opens the assistant's turn changes what stands before it")
    return text.removeprefix(beginning)


def _check_pairs(template: TurnTemplate) -> None:
    """Check that what is given after a turn is the same behind any history, and stays when more turns follow."""
    beginning = template.rendered([_QUESTION], opens_turn=False)
    for (first_kind, first), (second_kind, second) in product(_KINDS.items(), repeat=2):
        pair = f"{first_kind} and then {second_kind}"
        expected = template.given_text(second)
        if [word for one in second if (word := one.content) not in expected]:
            raise MalformedError(f"it does not show {second_kind}")
        places = [expected.find(one.content) for one in second]
        if places != sorted(places):
            raise MalformedError(f"it changes the order of {second_kind}")
        for mark in ("earlier", f"{THINK_BEGIN}\nhm\n{THINK_END}\n\nearlier"):
            history = [_QUESTION, *_turns(mark, first)]
            text = template.rendered([*history, *_turns("later", second)], opens_turn=True)
            if not text.startswith(beginning):
                raise MalformedError(f"the prompt changes when there are {pair}")
            if text[template.end_of(text, "later") :] != expected:
                raise MalformedError(f"what follows a turn depends on what came before, with {pair}")
            between = text[template.end_of(text[: text.rfind("later")], "earlier") : text.rfind("later")]
            given = template.given_text(first, opens_turn=False)
            if not _BLANKS.sub("", between).startswith(_BLANKS.sub("", given)):
                raise MalformedError(f"what followed a turn changes when more turns follow, with {pair}")
