"""What a benchmark is: the columns of its file, how a row becomes an item, its prompt, its settings and its scoring.

An item has a question and a reference. A *rule* is one published way of scoring: it takes the answer out of a
completion as the published scorer does and lets an environment judge it by the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from muster.authoring.tasks.rows import Row
from muster.authoring.tasks.sources_code import RunReference
from muster.environments.answers import THINK_END
from muster.environments.manifest import EnvironmentManifest
from muster.environments.registry import own_manifest
from muster.environments.task import MAX_ID_CHARS, ChatMessage, Task
from muster.errors import UsageError

THINK_START: Final = "<think>"

_PLACE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class BenchmarkItem:
    id: str
    question: str
    """As published, without the prompt around it."""
    reference: Mapping[str, Any]
    """What the rules' environments score by."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What else the prompt shows, by its name there."""
    aids: Mapping[str, str] = field(default_factory=dict)
    """What a rule needs to find the answer, and the prompt does not show by itself."""
    units: int = 1
    """What the item counts as where not whole items are counted: IFEval's instructions."""

    @property
    def compared(self) -> str:
        """Return what training tasks are compared with: the question, and its tests or choices."""
        return "\n".join((self.question, *(self.fields[name] for name in ("choices", "tests") if name in self.fields)))

    def prompt(self, template: str) -> str:
        """Return the prompt: the template, its places filled in."""
        places = {"question": self.question, **self.fields}
        return _PLACE.sub(lambda match: places.get(match[1], match[0]), template)

    def task(self, template: str, reference: Mapping[str, Any] | None = None) -> Task:
        """Return the item as a task; without a reference for who is only to answer it."""
        return Task(self.id[:MAX_ID_CHARS], (ChatMessage("user", self.prompt(template)),), dict(reference or {}))


@dataclass(frozen=True)
class Rule:
    """One published way of scoring."""

    name: str
    environment: str
    options: Mapping[str, Any]
    extract: Callable[[str, BenchmarkItem], str | None]
    """From the visible part of a completion to the text that the environment judges; None where there is no answer."""
    fuel: int | None = None
    """Most of one call, where the environment's default does not suffice."""
    counts_units: bool = False
    """Whether the share of an item's units is a figure too."""
    version: int = 1
    """Grows when another text is extracted."""

    def manifest(self) -> EnvironmentManifest:
        """Return the manifest, scored by this machine's component. Raises as `own_manifest`."""
        manifest = own_manifest(self.environment, {"thinking": "none", **self.options})
        if self.fuel is None or manifest.scorer is None:
            return manifest
        return replace(manifest, scorer=replace(manifest.scorer, fuel=self.fuel))


@dataclass(frozen=True)
class HubFiles:
    """Where a hub has the published files."""

    repository: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. The first rule gives the figure that is meant where only one is named."""

    name: str
    columns: tuple[str, ...]
    """Those that every row needs."""
    convert: Callable[[Row, int, RunReference], BenchmarkItem]
    """From a row, its number and what runs reference solutions. Raises MalformedError with why it is left out."""
    rules: tuple[Rule, ...]
    prompt: str
    samples: int
    temperature: float
    max_tokens: int
    hub: HubFiles
    optional: tuple[str, ...] = ()
    ks: tuple[int, ...] = (1, 4, 8)
    """Of pass@k, those that the samples allow."""
    dated: bool = False
    """Whether rows have a contest's date to choose by."""
    outside: str = ""
    """Why rows of its published files are left out that are none of its items."""
    size: int = field(kw_only=True)
    """Rows of its published files that are its items. Some may not be askable here, and are left out."""

    def check_prompt(self, template: str) -> str:
        """Return a prompt template of the user's. Raises UsageError when it does not show the question."""
        if "{question}" not in template:
            raise UsageError(
                "a prompt without the question",
                hint=f"write {{question}} where it belongs; the prompt of {self.name} is {self.prompt!r}",
            )
        return template


def visible(completion: str) -> str:
    """Return what follows the thinking. Nothing does where it began and never ended; without any, all is the answer."""
    _, mark, answer = completion.rpartition(THINK_END)
    if mark:
        return answer
    return "" if completion.lstrip().startswith(THINK_START) else completion


def whole(text: str, item: BenchmarkItem) -> str:
    """Return all of the text, for environments that look for the answer themselves."""
    return text
