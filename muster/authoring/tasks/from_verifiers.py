"""Tasks of a `verifiers` taskset whose reward is one that an environment of ours computes.

The package is imported in a separate Python environment, at build time and on the owner's machine: `verifiers` needs
other versions than Muster, and a worker or validator never loads a stranger's package. The export holds prompts, data,
and of each reward its module, its name, its weight and its code as one plain expression. A reward is recognised by that
expression, never by its name: `correct_answer` may compute anything. Others are refused, and named. A tool that is a
pure function comes with its source, which nodes run in the sandbox; others are refused by name too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from muster.authoring.tasks.formats import Format, make_task
from muster.authoring.tasks.rows import Row
from muster.environments.answers import LETTERS, last_box
from muster.environments.base import Environment
from muster.environments.task import ROLES, ChatMessage, Task
from muster.environments.tools.manifest import MAX_TOOLS, TurnsManifest
from muster.environments.tools.sandboxed import AuthoredTool
from muster.errors import ConfigError, MalformedError, UsageError
from muster.runtime.documents import read_value
from muster.sandbox.scorer import ScorerManifest

VERSION: Final = "0.4.0"
REQUIREMENT: Final = f"verifiers=={VERSION}"
PROGRAM: Final = "verifiers_export.py"

_SCORE: Final = r"verifiers\.v1\.utils\.score\."
_FIELD: Final = r"self\.data\.(?P<field>[A-Za-z]\w{0,63})"
_REPLY: Final = r"trace\.last_reply(?:\.strip\(\))?"


class ExportedReward(BaseModel):
    """A reward as the export program describes it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(max_length=200)
    module: str = Field(max_length=500)
    weight: FiniteFloat
    code: str = Field(max_length=2000)
    """What it returns, as one expression; empty where it is more than that."""


class ExportedTaskset(BaseModel):
    """The first line of an export."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    verifiers: str = Field(max_length=100)
    taskset: str = Field(max_length=500)
    task: str = Field(max_length=500)
    rewards: list[ExportedReward] = Field(max_length=100)
    tools: list[dict[str, Any]] = Field(max_length=MAX_TOOLS)
    """Each an `AuthoredTool`, which `turns_of` reads."""
    obstacles: list[str] = Field(max_length=100)
    """What the taskset has that Muster has no place for."""


@dataclass(frozen=True)
class KnownReward:
    """An expression, and the environment that computes it."""

    pattern: re.Pattern[str]
    environment: str
    options: Mapping[str, Any]
    boxed: bool = False
    """Whether a reference in a box stands for what is in the box."""


@dataclass(frozen=True)
class Mapped:
    """What scores a taskset's tasks, and which field of their data is the reference."""

    known: KnownReward
    field: str


KNOWN: Final = (
    KnownReward(
        re.compile(
            rf"{_SCORE}verify_boxed_math_answer\(trace\.last_reply, (?:str\()?{_FIELD}\)?"
            r"(?:, timeout_seconds=(?:\d+|self\.config\.\w+))?\)"
        ),
        "math",
        {"answer": "boxed", "gold": "latex"},
        boxed=True,
    ),
    KnownReward(
        re.compile(rf"{_SCORE}extract_boxed_answer\(trace\.last_reply, strict=True\)\.strip\(\) == {_FIELD}"),
        "choice",
        {"answer": "boxed"},
    ),
    KnownReward(re.compile(rf"{_REPLY} == {_FIELD}"), "sorting", {}),
)
"""Rewards that are known. math-verify's time-out is no part of the reward here: fuel bounds the component."""


def requirement_of(package: str) -> tuple[str, str]:
    """Return what uv installs, and the taskset's id, of a package's requirement or of a local folder with one.

    Raises ConfigError for a folder that holds no package, UsageError for what is neither.
    """
    path = Path(package)
    if package and path.is_dir():
        try:
            name = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{package} holds no package: no name in its pyproject.toml") from error
        return str(path.resolve()), str(name)
    name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", package)
    if name is None or package.startswith("-"):
        raise UsageError(f"{package[:80]!r} is no package", hint="give a name such as gsm8k-v1==0.1.0, or a folder")
    return package, name[0]


