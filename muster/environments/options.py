"""Reads an environment's options out of its manifest, and refuses a manifest that the environment cannot follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from muster.environments.answers import Thinking
from muster.environments.manifest import EnvironmentManifest, Score
from muster.errors import MalformedError


@dataclass(frozen=True)
class OneOf:
    """An option with a few values. The first one is the default."""

    values: tuple[str | bool, ...]

    @property
    def default(self) -> str | bool:
        return self.values[0]

    def allows(self, value: object) -> bool:
        return any(type(value) is type(one) and value == one for one in self.values)

    def __str__(self) -> str:
        return "one of " + ", ".join(repr(value) for value in self.values)


@dataclass(frozen=True)
class Between:
    """An option that is a number from `low` to `high`."""

    low: float
    high: float
    default: float

    def allows(self, value: object) -> bool:
        return type(value) in (int, float) and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        return f"a number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Text:
    """An option that is a text of 1 to `limit` bytes."""

    limit: int
    default: str

    def allows(self, value: object) -> bool:
        try:
            return isinstance(value, str) and 1 <= len(value.encode()) <= self.limit
        except UnicodeEncodeError:
            return False

    def __str__(self) -> str:
        return f"a text of 1 to {self.limit} bytes"


Option = OneOf | Between | Text

THINKING: Final = OneOf(("tags", "none"))
"""Of every environment: whether a completion is `thinking</think>answer`, or all of it is the answer."""


class OptionsEnvironment:
    """Base of environments: what is known of one before there is a manifest, and the options of its manifest."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int] = 1
    PARTS: ClassVar[tuple[str, ...]] = ("correct",)
    """Names of the parts of the score."""
    FUNCTION: ClassVar[str] = ""
    """The component's function; empty where scoring needs none."""
    OPTIONS: ClassVar[Mapping[str, Option]] = {"thinking": THINKING}

    def __init__(self, manifest: EnvironmentManifest, parts: tuple[str, ...] | None = None) -> None:
        self.manifest = manifest
        self._options = read_options(manifest, type(self), parts)
        self._thinking: Thinking = self._options["thinking"]
        self._answer: str = self._options.get("answer", "")


def read_options(
    manifest: EnvironmentManifest, cls: type[OptionsEnvironment], parts: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return every option's value, the defaults filled in. `parts`: those of the score, where the class does not say.

    Raises MalformedError when the manifest has another version, parts, options or function than the environment.
    """
    if manifest.name != cls.NAME or manifest.version != cls.VERSION:
        raise MalformedError(
            f"a manifest of {manifest.name} {manifest.version}; this is {cls.NAME} {cls.VERSION}",
            hint="use the Muster release that the run's terms name",
        )
    expected = tuple(sorted(cls.PARTS)) if parts is None else parts
    if manifest.parts != expected:
        raise MalformedError(f"environment {cls.NAME} has the parts {expected}, not {manifest.parts}")
    function = "" if manifest.scorer is None else manifest.scorer.function
    if function != cls.FUNCTION:
        raise MalformedError(
            f"environment {cls.NAME} is scored by {cls.FUNCTION or 'no component'}, not by {function or 'none'}"
        )
    for name, value in manifest.options.items():
        if name not in cls.OPTIONS:
            raise MalformedError(
                f"environment {cls.NAME} has no option {name[:40]!r}", hint=f"known options: {', '.join(cls.OPTIONS)}"
            )
        if not cls.OPTIONS[name].allows(value):
            raise MalformedError(f"option {name} of environment {cls.NAME} is {cls.OPTIONS[name]}: {str(value)[:40]!r}")
    return {name: manifest.options.get(name, option.default) for name, option in cls.OPTIONS.items()}


def text_of(reference: Mapping[str, Any], key: str, name: str) -> str:
    """Return a text of a task's reference. Raises MalformedError when it is missing or empty."""
    value = reference.get(key)
    if not isinstance(value, str) or not value:
        raise MalformedError(f"task {name[:80]!r} has no {key!r} in its reference, or one that is no text")
    return value


def only(reference: Mapping[str, Any], allowed: tuple[str, ...], name: str) -> None:
    """Raise MalformedError when a reference has keys that its environment would ignore."""
    unknown = sorted(set(reference) - set(allowed))
    if unknown:
        raise MalformedError(
            f"task {name[:80]!r} has {unknown[0][:40]!r} in its reference; known are {', '.join(allowed)}"
        )


def failed(reason: str, fuel: int = 0) -> Score:
    """Return a score of 0 with its reason."""
    return Score((0,), fuel, reason)
