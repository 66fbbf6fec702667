"""Tools that run code in the deterministic sandbox: `python`, and those of other authors, by their Python source.

Both call the function `code` of the component that the manifest names (`muster/sandbox/guest/code_runner.py`), in a
fresh instance each time. So a tool keeps nothing, and `python` runs the conversation's earlier calls again, unheard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from muster.environments.tools.base import Parameter, ToolResult
from muster.runtime.documents import few
from muster.sandbox.scorer import STACK, Outcome, ScorerManifest

SandboxCall = Callable[[ScorerManifest, Any], Outcome]
"""`muster.sandbox.client.Sandbox.call`."""

MAX_SOURCE: Final = 64 * 1024
"""Characters of an author's source. Changing this changes which manifests nodes refuse."""

_NO_FILES: Final = """
import json, sys
def no_files(event, arguments):  # for a syntax error CPython looks for the file, and the component has none to open
    if event == "open":
        raise PermissionError("there are no files here")
sys.addaudithook(no_files)
"""

_PYTHON: Final = (
    _NO_FILES
    + """import ast, contextlib, io
names = {"__name__": "__main__"}
def run(code):
    try:
        body = ast.parse(code, "<call>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<call>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<call>", "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}")
*earlier, code = json.loads(sys.stdin.read())
for one in earlier:
    with contextlib.redirect_stdout(io.StringIO()):
        run(one)
run(code)
"""
)

_SOURCE: Final = (
    _NO_FILES
    + """def _call(order):
    source, arguments = json.loads(order)
    try:
        exec(compile(source, "<tool>", "exec", dont_inherit=True), globals())
        return run(**arguments)
    except BaseException as error:
        return f"error: {type(error).__name__}: {error}"
"""
)

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

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[Mapping[str, Any]] = ()) -> ToolResult:
        """Run `code` after that of the earlier calls."""
        codes = json.dumps([one["code"] for one in (*earlier, arguments)])
        return _result(self.scorer, self.call, {"kind": "stdin", "code": _PYTHON, "input": codes}, fuel, "text")


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

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[Mapping[str, Any]] = ()) -> ToolResult:
        """Call `run` of the source with the arguments."""
        # As a text: what looks like typed JSON to the guest is data of the policy's.
        order = json.dumps([self.tool.source, dict(arguments)])
        payload = {"kind": "function", "code": _SOURCE, "entry": "_call", "input": [order]}
        return _result(self.scorer, self.sandbox, payload, fuel, "value")


def _result(scorer: ScorerManifest, call: SandboxCall, payload: Any, fuel: int, key: str) -> ToolResult:
    limit = min(fuel, scorer.fuel)
    if limit < 1:
        return ToolResult("error: out of fuel", 0)
    outcome = call(replace(scorer, function="code", fuel=limit), payload)
    match outcome.value:
        case {"error": str(error)}:
            return ToolResult(f"error: {error}", outcome.fuel)
        case dict(found) if isinstance(found.get(key), str):
            return ToolResult(found[key], outcome.fuel)
    why = _STOPPED.get(outcome.stopped, f"stopped: {outcome.stopped}")
    return ToolResult(f"error: {why}"[:200], limit if outcome.stopped == STACK else outcome.fuel, outcome.unsure)