def read_about(about: Mapping[str, Any]) -> ExportedTaskset:
    """Read the first line of an export. Raises MalformedError."""
    found = read_value(ExportedTaskset, about, "an export")
    if found.verifiers != VERSION:
        raise MalformedError(f"exported by verifiers {found.verifiers}, not by {VERSION}")
    return found


def turns_of(taskset: ExportedTaskset, sandbox: ScorerManifest) -> TurnsManifest:
    """Return what an environment's manifest says of a taskset's tools.

    Raises MalformedError for a tool that a manifest cannot name, and for two of one name.
    """
    tools = (read_value(AuthoredTool, one, f"a tool, {str(one.get('name'))[:80]!r}") for one in taskset.tools)
    return TurnsManifest((), authored=tuple(tools), sandbox=sandbox)


def map_rewards(taskset: ExportedTaskset) -> Mapped:
    """Return what scores the tasks. Raises ConfigError that names everything which nothing here computes.

    A reward of weight 0 does not count there either. The others must come to one known reward of weight 1.
    """
    reasons = [f"it has {obstacle}" for obstacle in taskset.obstacles]
    counted = [reward for reward in taskset.rewards if reward.weight != 0]
    found = []
    for reward in counted:
        name = f"{reward.module}.{reward.name}"
        mapped = known_reward(reward.code)
        if mapped is None:
            what = f"returns {reward.code[:200]}" if reward.code else "is more than one expression"
            reasons.append(f"nothing here computes the reward {name}: it {what}")
        elif reward.weight != 1:
            reasons.append(f"the reward {name} has the weight {reward.weight:g}; one of weight 1 is taken")
        else:
            found.append(mapped)
    if not counted:
        reasons.append("it has no reward")
    elif len(found) == len(counted) > 1:
        names = ", ".join(f"{reward.module}.{reward.name}" for reward in counted)
        reasons.append(f"it adds up several rewards: {names}")
    if reasons:
        raise ConfigError(
            f"{taskset.taskset} cannot be imported: {'; '.join(reasons)}",
            hint="docs/use/environments.md lists the rewards that are known",
        )
    return found[0]


def known_reward(code: str) -> Mapped | None:
    """Return what computes an expression, whichever side of == its parts are on; None where nothing does."""
    left, mark, right = code.partition(" == ")
    for text in [code, *([f"{right} == {left}"] if mark else [])]:
        for known in KNOWN:
            if match := known.pattern.fullmatch(text):
                return Mapped(known, match["field"])
    return None


def format_of_taskset(name: str, mapped: Mapped, environment: Environment) -> Format:
    """Return how an exported row becomes a task; rows that the environment cannot score are left out."""
    known, field = mapped.known, mapped.field

    def convert(row: Row) -> tuple[str, Task]:
        # 1. The prompt: text in turns, nothing else.
        if row["image"] is not None:
            raise MalformedError("needs a container's image")
        messages = tuple(_message(one) for one in _list(row["messages"]))
        if not messages or messages[-1].role != "user":
            raise MalformedError("has no prompt that ends with the user")

        # 2. What it is scored by.
        data = row["data"]
        answer = data.get(field) if isinstance(data, dict) else None
        if isinstance(answer, int) and not isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise MalformedError(f"its {field} is no text")
        if known.boxed:
            answer = (last_box(answer) or answer).strip()
        reference: dict[str, Any] = {"answer": answer}
        if known.environment == "choice":
            reference["choices"] = len(LETTERS)

        # 3. The task.
        label = row["name"] if isinstance(row["name"], str) else None
        task = make_task(name, messages[-1].content, reference, name=label)
        task = Task(task.id, messages, reference, 0, name)
        task.to_line()
        environment.check(task)
        return known.environment, task

    return Format(name, ("index", "name", "messages", "image", "data"), convert, (), (known.environment,))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError("its messages are no list")
    return value


def _message(value: object) -> ChatMessage:
    match value:
        case [str(role), str(content)] if role in ROLES:
            return ChatMessage(role, content)
    raise MalformedError("has a message that is no text of system, user or assistant")
