"""What a call of the sandbox is bound by, and what it comes to: both are the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

RUNTIME: Final = "wasmtime-50"
"""What counts fuel: another major version may count otherwise. Changing this makes nodes refuse older manifests."""

MAX_FUEL: Final = 10**11
"""Of one call: some ten seconds of a core. A manifest with more is refused."""
MAX_MEMORY: Final = 2 * 1024**3

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Largest JSON that goes into a call. Changing this changes which completions can be scored."""
MAX_RESULT_BYTES: Final = 4 * 1024 * 1024
"""Largest JSON that comes out. A call that returns more is stopped. Changing this changes rewards."""

_Hash = Annotated[str, Field(pattern=r"^0x[0-9a-f]{64}$")]


@dataclass(frozen=True)
class ScorerManifest:
    """The code that scores where the host's own does not suffice, and how much of the machine one call may use."""

    component: _Hash
    """sha256 of the WebAssembly component as it is stored (`muster.sandbox.component`), 0x and 64 hex digits."""
    function: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """Which of the component's functions."""
    fuel: Annotated[int, Field(ge=1, le=MAX_FUEL)] = 10_000_000_000
    """Most of one call: about a second of a core. What runs out scores 0 everywhere."""
    memory: Annotated[int, Field(ge=1, le=MAX_MEMORY)] = 512 * 1024**2
    """Most bytes of one call."""
    runtime: Literal["wasmtime-50"] = RUNTIME


STACK: Final = "stack"
"""Why a call was stopped whose recursion was deeper than the machine's stack. Processors may differ in that, so a score
of such a call is not judged."""


@dataclass(frozen=True)
class Outcome:
    """What one call of a component's function came to."""

    value: Any
    """The JSON value that the function returned; None where it was stopped."""
    fuel: int
    """What the call used; the whole limit where it ran out."""
    stopped: str = ""
    """Why it returned nothing: `fuel`, `stack`, `result` or the guest's failure. Empty when it returned."""

    @property
    def unsure(self) -> bool:
        """Return whether another machine could have come to something else."""
        return self.stopped == STACK
