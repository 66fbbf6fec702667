"""The door of calls: what a model's chat template renders as calls must be read back equal by the run's parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, get_args

from muster.environments.tools.base import EarlierCall, Parameter, ParameterType, Tool, ToolResult
from muster.errors import ConfigError, MalformedError
from muster.protocol.turns.calls import STYLES, ToolCall, parse_turn

if TYPE_CHECKING:
    from muster.protocol.turns.bridge import TurnTemplate

_SAMPLES: Final[Mapping[ParameterType, tuple[Any, ...]]] = {
    "string": ("2 + 2", "", "\né 東 😀 \"q\" 'x' \\d <b>\n  y\n"),
    "integer": (7, 0, -12),
    "number": (0.5, 3, -1e-07),
    "boolean": (True, False, True),
    "array": ([1, "a", None, [True, {}]], [], ["é", "'", '"', 0.5]),
    "object": ({"a": {"b": [1.5, False, None]}}, {}, {"é": "", "c d": '\\ "'}),
}
_TEXT: Final = "Let me see."


class StyleError(ConfigError):
    """A model's calls are not read in a style; another one may do."""


@dataclass(frozen=True)
class _Probe:
    """Does nothing; it has a parameter of each type."""

    name: str = "probe_of_types"
    description: str = "Takes one argument of each type."
    code: str = "1"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {f"a_{kind}": Parameter(kind, f"some {kind}", is_required=False) for kind in get_args(ParameterType)}

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        return ToolResult("", 0)


def takes_one_call(template: TurnTemplate) -> bool:
    """Return whether the template refuses several calls of a turn, once all calls that it renders are read back equal.

    Raises StyleError where one is read otherwise, ConfigError where it shows no call or not which tools there are.
    """
    rules = template.rules
    if not rules.tools:
        return False
    tools: dict[str, Tool] = {_Probe.name: _Probe(), **rules.tools}
    probing = replace(template, rules=replace(rules, tools=tools))
    with suppress(MalformedError):  # without tools
        if probing.prompt() == replace(template, rules=replace(rules, tools={})).prompt():
            raise ConfigError("the chat template does not say which tools there are", hint="use a model made for tools")
    for tool in tools.values():
        if not sum(_is_read(probing, [one], *said) for one in _calls_of(tool) for said in _said(probing)):
            raise ConfigError(f"the chat template shows no call of {tool.name}", hint="use a model made for tools")
    three = [next(_calls_of(tool)) for tool in (*tools.values(), *tools.values(), *tools.values())][:3]
    return not sum(_is_read(probing, three, *said) for said in _said(probing))


def _calls_of(tool: Tool) -> Iterator[ToolCall]:
    for place in range(3):
        yield ToolCall(tool.name, {name: _SAMPLES[one.type][place] for name, one in tool.parameters.items()})
    yield ToolCall(tool.name, {name: _SAMPLES[one.type][0] for name, one in tool.parameters.items() if one.is_required})


def _said(template: TurnTemplate) -> Iterator[tuple[str, str]]:
    """Yield what stands before calls, and what was thought before: nothing, a text, thinking in two ways."""
    opens, closes = STYLES[template.rules.style].thinking
    return iter((("", ""), (_TEXT, ""), (_TEXT, "hm"), (f"{opens}\nhm\n{closes}\n\n{_TEXT}", "")))


def _is_read(template: TurnTemplate, calls: Sequence[ToolCall], text: str, thought: str) -> bool:
    """Return whether the template renders the calls; False where it refuses or omits them, or no tokens spell them.

    Raises StyleError where what it renders is read otherwise.
    """
    try:
        rendered, opens_thinking = template.turn_text(calls, text, thought)
    except MalformedError:
        return False
    if not any(one.name in rendered for one in calls):
        return False
    ids = [int(one) for one in template.tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"]]
    if set(rendered) - set(template.decode(ids)):  # it cannot be sampled either
        return False
    rules = replace(template.rules, opens_thinking=opens_thinking)
    found = parse_turn(ids, rules, template.decode, template.stop_tokens).calls
    if _shown(found) != _shown(calls):
        raise StyleError(
            f"the chat template writes {rendered.strip()[:200]!r}, which the style {template.rules.style} reads as "
            f"{_shown(found)[:200] if found else 'no call'}",
            hint="use a model whose calls are written in one of the styles of docs/understand/turns.md",
        )
    return True


def _shown(calls: Sequence[Any]) -> str:
    pairs = [(one.name, dict(one.arguments)) if isinstance(one, ToolCall) else one.reason for one in calls]
    return json.dumps(pairs, ensure_ascii=False, sort_keys=True)
