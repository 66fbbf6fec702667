"""What follows a sampled turn: its calls are run and bridged to the next one, or the conversation ends.

`next_given` is all that a worker needs to go on, and `conversation_error` all that a check needs of what a worker
did: the same function over the same ids, compared token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from muster.environments.manifest import EnvironmentManifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task
from muster.environments.tools.base import CallStyle, EarlierCall, ToolResult
from muster.environments.tools.manifest import LEAST_CALLS, TurnsManifest
from muster.environments.tools.registry import make_tools
from muster.environments.tools.sandboxed import SandboxCall
from muster.errors import ConfigError, MalformedError
from muster.protocol.prompts import end_token, prompt_tokens
from muster.protocol.turns.bridge import GivenMessage, StyleError, TurnTemplate, bridge, call_rules, turn_template
from muster.protocol.turns.calls import STYLES, BadCall, ToolCall, parse_turn, thinking_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class TurnRules:
    """How the conversations of an environment go on."""

    manifest: TurnsManifest
    template: TurnTemplate


def turn_rules(
    tokenizer: PreTrainedTokenizerBase,
    manifest: TurnsManifest,
    stop_tokens: frozenset[int],
    *,
    thinks: bool,
    sandbox: SandboxCall | None = None,
) -> TurnRules:
    """Return the rules of an environment's conversations with a model's tokenizer.

    sandbox: what tools run code by. Raises ConfigError in words where its chat template or its tokens do not allow
    several turns, or its own calls are not read in the manifest's style.
    """
    tools = make_tools(manifest, sandbox) if sandbox else make_tools(manifest)
    found: dict[CallStyle, TurnTemplate] = {}
    refused: dict[str, ConfigError] = {}
    for style in STYLES:
        try:
            calls, limit = call_rules(tokenizer, manifest, style, tools), manifest.result_characters
            found[style] = turn_template(tokenizer, calls, stop_tokens, thinks=thinks, limit=limit)
        except ConfigError as error:
            refused[style] = error
        if manifest.calls in found or (manifest.calls == "auto" and found):
            return TurnRules(manifest, found[style])
    if error := refused.get(manifest.calls):
        hint = f'"calls": "{next(iter(found))}" in the manifest of the tasks fits the model' if found else error.hint
        raise ConfigError(str(error), hint=hint) from error
    error = refused["llama"]  # which needs no token
    words = "no style of calls fits the model: " if isinstance(error, StyleError) else ""
    raise ConfigError(words + str(error), hint=error.hint) from error


def counted_length(rules: TurnRules | None, tokens: np.ndarray, ends: np.ndarray) -> int:
    """Return how many tokens of a completion count against its budget; without rules, all that were sampled."""
    turns = np.split(tokens, ends[:-1])[::2]
    if rules is None or rules.manifest.budget == "sampled":
        return sum(map(len, turns))
    return sum(thinking_length(turn.tolist(), rules.template.rules) for turn in turns)


@dataclass(frozen=True, eq=False)
class Given:
    """What a turn is answered by."""

    tokens: np.ndarray
    """int32 [given tokens]"""
    calls: tuple[EarlierCall, ...]
    """Those that were answered, in order; their fuel is 0 where they could not be run."""
    unsure: bool = False
    """Whether another machine could have come to other results."""


def next_given(
    rules: TurnRules, spans: Sequence[Sequence[int]], *, room: int, earlier: Sequence[EarlierCall] = ()
) -> Given | None:
    """Return what is given after the last of `spans`, which was sampled; None where the conversation ends with it.

    room: how many tokens the completion may still have. earlier: the calls that were answered in the spans before. It
    ends where nothing is called, the turns are used up, or no token could be sampled behind what would be given.
    """
    if room <= 1:
        return None
    found = _answers(rules, spans, earlier)
    return found if found is not None and len(found.tokens) < room else None


def _answers(rules: TurnRules, spans: Sequence[Sequence[int]], earlier: Sequence[EarlierCall]) -> Given | None:
    """Run the calls of the last span. earlier: those of the spans before it."""
    manifest, template = rules.manifest, rules.template
    if len(spans) >= 2 * manifest.turns - 1:
        return None
    turn = parse_turn([int(one) for one in spans[-1]], template.rules, template.decode, template.stop_tokens)
    if not turn:
        return None
    messages, calls, unsure = [], list(earlier), False
    for call in turn:
        result = _answer(call, rules, calls)
        messages.append(GivenMessage(result.text, call.name if isinstance(call, ToolCall) else "call"))
        name, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else ("", {})
        calls.append(EarlierCall(name, arguments, result.fuel, result.lasting))
        unsure |= result.unsure
    tokens = bridge(template, spans[-1], messages)
    return Given(tokens, tuple(calls[len(earlier) :]), unsure)


@dataclass(eq=False)
class Conversation:
    """A conversation under way. `add` what the policy samples, then `go_on`, until that is False."""

    rules: TurnRules | None
    """None: it has a single turn."""
    prompt: list[int]
    limit: int
    """Most tokens of the completion."""
    spans: list[list[int]] = field(default_factory=list)
    """Sampled and given in turn."""
    calls: list[EarlierCall] = field(default_factory=list)
    """Those that were answered."""

    @property
    def fuel(self) -> list[int]:
        return [one.fuel for one in self.calls]

    @property
    def length(self) -> int:
        """Return the tokens of the completion so far: the index of the next one."""
        return sum(map(len, self.spans))

    @property
    def tokens(self) -> list[int]:
        """Return the completion so far."""
        return [token for span in self.spans for token in span]

    @property
    def ends(self) -> np.ndarray:
        """Return the spans as a row has them: int32 [spans]."""
        return np.cumsum([len(span) for span in self.spans], dtype=np.int32)

    def add(self, tokens: Sequence[int]) -> None:
        """Append a sampled turn."""
        self.spans.append(list(tokens))

    def go_on(self) -> bool:
        """Run the calls of the last turn and append what is given. Return whether another turn follows. May block."""
        if self.rules is None:
            return False
        room = self.limit - self.length
        given = next_given(self.rules, self.spans, room=room, earlier=self.calls)
        if given is None:
            return False
        self.spans.append(given.tokens.tolist())
        self.calls += given.calls
        return True


@dataclass
class Conversations:
    """Asks a model tasks: whatever generates, checks, counts or shows a prompt asks it here."""

    tokenizer: PreTrainedTokenizerBase
    scorers: Scorers
    stop_tokens: frozenset[int] = frozenset()
    """Of the model; without any, its tokenizer's."""
    vocabulary: int | None = None
    """Size of the model's embedding; None where it is unknown."""
    _rules: dict[bytes, TurnRules] = field(default_factory=dict, init=False, repr=False)
    """By environment manifest."""

    def rules(self, manifest: EnvironmentManifest) -> TurnRules | None:
        """Return how an environment's conversations go on; None where an answer is one turn.

        Raises ConfigError where the model or this version cannot have several turns.
        """
        if manifest.turns is None:
            return None
        key = manifest.to_bytes()
        if key not in self._rules:
            stops, sandbox = self.stop_tokens or frozenset({end_token(self.tokenizer)}), self.scorers.sandbox.call
            made = turn_rules(self.tokenizer, manifest.turns, stops, thinks=manifest.thinks, sandbox=sandbox)
            self._rules[key] = made
        return self._rules[key]

    def prompt(self, scored: tuple[EnvironmentManifest, Task], budget: int) -> np.ndarray:
        """Return the prompt's tokens, int32 [length], length ≥ 1, however long it is.

        Raises MalformedError where the model cannot read them, and as `rules` and `prompt_tokens`.
        """
        manifest, task = scored
        rules = self.rules(manifest)
        tools = [] if rules is None else rules.template.functions
        tokens = prompt_tokens(self.tokenizer, task, budget, thinks=manifest.thinks, tools=tools)
        size = self.vocabulary or len(self.tokenizer)
        if not 0 <= tokens.max(initial=-1) < size:
            raise MalformedError(f"the prompt of task {task.id[:80]!r} has no token, or one beyond the model's {size}")
        return tokens

    def begin(self, scored: tuple[EnvironmentManifest, Task], budget: int, limit: int) -> Conversation:
        """Return a conversation with a prompt, of at most `limit` tokens. Raises as `prompt`."""
        return Conversation(self.rules(scored[0]), self.prompt(scored, budget).tolist(), limit)


