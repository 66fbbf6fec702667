"""Tools that run code in the deterministic sandbox: `python`, and those of other authors, by their Python source.

Both call the function `code` of the component that the manifest names (`muster/sandbox/guest/code_runner.py`), in a
fresh instance each time. So a tool keeps nothing, and `python` runs the conversation's earlier calls again, unheard. It
leaves out those that exited, trapped or ran out, and what it runs again is not paid again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from muster.environments.tools.base import EarlierCall, Parameter, ToolResult
from muster.runtime.documents import few
from muster.sandbox.scorer import STACK, Outcome, ScorerManifest

SandboxCall = Callable[[ScorerManifest, Any], Outcome]
"""`muster.sandbox.client.Sandbox.call`."""

MAX_SOURCE: Final = 64 * 1024
"""Characters of an author's source. Changing this changes which manifests nodes refuse."""

_PYTHON: Final = """
def converse(codes):  # its names are its own: whatever a code does to builtins and modules, the next one is run
    import sys, types
    from ast import Expr, Expression, Module, PyCF_ONLY_AST
    from builtins import BaseException, MemoryError, SystemExit, compile, eval, exec, isinstance, print, repr, str, type
    from io import TextIOWrapper
    raw, main = sys.stdout.buffer, types.ModuleType("__main__")
    sys.modules["__main__"] = main
    for code in codes:
        lasting = True
        raw.seek(0)
        raw.truncate()
        sys.stdout = TextIOWrapper(raw, encoding="utf-8", newline="\\n", write_through=True)
        try:
            body = compile(code, "<call>", "exec", PyCF_ONLY_AST).body
            last = body.pop() if body and isinstance(body[-1], Expr) else None
            exec(compile(Module(body, []), "<call>", "exec"), main.__dict__)
            if last is not None:
                value = eval(compile(Expression(last.value), "<call>", "eval"), main.__dict__)
                if value is not None:
                    print(repr(value))
        except BaseException as error:
            lasting = not isinstance(error, (SystemExit, MemoryError))
            if not raw.flooded:
                raw.write(f"{type(error).__name__}: {error}\\n".encode("utf-8", "backslashreplace"))
    if raw.flooded:
        return ["error: too much output", False]
    return [raw.getvalue().decode("utf-8", "replace"), lasting]
"""

_SOURCE: Final = """
def _call(order):
    from json import dumps, loads
    source, arguments = loads(order)
    try:
        exec(compile(source, "<tool>", "exec", dont_inherit=True), globals())
        value = run(**arguments)
        return value if isinstance(value, str) else dumps(value, ensure_ascii=False, allow_nan=False)
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}"
"""

_STOPPED: Final[Mapping[str, str]] = {
    "": "no text came back",
    "fuel": "out of fuel",
    "result": "the result is no valid text, or too large",
    "trap": "the code ended its process, or asked for what the sandbox lacks",
}
"""What the policy is told, by why a call was stopped. Changing this changes given tokens."""

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


@dataclass(frozen=True)
class AuthoredTool:
    """Another author's tool: a source that defines `run`, which gets the arguments and returns a text."""

    name: _Name
    description: Annotated[str, Field(min_length=1, max_length=1024)]
    parameters: Annotated[Mapping[_Name, Parameter], few(16)]
    source: Annotated[str, Field(min_length=1, max_length=MAX_SOURCE)]


@dataclass(frozen=True)
class PythonTool:
    """The tool `python`. A call costs the fuel of the conversation's earlier calls as well, which run again."""

    scorer: ScorerManifest
    call: SandboxCall
    name: str = "python"
    description: str = "Runs Python: what it prints, and the value of its last expression. Names stay defined."
    parameters: Mapping[str, Parameter] = field(
        default_factory=lambda: MappingProxyType({"code": Parameter("string", "The code")})
    )

    @property
    def code(self) -> str:
        return f"{self.scorer.component} {sha256(_PYTHON.encode()).hexdigest()}"

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        """Run `code` after that of the earlier calls, whose fuel was paid: it comes on top of the limit."""
        codes = [one.arguments["code"] for one in earlier]
        payload = {"kind": "function", "code": _PYTHON, "entry": "converse", "input": [[*codes, arguments["code"]]]}
        return _result(self.scorer, self.call, payload, fuel, sum(one.fuel for one in earlier))


@dataclass(frozen=True)
class SourceTool:
    """An author's tool, ready to run."""

    tool: AuthoredTool
    scorer: ScorerManifest
    sandbox: SandboxCall

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self.tool.parameters

    @property
    def code(self) -> str:
        whole = (_SOURCE + self.tool.source).encode("utf-8", "surrogatepass")
        return f"{self.scorer.component} {sha256(whole).hexdigest()}"

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        """Call `run` of the source with the arguments."""
        # As a text: what looks like typed JSON to the guest is data of the policy's.
        order = json.dumps([self.tool.source, dict(arguments)])
        payload = {"kind": "function", "code": _SOURCE, "entry": "_call", "input": [order]}
        return _result(self.scorer, self.sandbox, payload, fuel)


def _result(scorer: ScorerManifest, call: SandboxCall, payload: Any, fuel: int, paid: int = 0) -> ToolResult:
    """Return what a call comes to that may use `fuel` beside the fuel that was paid before."""
    limit = min(fuel, scorer.fuel)
    if limit < 1:
        return ToolResult("error: out of fuel", 0, lasting=False)
    outcome = call(replace(scorer, function="code", fuel=paid + limit), payload)
    used = max(0, outcome.fuel - paid)  # less where an earlier result took more to hand over than this one
    match outcome.value:
        case {"error": str(error)}:
            return ToolResult(f"error: {error}", used, lasting=False)
        case {"value": str(text)}:
            return ToolResult(text, used)
        case {"value": [str(text), bool(lasting)]}:
            return ToolResult(text, used, lasting=lasting)
    why = _STOPPED.get(outcome.stopped, f"stopped: {outcome.stopped}")
    used = limit if outcome.stopped == STACK else used
    return ToolResult(f"error: {why}"[:200], used, outcome.unsure, lasting=False)
