"""Read the folder in which an author works: a description, a scorer, tasks, a readme. It may be a stranger's too."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from muster.environments.authored import MAX_SOURCE_BYTES
from muster.environments.task import ChatMessage, Role, Task
from muster.errors import ConfigError, MalformedError
from muster.protocol.messages import Many, Message
from muster.runtime.documents import parse_json, read_value
from muster.runtime.files import read_bounded
from muster.tasksets.contribution import MAX_README_BYTES, MAX_TASKS, Contribution
from muster.tasksets.contribution_pack import MAX_PACK_BYTES

DESCRIPTION_NAME: Final = "environment.toml"
SCORER_NAME: Final = "scorer.py"
TASKS_NAME: Final = "tasks.jsonl"
README_NAME: Final = "README.md"

NO_AUTHOR: Final = "0x" + "0" * 40
"""The author of an unsigned folder."""
MAX_DESCRIPTION_BYTES: Final = 16 * 1024

_ROW_HINT: Final = '{"id": "…", "messages": [{"role": "user", "content": "…"}], "answer": …, "oracle": "…"}'


class _Limits(Message, strict=True):
    fuel: int = 2_000_000_000


class _Description(Message, strict=True):
    """`environment.toml`. What its values may be stands in `Contribution`."""

    name: str
    version: int
    licence: str = ""
    credit: str = ""
    description: str = ""
    thinking: Literal["tags", "none"] = "tags"
    parts: dict[str, int]
    limits: _Limits = _Limits()


class _Turn(Message, strict=True):
    role: Role
    content: str


class _TaskLine(Message, strict=True):
    """A line of `tasks.jsonl`."""

    id: Annotated[str, Field(min_length=1)]
    messages: Many[_Turn]
    answer: Any
    oracle: Any
    level: int = 0

    def task(self, name: str, author: str) -> Task:
        messages = tuple(ChatMessage(one.role, one.content) for one in self.messages)
        return Task(f"{name}/{self.id}", messages, {"answer": self.answer, "oracle": self.oracle}, self.level, author)


def read_folder(folder: Path, author: str = NO_AUTHOR) -> Contribution:
    """Return the environment in a folder, as that author's.

    Raises ConfigError for a file that is missing, MalformedError for one that is not what it must be: with the line,
    and what to do.
    """
    path = folder / DESCRIPTION_NAME
    try:
        about = tomllib.loads(_read(path, MAX_DESCRIPTION_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MalformedError(f"{path} is no TOML: {error}") from error
    hint = "muster env new writes one to compare it with"
    description = read_value(_Description, about, f"a description in {path}", hint)
    if not description.licence:
        raise MalformedError(f"{path} has no licence", hint='write it like licence = "CC-BY-4.0", an SPDX identifier')
    readme = _read(folder / README_NAME, MAX_README_BYTES) if (folder / README_NAME).exists() else ""
    try:
        return Contribution(
            **description.model_dump(exclude={"parts", "limits"}),
            weights=description.parts,
            fuel=description.limits.fuel,
            author=author,
            source=_read(folder / SCORER_NAME, MAX_SOURCE_BYTES),
            readme=readme,
            tasks=tuple(_tasks(folder / TASKS_NAME, description.name, author)),
        )
    except MalformedError as error:
        raise MalformedError(f"{folder}: {error}", hint=error.hint) from error


def _tasks(path: Path, name: str, author: str) -> list[Task]:
    """Return the tasks of a file of JSON Lines. Raises MalformedError that names the line."""
    lines = _read(path, MAX_PACK_BYTES).split("\n")
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(tasks) == MAX_TASKS:
            raise MalformedError(f"line {number}: more than {MAX_TASKS} tasks", hint="make two environments of it")
        try:
            task = parse_json(_TaskLine, line, "a task", MAX_PACK_BYTES, f"one JSON object per line: {_ROW_HINT}").task(
                name, author
            )
            task.to_line()
        except MalformedError as error:
            raise MalformedError(f"line {number}: {error}", hint=error.hint) from error
        if (first := seen.setdefault(task.id, number)) != number:
            raise MalformedError(f"line {number}: its id is that of line {first}", hint="give each task its own")
        tasks.append(task)
    return tasks


def _read(path: Path, limit: int) -> str:
    try:
        return read_bounded(path, limit, ConfigError, "muster env new writes a folder to begin with").decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path} is no UTF-8", hint="save it as UTF-8") from error
