"""What follows a sampled turn: its calls are run and bridged to the next one, or the conversation ends.

`next_given` is all that a worker needs to go on, and `conversation_error` all that a check needs of what a worker
did: the same function over the same ids, compared token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.environments.tools.base import ToolResult, function_schema
from muster.environments.tools.manifest import TurnsManifest
from muster.protocol.turns.bridge import GivenMessage, TurnTemplate, bridge, call_rules, turn_template
from muster.protocol.turns.calls import BadCall, ToolCall, parse_turn, thinking_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, eq=False)
class TurnRules:
    """How the conversations of an environment go on."""

    manifest: TurnsManifest
    template: TurnTemplate

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Return what the prompt says of the tools."""
        return [function_schema(tool) for tool in self.template.rules.tools.values()]


def turn_rules(
    tokenizer: PreTrainedTokenizerBase, manifest: TurnsManifest, stop_tokens: frozenset[int], *, thinks: bool
) -> TurnRules:
    """Return the rules of an environment's conversations with a model's tokenizer.

    Raises ConfigError in words where its chat template or its tokens do not allow several turns.
    """
    rules = call_rules(tokenizer, manifest)
    limit = manifest.result_characters
    return TurnRules(manifest, turn_template(tokenizer, rules, stop_tokens, thinks=thinks, limit=limit))


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
    fuel: tuple[int, ...]
    """Of each call that was answered, in order; 0 of those that could not be run."""


def next_given(
    rules: TurnRules, prompt: Sequence[int], spans: Sequence[Sequence[int]], *, room: int, used: int = 0
) -> Given | None:
    """Return what is given after the last of `spans`, which was sampled; None where the conversation ends with it.

    room: how many tokens the completion may still have. used: fuel of the conversation's earlier calls. It ends where
    nothing is called, the turns are used up, or no token could be sampled behind what would be given.
    """
    manifest, template = rules.manifest, rules.template
    if len(spans) >= 2 * manifest.turns - 1 or room <= 1:
        return None
    turn = parse_turn([int(one) for one in spans[-1]], template.rules, template.decode, template.stop_tokens)
    if not turn.calls:
        return None
    messages, fuel = [], []
    for call in turn.calls:
        result = _answer(call, rules, manifest.fuel - used - sum(fuel))
        messages.append(GivenMessage("tool", result.text, call.name if isinstance(call, ToolCall) else "call"))
        fuel.append(result.fuel)
    tokens = bridge(template, prompt, spans, messages)
    return Given(tokens, tuple(fuel)) if len(tokens) < room else None


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
    fuel: list[int] = field(default_factory=list)
    """Of each call that was answered."""

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
        room, used = self.limit - self.length, sum(self.fuel)
        given = next_given(self.rules, self.prompt, self.spans, room=room, used=used)
        if given is None:
            return False
        self.spans.append(given.tokens.tolist())
        self.fuel += given.fuel
        return True


def _answer(call: ToolCall | BadCall, rules: TurnRules, fuel: int) -> ToolResult:
    if isinstance(call, BadCall):
        return ToolResult(call.text, 0)
    return rules.template.rules.tools[call.name].run(call.arguments, fuel)


def conversation_error(
    rules: TurnRules,
    prompt: Sequence[int],
    tokens: np.ndarray,
    ends: Sequence[int],
    call_fuel: Sequence[int],
    limit: int,
) -> str:
    """Return in words what of a completion is not what its sampled spans lead to; empty if nothing is.

    ends: of spans that `spans_error` has found to be right. limit: the most tokens of a completion.
    """
    starts = [0, *list(ends)[:-1]]
    spans = [tokens[start:end].tolist() for start, end in zip(starts, ends, strict=True)]
    fuel: list[int] = []
    for index in range(0, len(spans), 2):
        room = limit - int(ends[index])
        expected = next_given(rules, prompt, spans[: index + 1], room=room, used=sum(fuel))
        given = spans[index + 1] if index + 1 < len(spans) else None
        if expected is None and given is not None:
            return f"the conversation goes on after its last turn, number {index // 2}"
        if expected is not None and given is None:
            return f"the conversation ends though turn {index // 2} has calls"
        if expected is not None:
            if expected.tokens.tolist() != given:
                return f"what is given after turn {index // 2} is not what its calls lead to"
            fuel += expected.fuel
    if list(call_fuel) != fuel:
        return "the fuel of the calls is not what they use"
    return ""
