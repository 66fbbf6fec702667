"""What an author contributes: a scorer's source, tasks, and under what name and licence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from muster.environments.authored import MAX_SOURCE_BYTES, Authored
from muster.environments.manifest import MAX_PARTS, EnvironmentManifest
from muster.environments.task import Task
from muster.errors import MalformedError
from muster.runtime.documents import few
from muster.sandbox.scorer import ScorerManifest

MAX_TASKS: Final = 10_000
MAX_README_BYTES: Final = 64 * 1024
MAX_LINE_CHARS: Final = 300
"""Of the description, and of who is to be credited."""
MAX_VERSION: Final = 1_000_000
MAX_FUEL: Final = 10_000_000_000
"""Of one score: about a second of a core, which every worker and every validator spends on every row."""

LICENCES: Final = frozenset(
    """
    0BSD AFL-3.0 AGPL-3.0-only AGPL-3.0-or-later Apache-2.0 Artistic-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC-BY-3.0
    CC-BY-4.0 CC-BY-SA-3.0 CC-BY-SA-4.0 CC0-1.0 CDLA-Permissive-1.0 CDLA-Permissive-2.0 CDLA-Sharing-1.0 EPL-2.0
    EUPL-1.2 GFDL-1.3-only GFDL-1.3-or-later GPL-2.0-only GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later ISC
    LGPL-2.1-only LGPL-2.1-or-later LGPL-3.0-only LGPL-3.0-or-later MIT MIT-0 MPL-2.0 MulanPSL-2.0 ODC-By-1.0
    ODbL-1.0 OGL-UK-3.0 PDDL-1.0 UPL-1.0 Unlicense Zlib
    """.split()  # noqa: SIM905
)
"""SPDX identifiers that allow use for any purpose and changes. Others are refused: a run changes what it mixes."""

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{1,39}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


@dataclass(frozen=True)
class About:
    """What an author says of an environment. Raises MalformedError when a field is out of its bounds, naming it."""

    name: str
    version: int
    licence: str
    credit: str
    """Whom people are to thank, as a text. Who is credited in data is `author`."""
    description: str
    author: str
    """Address of the key that signs."""
    thinking: str
    fuel: int
    """Most of one score."""
    weights: Annotated[Mapping[str, int], few(MAX_PARTS)]
    """Of the parts that the source returns, in millionths; they add up to a million."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise MalformedError(
                f"the name is {self.name[:60]!r}", hint="2 to 40 small letters, digits and dashes, a letter first"
            )
        if not 1 <= self.version <= MAX_VERSION:
            raise MalformedError(f"the version is {self.version}", hint=f"a whole number from 1 to {MAX_VERSION}")
        if self.licence not in LICENCES:
            named = f"{self.licence[:40]!r} is no licence that is known here" if self.licence else "there is no licence"
            raise MalformedError(named, hint=f"an SPDX identifier, one of {', '.join(sorted(LICENCES))}")
        for label, text in (("credit", self.credit), ("description", self.description)):
            if not 1 <= len(text) <= MAX_LINE_CHARS or not text.isprintable():
                raise MalformedError(f"the {label} must be one line of 1 to {MAX_LINE_CHARS} characters")
        if not _ADDRESS.fullmatch(self.author):
            raise MalformedError(f"the author is {self.author[:60]!r}, no address")
        if not 1 <= self.fuel <= MAX_FUEL:
            raise MalformedError(f"limits.fuel is {self.fuel}", hint=f"1 to {MAX_FUEL}: about a second of a core")


@dataclass(frozen=True)
class Contribution(About):
    """An environment of one author. Raises MalformedError as `About`."""

    source: str
    readme: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.source.encode()) <= MAX_SOURCE_BYTES:
            raise MalformedError(f"the scorer has {len(self.source.encode())} bytes; 1 to {MAX_SOURCE_BYTES}")
        if len(self.readme.encode()) > MAX_README_BYTES:
            raise MalformedError(f"the readme has {len(self.readme.encode())} bytes; at most {MAX_README_BYTES}")
        if not 1 <= len(self.tasks) <= MAX_TASKS:
            raise MalformedError(f"{len(self.tasks)} tasks", hint=f"1 to {MAX_TASKS} tasks make an environment")
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise MalformedError("two tasks have one id", hint="give each task a unique id")
        environment = Authored(self.manifest("0x" + "0" * 64))
        for task in self.tasks:
            if task.author != self.author or not task.id.startswith(f"{self.name}/"):
                raise MalformedError(f"task {task.id[:80]!r} is not named as this environment's and this author's")
            environment.check(task)

    def manifest(self, component: str) -> EnvironmentManifest:
        """Return what scores the tasks, in the component of that hash."""
        scorer = ScorerManifest(component, Authored.FUNCTION, self.fuel)
        options = {"source": self.source, "thinking": self.thinking}
        return EnvironmentManifest(Authored.NAME, Authored.VERSION, options, dict(self.weights), scorer)
