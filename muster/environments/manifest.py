"""What a reward depends on besides the task and the completion, as one hashed document.

An *environment manifest* names an environment and its version, its options, the weights of its score's parts and,
where scoring runs code on a stranger's text, the *scorer*: a WebAssembly component by its hash, its function, and the
fuel and memory that one call may use. The manifests of a run stand in its task set's document, whose hash the terms
name, so whoever knows the terms knows exactly what scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from muster.constants import MICRO
from muster.environments.task import canonical_json
from muster.errors import MalformedError

RUNTIME: Final = "wasmtime-50"
"""What counts fuel: another major version may count otherwise. Changing this makes nodes refuse older manifests."""

MAX_FUEL: Final = 10**12
"""Of one call: about two minutes of a core. A manifest with more is refused."""
MAX_MEMORY: Final = 2 * 1024**3
MAX_PARTS: Final = 8

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_HASH: Final = re.compile(r"0x[0-9a-f]{64}")


@dataclass(frozen=True)
class ScorerManifest:
    """The code that scores where ours alone does not suffice."""

    component: str
    """sha256 of the WebAssembly component, 0x and 64 hex digits."""
    function: str
    """Which of the component's functions."""
    fuel: int = 50_000_000_000
    """Most of one call; about 9 · 10^9 are a second of a core. What runs out scores 0 everywhere."""
    memory: int = 512 * 1024**2
    """Most bytes of one call."""
    runtime: str = RUNTIME

    def __post_init__(self) -> None:
        if not _HASH.fullmatch(self.component):
            raise MalformedError(f"a component named {self.component[:80]!r}, not by its sha256")
        if not _NAME.fullmatch(self.function):
            raise MalformedError(f"a scorer's function named {self.function[:80]!r}")
        if not 1 <= self.fuel <= MAX_FUEL or not 1 <= self.memory <= MAX_MEMORY:
            raise MalformedError(
                f"a scorer with fuel {self.fuel} and {self.memory} bytes of memory; "
                f"1 to {MAX_FUEL} and 1 to {MAX_MEMORY} are allowed"
            )


@dataclass(frozen=True)
class EnvironmentManifest:
    """One environment as a run uses it."""

    name: str
    """Of `muster.environments.registry`."""
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """The environment's own choices (JSON)."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Weight of each part of the score in millionths; they add up to MICRO."""
    scorer: ScorerManifest | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise MalformedError(f"an environment named {self.name[:80]!r}")
        if not 1 <= len(self.weights) <= MAX_PARTS or sum(self.weights.values()) != MICRO:
            raise MalformedError(f"environment {self.name}: its parts' weights must add up to {MICRO}")
        if any(not _NAME.fullmatch(part) or weight < 0 for part, weight in self.weights.items()):
            raise MalformedError(f"environment {self.name}: a part has a bad name or a negative weight")

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the score's parts, in the order in which rows carry them."""
        return tuple(sorted(self.weights))

    def to_document(self) -> dict[str, Any]:
        """Return the manifest as JSON."""
        return {
            "name": self.name,
            "options": dict(self.options),
            "scorer": None if self.scorer is None else asdict(self.scorer),
            "version": self.version,
            "weights": dict(self.weights),
        }

    @classmethod
    def from_document(cls, document: object) -> EnvironmentManifest:
        """Read a manifest from JSON. Raises MalformedError."""
        match document:
            case {
                "name": str(name),
                "options": dict(options),
                "scorer": scorer,
                "version": int(version),
                "weights": dict(weights),
                **rest,
            } if not rest and all(type(weight) is int for weight in weights.values()):
                return cls(name, version, options, weights, None if scorer is None else _scorer(scorer))
        raise MalformedError(f"not an environment manifest: {str(document)[:120]!r}")

    def canonical_bytes(self) -> bytes:
        """Return the form that is hashed."""
        return canonical_json(self.to_document())


def _scorer(document: object) -> ScorerManifest:
    match document:
        case {
            "component": str(component),
            "function": str(function),
            "fuel": int(fuel),
            "memory": int(memory),
            "runtime": str(runtime),
            **rest,
        } if not rest and not isinstance(fuel, bool) and not isinstance(memory, bool):
            return ScorerManifest(component, function, fuel, memory, runtime)
    raise MalformedError(f"not a scorer manifest: {str(document)[:120]!r}")


@dataclass(frozen=True)
class Score:
    """What a completion is worth."""

    parts: tuple[int, ...]
    """Each part in millionths, 0 to MICRO, in the order of `EnvironmentManifest.parts`."""
    fuel: int = 0
    """What all calls of the component used; 0 where none was needed."""
    reason: str = ""
    """Why it is not the full score, for people."""

    def reward(self, manifest: EnvironmentManifest) -> int:
        """Return the weighted sum in millionths, rounded down."""
        return (
            sum(part * manifest.weights[name] for part, name in zip(self.parts, manifest.parts, strict=True)) // MICRO
        )
