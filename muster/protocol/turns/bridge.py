"""The bridge from a sampled span to the next one: the ids that are given between them.

A given span is what the model's own chat template renders after the end marker of an assistant's turn: the rest of that
turn, the results of tools, and what opens the next turn. It is derived by rendering a short known
conversation with these messages and taking what follows. So whatever a template does with messages (merge results,
trim them, write them as JSON) is done, and what the policy sampled is never rendered again: its thinking stays, and its
tokens stay as they are.

`turn_template` checks at the door that a template can be used so: what it renders after a turn may depend on the
messages only, not on what came before them, and its own calls are read back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, cycle, islice, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from muster.environments.tools.base import CallStyle, Parameter, ParameterType, Tool, function_schema
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import ConfigError, MalformedError
from muster.protocol.prompts import render, tokens_text
from muster.protocol.turns.calls import STYLES, BadCall, CallRules, Markers, ToolCall, parse_turn, thinking_is_open
from muster.protocol.turns.results import cut, escape, escape_pattern

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HIDDEN: Final = "[this result cannot be shown]"
"""Given in place of messages that would spell a token of the template even when escaped."""

_QUESTION: Final = {"role": "user", "content": "What is asked?"}
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_CALL_ID: Final = "call{:05d}"
"""Some templates want an id of nine letters and digits."""


@dataclass(frozen=True)
class GivenMessage:
    """What a tool says between two sampled turns."""

    content: str
    name: str
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

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Return what prompts say of the tools."""
        return [function_schema(tool) for tool in self.rules.tools.values()]

    def rendered(self, messages: Sequence[Mapping[str, Any]], *, opens_turn: bool) -> str:
        return render(self.tokenizer, messages, thinks=self.thinks, tools=self.functions, opens_turn=opens_turn)

    def turn_text(self, said: Mapping[str, Any], calls: Sequence[ToolCall]) -> tuple[str, bool]:
        """Return a turn with calls as the template renders it, and whether it begins in thinking.

        What opens the turn is left out. Raises MalformedError where the template refuses it.
        """
        beginning = self.rendered([_QUESTION], opens_turn=False)
        opening = _rest(self.rendered([_QUESTION], opens_turn=True), beginning)
        results = [GivenMessage("a result", one.name) for one in calls]
        text = _rest(self.rendered([_QUESTION, *_turn(said, calls, results)], opens_turn=False), beginning)
        opens_thinking = self.rules.opens_thinking and text.startswith(opening)
        header = opening if text.startswith(opening) else opening.partition(STYLES[self.rules.style].thinking[0])[0]
        return text.removeprefix(header).partition(self.end_text)[0], opens_thinking

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


def bridge(template: TurnTemplate, last: Sequence[int], messages: Sequence[GivenMessage]) -> np.ndarray:
    """Return the ids given after the last sampled span: int32 [given tokens].

    What is given depends on nothing before that span, which could have been rendered otherwise. Total on hostile
    messages.
    """
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
    return _turn({"content": mark}, [ToolCall(one.name, {"text": mark}) for one in messages[:1]], messages)


def _turn(said: Mapping[str, Any], calls: Sequence[ToolCall], messages: Sequence[GivenMessage]) -> list[dict[str, Any]]:
    """Return an assistant's turn and the messages that follow it, as chat templates want them."""
    turn: dict[str, Any] = {"role": "assistant", **said}
    if calls:
        functions = [{"name": one.name, "arguments": dict(one.arguments)} for one in calls]
        turn["tool_calls"] = [
            {"type": "function", "id": _CALL_ID.format(number), "function": one} for number, one in enumerate(functions)
        ]
    given = [
        {"role": "tool", "content": one.content, "name": one.name, "tool_call_id": _CALL_ID.format(number)}
        for number, one in enumerate(messages)
    ]
    return [turn, *given]


# The door


class StyleError(ConfigError):
    """A model's calls are not read in a style; another one may do."""


def call_rules(
    tokenizer: PreTrainedTokenizerBase, manifest: TurnsManifest, style: CallStyle, tools: Mapping[str, Tool]
) -> CallRules:
    """Return how calls of a style are read with a tokenizer. tools: those of the manifest, by name.

    Raises StyleError where the tokenizer does not have the style's tokens, ConfigError where it lacks others.
    """
    way = STYLES[style]
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
    """Return a tokenizer's chat template for several turns, or raise ConfigError that says why it cannot be used.

    StyleError: it writes calls in another style than the rules read.
    """
    special = _guarded_tokens(tokenizer)
    guarded = frozenset(special.values())
    template = TurnTemplate(tokenizer, rules, stop_tokens, -1, thinks, limit, escape_pattern(special), guarded)
    try:
        template = replace(template, end=_end_marker(template))
        opens = _opens_thinking(template)
        _check_pairs(template)
        template = replace(template, rules=replace(rules, opens_thinking=opens))
        return replace(template, one_call=bool(rules.tools) and _takes_one_call(template))
    except MalformedError as error:
        raise ConfigError(f"the chat template is not fit for several turns: {error}") from error


