"""What a reward depends on besides the task and the completion, as one hashed document.

An *environment manifest* names an environment and its version, its options, the weights of its score's parts and,
where scoring runs code on a stranger's text, the *scorer*: a WebAssembly component by its hash, its function, and the
fuel and memory that one call may use. The manifests of a run stand in its task set's document, whose hash the terms
name, so the terms say exactly what scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field

from muster.constants import MICRO
from muster.environments.tools.manifest import TurnsManifest
from muster.errors import MalformedError
from muster.runtime.documents import StrictDocument, canonical_json, few
from muster.sandbox.scorer import ScorerManifest

MAX_PARTS: Final = 8
MAX_MANIFEST_BYTES: Final = 16 * 1024**2
"""As many as the document of its task set may have."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


def _not_native(scorer: Any) -> Any:
    if isinstance(scorer, Mapping) and "image" in scorer:
        raise _native_error()
    return scorer


def _native_error() -> MalformedError:
    return MalformedError(
        "an environment manifest with runner=native: Muster no longer runs native programs",
        hint="make the task set again with runner=component, without the tasks whose programs need numpy or C",
    )


@dataclass(frozen=True)
class EnvironmentManifest(StrictDocument):
    """One environment as a run uses it."""

    what: ClassVar = "an environment manifest"
    max_bytes: ClassVar = MAX_MANIFEST_BYTES

    name: str
    """Of `muster.environments.registry`."""
    version: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """The environment's own choices (JSON)."""
    weights: Annotated[Mapping[str, int], few(MAX_PARTS)] = field(default_factory=dict)
    """Weight of each part of the score in millionths; they add up to MICRO."""
    scorer: Annotated[ScorerManifest | None, BeforeValidator(_not_native)] = None
    turns: Annotated[TurnsManifest | None, Field(exclude_if=lambda turns: turns is None)] = None
    """Tools and turns. Without it a completion is one turn, and the document does not name it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise MalformedError(f"an environment named {self.name[:80]!r}")
        if not 1 <= len(self.weights) <= MAX_PARTS or sum(self.weights.values()) != MICRO:
            raise MalformedError(f"environment {self.name}: its parts' weights must add up to {MICRO}")
        if any(not _NAME.fullmatch(part) or weight < 0 for part, weight in self.weights.items()):
            raise MalformedError(f"environment {self.name}: a part has a bad name or a negative weight")
        if self.turns is not None and list(self.turns.tools) != sorted(set(self.turns.tools)):
            raise MalformedError(f"environment {self.name}: its tools are not in order, or one stands there twice")
        if self.options.get("runner") == "native":
            raise _native_error()
        canonical_json(dict(self.options))  # raises for what JSON lacks

    @property
    def thinks(self) -> bool:
        """Return whether a completion is to begin with thinking, whose length the prompt announces."""
        return self.options.get("thinking") != "none"

    @property
    def components(self) -> tuple[str, ...]:
        """Return the hashes of the files that nodes need to score, and to run its tools."""
        named = (self.scorer, self.turns and self.turns.sandbox)
        return tuple(one.component for one in named if one is not None)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the score's parts, in the order in which rows carry them."""
        return tuple(sorted(self.weights))


@dataclass(frozen=True)
class Score:
    """What a completion is worth."""

    parts: tuple[int, ...]
    """Each part in millionths, 0 to MICRO, in the order of `EnvironmentManifest.parts`."""
    fuel: int = 0
    """What all calls of the component used; 0 where none was needed."""
    reason: str = ""
    """Why it is not the full score, for people."""
    unsure: bool = False
    """Whether another machine could have come to another score: a call was deeper than the stack."""

    def reward(self, manifest: EnvironmentManifest) -> int:
        """Return the weighted sum in millionths, rounded down."""
        return (
            sum(part * manifest.weights[name] for part, name in zip(self.parts, manifest.parts, strict=True)) // MICRO
        )
