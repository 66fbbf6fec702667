"""What a tool is to the rest of the house, and what its arguments may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

CallStyle = Literal["json", "xml", "llama", "mistral", "olmo3", "seed"]
"""How a policy writes calls: see `muster.protocol.turns.calls`."""

ParameterType = Literal["string", "integer", "number", "boolean", "array", "object"]

MAX_TURNS: Final = 64
"""Most turns of a completion that the policy samples. Changing this changes what is `out_of_bounds`."""

TOOL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}", re.ASCII)
"""Of tools and of their parameters."""


@dataclass(frozen=True)
class Parameter:
    """One argument that a call of a tool may have."""

    type: ParameterType
    description: str
    is_required: bool = True


@dataclass(frozen=True)
class ToolResult:
    """What a call came to."""

    text: str
    """What the policy reads; an error too is a text."""
    fuel: int
    """What the call used, 0 to its limit: the same number on every machine."""
    unsure: bool = False
    """Whether another machine could have come to something else: nobody is accused by it."""
    lasting: bool = True
    """Whether later calls can see what it did: not where it exited, trapped or ran out."""


@dataclass(frozen=True)
class EarlierCall:
    """A call that the conversation has answered, and how it ended."""

    name: str
    """Of the tool; empty where the call could not be read."""
    arguments: Mapping[str, Any]
    fuel: int
    lasting: bool


class Tool(Protocol):
    """A pure function of its arguments, its fuel and the conversation's earlier calls: no clock, chance or network.

    It never raises for what a policy wrote, and it is bounded by its fuel. Out of fuel is a result.
    """

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Parameter]: ...

    @property
    def code(self) -> str:
        """Return what else its results depend on: a version, or hashes of code and data. Part of `Terms.tools_root`."""
        ...

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        """Run a call whose arguments `arguments_error` has found to be right, with at most so much fuel.

        earlier: the conversation's lasting calls of this tool, in order. Raises UnreachableError where this machine
        cannot tell.
        """
        ...


def function_schema(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates want it: OpenAI's function with a JSON schema of its parameters."""
    properties = {name: {"type": one.type, "description": one.description} for name, one in tool.parameters.items()}
    required = [name for name, one in tool.parameters.items() if one.is_required]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def arguments_error(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return in words what is wrong with a call's arguments; empty if nothing is."""
    for name, parameter in tool.parameters.items():
        if name not in arguments:
            if parameter.is_required:
                return f"the argument {name} is missing"
        elif not _IS[parameter.type](arguments[name]):
            return f"the argument {name} is not of the type {parameter.type}"
    if any(name not in tool.parameters for name in arguments):
        return f"there is an argument that {tool.name} does not know; it knows {', '.join(tool.parameters) or 'none'}"
    return ""


def _is_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


_IS: Final[Mapping[str, Callable[[object], bool]]] = MappingProxyType(
    {
        "string": lambda value: isinstance(value, str),
        "integer": lambda value: type(value) is int,
        "number": _is_number,
        "boolean": lambda value: isinstance(value, bool),
        "array": lambda value: isinstance(value, list),
        "object": lambda value: isinstance(value, dict),
    }
)
