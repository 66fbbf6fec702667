"""Which tools there are. To add one, write its module and name it here; authors bring theirs in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from muster.environments.tools.base import Tool, function_schema
from muster.environments.tools.calculator import Calculator
from muster.environments.tools.manifest import TurnsManifest
from muster.environments.tools.sandboxed import PythonTool, SandboxCall, SourceTool
from muster.environments.tools.search import Search
from muster.errors import ConfigError, UnreachableError
from muster.runtime.documents import canonical_json
from muster.sandbox.scorer import Outcome, ScorerManifest

NO_TOOLS: Final = bytes(32)
"""`Terms.tools_root` of a run without tools."""
RULES: Final = 2
"""Version of what all tools share: how results are cut, and how much fuel a call has. A part of `Terms.tools_root`."""


def _no_sandbox(_: ScorerManifest, __: object) -> Outcome:
    raise UnreachableError("tools that run code need a sandbox")


def _python(manifest: TurnsManifest, call: SandboxCall) -> Tool:
    assert manifest.sandbox is not None, "the manifest was not checked"
    return PythonTool(manifest.sandbox, call)


TOOLS: Final[Mapping[str, Callable[[TurnsManifest, SandboxCall], Tool]]] = MappingProxyType(
    {
        "calculator": lambda manifest, call: Calculator(),
        "python": _python,
        "search": lambda manifest, call: Search(manifest.corpus),
    }
)
"""What makes each tool, by its name."""


def make_tools(manifest: TurnsManifest, call: SandboxCall = _no_sandbox) -> dict[str, Tool]:
    """Return the tools of an environment by name. Raises ConfigError for one that this version does not have."""
    if unknown := [name for name in manifest.tools if name not in TOOLS]:
        raise ConfigError(f"this version has no tool {unknown[0]}", hint="use the release that the run's terms name")
    made: list[Tool] = [TOOLS[name](manifest, call) for name in manifest.tools]
    if manifest.sandbox is not None:
        made += [SourceTool(one, manifest.sandbox, call) for one in manifest.authored]
    return {tool.name: tool for tool in made}


def tools_root(manifests: Iterable[TurnsManifest | None]) -> bytes:
    """Return `Terms.tools_root`: sha256 of the sorted definitions of all tools; zero exactly where there is none.

    A definition is what prompts say of a tool, and what its results depend on. Raises as `make_tools`.
    """
    tools = [tool for one in manifests if one is not None for tool in make_tools(one).values()]
    definitions = {canonical_json(function_schema(tool) | {"code": tool.code, "rules": RULES}) for tool in tools}
    return sha256(b"\n".join(sorted(definitions))).digest() if definitions else NO_TOOLS