def _answer(call: ToolCall | BadCall, rules: TurnRules, earlier: Sequence[EarlierCall]) -> ToolResult:
    """Run a call with what is left of the conversation's fuel, a quarter of the whole at most."""
    if isinstance(call, BadCall):
        return ToolResult(call.text, 0)
    most = -(-rules.manifest.fuel // LEAST_CALLS)
    left = rules.manifest.fuel - sum(one.fuel for one in earlier)
    lasting = [one for one in earlier if one.name == call.name and one.lasting]
    return rules.template.rules.tools[call.name].run(call.arguments, min(left, most), lasting)


def conversation_error(
    rules: TurnRules, tokens: np.ndarray, ends: Sequence[int], call_fuel: Sequence[int], limit: int
) -> tuple[str, bool]:
    """Return in words what of a completion is not what its sampled spans lead to; empty if nothing is.

    And whether another machine could have come to something else. ends: of spans that `spans_error` has found to be
    right. limit: the most tokens of a completion.
    """
    starts = [0, *list(ends)[:-1]]
    spans = [tokens[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
    earlier: list[EarlierCall] = []
    unsure = False
    for index in range(0, len(spans), 2):
        room = limit - int(ends[index])
        expected = _answers(rules, spans[: index + 1], earlier) if room > 1 else None
        unsure |= expected is not None and expected.unsure
        if expected is not None and len(expected.tokens) >= room:
            expected = None
        given = spans[index + 1] if index + 1 < len(spans) else None
        if expected is None and given is not None:
            return f"the conversation goes on after its last turn, number {index // 2}", unsure
        if expected is not None and given is None:
            return f"the conversation ends though turn {index // 2} has calls", unsure
        if expected is not None:
            if expected.tokens.tolist() != given:
                return f"what is given after turn {index // 2} is not what its calls lead to", unsure
            earlier += expected.calls
    if list(call_fuel) != [one.fuel for one in earlier]:
        return "the fuel of the calls is not what they use", unsure
    return "", unsure
