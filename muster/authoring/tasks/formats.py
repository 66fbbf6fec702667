"""What a published data set's format is to the importer: its columns, and how a row becomes a task."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from muster.authoring.tasks.rows import Row
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import own_manifest
from muster.environments.task import MAX_ID_CHARS, ChatMessage, Task
from muster.errors import MalformedError

MAX_QUESTION: Final = 400_000
"""Most characters of a question."""


@dataclass(frozen=True)
class Format:
    """One format. `convert` raises MalformedError, whose text is the reason why the row is left out."""

    name: str
    columns: tuple[str, ...]
    """Those that every row needs."""
    convert: Callable[[Row], tuple[str, Task]]
    """From a row to the environment's name and the task."""
    optional: tuple[str, ...] = ()
    environments: tuple[str, ...] = ("math",)
    """Those that `convert` names."""
    manifests: Mapping[str, EnvironmentManifest] = field(default_factory=dict)
    """By the names of these environments; others have their defaults."""

    def manifest(self, environment: str) -> EnvironmentManifest:
        """Return what scores tasks of an environment. Raises as `own_manifest`."""
        return self.manifests.get(environment) or own_manifest(environment)


def text_of(row: Row, column: str, limit: int = MAX_QUESTION) -> str:
    """Return a cell that must hold a text. Raises MalformedError."""
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise MalformedError(f"{column} is no text")
    if len(value) > limit:
        raise MalformedError(f"{column} is too long")
    return value


def make_task(
    source: str, question: str, reference: Mapping[str, Any], *, name: object = None, level: int = 0, system: str = ""
) -> Task:
    """Return a task with one question. Without a name it is named by its content, whatever row it is in."""
    if isinstance(name, (str, int)) and not isinstance(name, bool) and str(name).strip():
        label = str(name) if str(name).startswith(source) else f"{source}/{name}"
        if len(label) > MAX_ID_CHARS:
            label = f"{source}/{_digest(label)}"
    else:
        label = f"{source}/{_digest(question)}"
    messages = (ChatMessage("user", question),)
    if system:
        messages = (ChatMessage("system", system), *messages)
    return Task(label, messages, dict(reference), level, source)


def level_of(rates: Iterable[object]) -> int:
    """Return 0 to 100, the percentage of failures, from the first known rate of solving; 0 when none is."""
    for rate in rates:
        if isinstance(rate, (int, float)) and not isinstance(rate, bool) and math.isfinite(rate) and 0 <= rate <= 1:
            return round(100 * (1 - rate))
    return 0


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