def _guarded_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens that no message may spell, by their text: special ones, and others that look like markup."""
    found = {}
    for number, token in tokenizer.added_tokens_decoder.items():
        text = str(token.content)
        if len(text) > 2 and (token.special or (text[0] in "<[" and text[-1] in ">]")):
            found[text] = number
    return found


_KINDS: Final[Mapping[str, tuple[GivenMessage, ...]]] = {
    "a result": (GivenMessage("first", "calculator"),),
    "two results": (GivenMessage("first", "calculator"), GivenMessage("second", "search")),
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
    question = template.rendered([_QUESTION], opens_turn=False)
    openings = {_rest(template.rendered([_QUESTION], opens_turn=True), question)}
    for messages in _KINDS.values():
        openings.add(_rest(template.given_text(messages), template.given_text(messages, opens_turn=False)))
    if "" in openings:
        answered = template.rendered([_QUESTION, {"role": "assistant", "content": "later"}], opens_turn=False)
        if openings != {""} or not _rest(answered, question).lstrip().startswith("later"):
            raise MalformedError("it does not open the assistant's turn")
    begin, end = STYLES[template.rules.style].thinking
    thinks = {one.rfind(begin) > one.rfind(end) for one in openings}
    if len(thinks) != 1:
        raise MalformedError("it opens thinking in some turns only")
    return thinks.pop()


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
        places = [expected.find(one.content) for one in second]
        if -1 in places:
            raise MalformedError(f"it does not show {second_kind}")
        if places != sorted(places):
            raise MalformedError(f"it changes the order of {second_kind}")
        for mark in ("earlier", _thought(template, "earlier")):
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


def _thought(template: TurnTemplate, text: str) -> str:
    """Return a text behind thinking, as policies write it."""
    opens, closes = STYLES[template.rules.style].thinking
    return f"{opens}\nhm\n{closes}\n\n{text}"


_SAMPLES: Final[Mapping[ParameterType, tuple[Any, ...]]] = {
    "string": ("2 + 2", "", "\né 東 😀 \"q\" 'x' \\d <b>\n  y\n"),
    "integer": (7, 0, -12),
    "number": (0.5, 3, -1e-07),
    "boolean": (True, False, True),
    "array": ([1, "a", None, [True, {}]], [], ["é", "'", '"', 0.5]),
    "object": ({"a": {"b": [1.5, False, None]}}, {}, {"é": "", "c d": '\\ "'}),
}
_PARAMETERS: Final = {f"a_{kind}": Parameter(kind, f"some {kind}", is_required=False) for kind in _SAMPLES}
_PROBE: Final = cast(Tool, SimpleNamespace(name="probe_of_types", description="Takes all.", parameters=_PARAMETERS))
"""A tool that is called with each type of argument, and never run."""
_SAID: Final = "Let me see."


def _takes_one_call(template: TurnTemplate) -> bool:
    """Return whether the template refuses several calls of a turn, once all calls that it renders are read back equal.

    Raises StyleError where one is read otherwise, ConfigError where it shows no call or not which tools there are.
    """
    # 1. Its tools are shown.
    rules, without = template.rules, replace(template, rules=replace(template.rules, tools={}))
    with suppress(MalformedError):  # of Hermes', without tools
        if template.rendered([_QUESTION], opens_turn=True) == without.rendered([_QUESTION], opens_turn=True):
            raise ConfigError("the chat template does not say which tools there are", hint="use a model made for tools")

    # 2. One call, behind nothing, a text, and thinking in two ways; then three.
    tools = [_PROBE, *rules.tools.values()]
    probing = replace(template, rules=replace(rules, tools={one.name: one for one in tools}))
    behind = [{"content": text} for text in ("", _SAID, _thought(template, _SAID))]
    behind.append({"content": _SAID, "reasoning_content": "hm"})
    for tool in tools:
        if not sum(_is_read(probing, said, [call]) for call in _calls_of(tool) for said in behind):
            raise ConfigError(f"the chat template shows no call of {tool.name}", hint="use a model made for tools")
    three = [_calls_of(tool)[0] for tool in islice(cycle(tools), 3)]
    return not sum(_is_read(probing, said, three) for said in behind)


def _calls_of(tool: Tool) -> list[ToolCall]:
    """Return calls with different arguments, the last one with no more than it needs."""
    given = [{name: _SAMPLES[one.type][place] for name, one in tool.parameters.items()} for place in range(3)]
    given.append({name: value for name, value in given[0].items() if tool.parameters[name].is_required})
    return [ToolCall(tool.name, arguments) for arguments in given]


def _is_read(template: TurnTemplate, said: Mapping[str, Any], calls: Sequence[ToolCall]) -> bool:
    """Return whether the template renders the calls; False where it refuses or omits them, or no tokens spell them.

    Raises StyleError where what it renders is read otherwise.
    """
    try:
        text, opens_thinking = template.turn_text(said, calls)
    except MalformedError:
        return False
    ids = [int(one) for one in template.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]
    if not any(one.name in text for one in calls) or set(text) - set(template.decode(ids)):
        return False
    rules = replace(template.rules, opens_thinking=opens_thinking)
    found = parse_turn(ids, rules, template.decode, template.stop_tokens)
    if _shown(found) != _shown(calls):
        raise StyleError(
            f"the chat template writes {text.strip()[:200]!r}, which the style {rules.style} reads as "
            f"{_shown(found)[:200] if found else 'no call'}",
            hint="use a model whose calls are written in one of the styles of docs/understand/turns.md",
        )
    return True


def _shown(calls: Sequence[ToolCall | BadCall]) -> str:
    pairs = [(one.name, dict(one.arguments)) if isinstance(one, ToolCall) else one.reason for one in calls]
    return json.dumps(pairs, ensure_ascii=False, sort_keys=True)
