"""Lies about what tools run by: another corpus, another source, and a state that another conversation left.

Static checks see these alone, so the rows' turns are written and not sampled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from muster.environments.tools.base import EarlierCall, Parameter, Tool, ToolResult
from muster.environments.tools.manifest import TurnsManifest
from muster.environments.tools.sandboxed import AuthoredTool, SourceTool
from muster.environments.tools.search import Document, Search
from muster.models.init import ModelShape, make_model, save_model
from muster.protocol.draws import Draw, DrawSource
from muster.protocol.turns.conversation import Conversation, TurnRules
from muster.rollouts.schema import Rollout
from muster.sandbox.component import local_component
from muster.sandbox.scorer import ScorerManifest
from muster.verification.rules import Rules
from testbed.samples.tool_model import STOP_TEXT, tool_rules, tool_tasks, tool_terms, tool_tokenizer
from worker.engine import Generation
from worker.rollouts import Assignment, make_requests, make_rollouts

CORPUS: Final = (Document("ape", "An ape eats fruit."), Document("bee", "A bee makes honey."))
TALKS: Final[Sequence[Sequence[tuple[str, Mapping[str, Any]]]]] = (
    (("python", {"code": "a = 40"}), ("python", {"code": "a + 2"})),
    (("python", {"code": "a + 2"}), ("search", {"query": "ape"})),
    (("search", {"query": "honey"}), ("double", {"number": 21}), ("python", {"code": "print(a)"})),
)
"""Calls by conversation, one a turn; the second and the third ask for a name that only the first has."""


def code_turns() -> TurnsManifest:
    """Return the manifest of an environment with all tools that run code or have data."""
    source = "def run(number):\n    return str(2 * number)\n"
    double = AuthoredTool("double", "Doubles.", {"number": Parameter("integer", "The number")}, source)
    sandbox = ScorerManifest(local_component().hash, "code")
    return TurnsManifest(("python", "search"), fuel=10**9, sandbox=sandbox, corpus=CORPUS, authored=(double,))


def code_rules(folder: Path) -> Rules:
    """Return the rules of a run with these tools and an untrained model."""
    tasks, tokenizer = tool_tasks(folder / "tasks", code_turns()), tool_tokenizer()
    shape = ModelShape(hidden=16, layers=1, heads=2, intermediate=16, context=1024)
    save_model(make_model(tokenizer, shape, 0), tokenizer, folder / "model")
    return tool_rules(folder / "model", tasks, tool_terms(tasks, max_completion_tokens=600))


def rows_by(rules: Rules, lie: Callable[[Tool], Tool] = lambda tool: tool) -> tuple[list[Rollout], Draw]:
    """Return a row of each of TALKS, answered by tools that `lie` has replaced, and the draw."""
    assignment = Assignment(1, 0, rules.draw(DrawSource("0x" + "aa" * 20, bytes(32), 0), 0))
    requests, made = make_requests(assignment, rules)[: len(TALKS)], []
    for request, calls in zip(requests, TALKS, strict=True):
        assert request.turns is not None, "these tasks have no tools"
        talk = Conversation(with_tools(request.turns, lie), request.prompt_tokens.tolist(), request.max_tokens)
        texts = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        for text in [*(f"<tool_call>\n{one}\n</tool_call>" for one in texts), "42"]:
            talk.add(rules.tokenizer(text + STOP_TEXT, add_special_tokens=False)["input_ids"])
            talk.go_on()
        sampled = sum(map(len, talk.spans[::2]))
        logprobs, fuel = np.full(sampled, -0.5, np.float32), np.array(talk.fuel, np.uint64)
        made.append(Generation(np.array(talk.tokens, np.int32), logprobs, "stop", b"", talk.ends, fuel))
    return make_rollouts(assignment, rules, requests, made), assignment.draw


def with_tools(turns: TurnRules, lie: Callable[[Tool], Tool]) -> TurnRules:
    tools = {name: lie(tool) for name, tool in turns.template.rules.tools.items()}
    return replace(turns, template=replace(turns.template, rules=replace(turns.template.rules, tools=tools)))


@dataclass(frozen=True)
class Carrying:
    """A tool that goes on from what another conversation left."""

    tool: Tool
    left: Sequence[EarlierCall] = (EarlierCall("python", {"code": "a = 40"}, 0, lasting=True),)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tool, name)

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        if self.tool.name == "python":
            earlier = [*self.left, *earlier]
        return self.tool.run(arguments, fuel, earlier)


def other_corpus(tool: Tool) -> Tool:
    """Search documents in which one word is another."""
    texts = [replace(one, text=one.text.replace("fruit", "stones").replace("honey", "honey, now")) for one in CORPUS]
    return Search(texts) if tool.name == "search" else tool


def other_source(tool: Tool) -> Tool:
    """Run an author's tool by a source that a new version of it may have."""
    if not isinstance(tool, SourceTool):
        return tool
    return replace(tool, tool=replace(tool.tool, source=tool.tool.source.replace("2 *", "2.0 *")))


CODE_ADVERSARIES: Final[Mapping[str, Callable[[Tool], Tool]]] = {
    "another corpus": other_corpus,
    "authored tool by another source": other_source,
    "state carried across conversations": lambda tool: cast(Tool, Carrying(tool)),
}
"""By name: what each puts in a tool's place."""
