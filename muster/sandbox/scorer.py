"""What a call of the sandbox is bound by, and what it comes to. Both are the same on every machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from muster.errors import MalformedError

RUNTIME: Final = "wasmtime-50"
"""What counts fuel: another major version may count otherwise. Changing this makes nodes refuse older manifests."""

MAX_FUEL: Final = 10**11
"""Of one call: some ten seconds of a core. A manifest with more is refused."""
MAX_MEMORY: Final = 2 * 1024**3

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Largest JSON that goes into a call. Changing this changes which completions can be scored."""
MAX_RESULT_BYTES: Final = 4 * 1024 * 1024
"""Largest JSON that comes out. A call that returns more is stopped. Changing this changes rewards."""

_FUNCTION: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_HASH: Final = re.compile(r"0x[0-9a-f]{64}")


@dataclass(frozen=True)
class ScorerManifest:
    """The code that scores where the host's own does not suffice, and how much of the machine one call may use."""

    component: str
    """sha256 of the WebAssembly component as it is stored (`muster.sandbox.component`), 0x and 64 hex digits."""
    function: str
    """Which of the component's functions."""
    fuel: int = 10_000_000_000
    """Most of one call: about a second of a core. What runs out scores 0 everywhere."""
    memory: int = 512 * 1024**2
    """Most bytes of one call."""
    runtime: str = RUNTIME

    def __post_init__(self) -> None:
        if not _HASH.fullmatch(self.component):
            raise MalformedError(f"a component named {self.component[:80]!r}, not by its sha256")
        if not _FUNCTION.fullmatch(self.function):
            raise MalformedError(f"a scorer's function named {self.function[:80]!r}")
        if not 1 <= self.fuel <= MAX_FUEL or not 1 <= self.memory <= MAX_MEMORY:
            raise MalformedError(
                f"a scorer with fuel {self.fuel} and {self.memory} bytes of memory; "
                f"1 to {MAX_FUEL} and 1 to {MAX_MEMORY} are allowed"
            )
        if self.runtime != RUNTIME:
            raise MalformedError(f"a scorer for {self.runtime[:40]!r}; this version of Muster runs {RUNTIME}")

    @classmethod
    def from_document(cls, document: object) -> ScorerManifest:
        """Read a scorer from JSON. Raises MalformedError."""
        match document:
            case {
                "component": str(component),
                "function": str(function),
                "fuel": int(fuel),
                "memory": int(memory),
                "runtime": str(runtime),
                **rest,
            } if not rest and not isinstance(fuel, bool) and not isinstance(memory, bool):
                return cls(component, function, fuel, memory, runtime)
        raise MalformedError(f"not a scorer manifest: {str(document)[:120]!r}")


STACK: Final = "stack"
"""Why a call was stopped whose recursion was deeper than the machine's stack. Processors may differ in that: a score
that such a call led to is nobody's to judge."""


@dataclass(frozen=True)
class Outcome:
    """What one call of a component's function came to."""

    value: Any
    """The JSON value that the function returned; None where it was stopped."""
    fuel: int
    """What the call used; the whole limit where it ran out."""
    stopped: str = ""
    """Why it returned nothing: `fuel`, `stack`, `result`, or the guest's failure. Empty when it returned."""
