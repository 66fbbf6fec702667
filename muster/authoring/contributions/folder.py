"""Read the folder in which an author works: a description, a scorer, tasks, a readme. It may be a stranger's too."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from muster.environments.authored import MAX_SOURCE_BYTES
from muster.environments.task import MAX_ID_CHARS, ROLES, ChatMessage, Task
from muster.errors import ConfigError, MalformedError
from muster.tasksets.contribution import MAX_README_BYTES, MAX_TASKS, Contribution
from muster.tasksets.contribution_pack import MAX_PACK_BYTES

DESCRIPTION_NAME: Final = "environment.toml"
SCORER_NAME: Final = "scorer.py"
TASKS_NAME: Final = "tasks.jsonl"
README_NAME: Final = "README.md"

NO_AUTHOR: Final = "0x" + "0" * 40
"""The author of an unsigned folder."""
MAX_DESCRIPTION_BYTES: Final = 16 * 1024

_TEXTS: Final = ("name", "licence", "credit", "description")
_KNOWN: Final = {*_TEXTS, "version", "thinking", "parts", "limits"}
_ROW: Final = {"id", "messages", "answer", "oracle"}


def read_folder(folder: Path, author: str = NO_AUTHOR) -> Contribution:
    """Return the environment in a folder, as that author's.

    Raises ConfigError for a file that is missing, MalformedError for one that is not what it must be: with the line,
    and what to do.
    """
    try:
        about = tomllib.loads(_read(folder / DESCRIPTION_NAME, MAX_DESCRIPTION_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MalformedError(f"{folder / DESCRIPTION_NAME} is no TOML: {error}") from error
    fields = _fields(about, folder / DESCRIPTION_NAME)
    readme = _read(folder / README_NAME, MAX_README_BYTES) if (folder / README_NAME).exists() else ""
    try:
        return Contribution(
            **fields,
            author=author,
            source=_read(folder / SCORER_NAME, MAX_SOURCE_BYTES),
            readme=readme,
            tasks=tuple(_tasks(folder / TASKS_NAME, fields["name"], author)),
        )
    except MalformedError as error:
        raise MalformedError(f"{folder}: {error}", hint=error.hint) from error


def _fields(about: Mapping[str, Any], path: Path) -> dict[str, Any]:
    if unknown := sorted(set(about) - _KNOWN):
        raise MalformedError(f"{path} has {unknown[0][:40]!r}", hint=f"known are {', '.join(sorted(_KNOWN))}")
    fields: dict[str, Any] = {"thinking": about.get("thinking", "tags"), "weights": about.get("parts")}
    for name in _TEXTS:
        fields[name] = about.get(name, "")
        if not isinstance(fields[name], str):
            raise MalformedError(f"{name} in {path} is no text", hint=f'write it like {name} = "…"')
    if not fields["licence"]:
        raise MalformedError(f"{path} has no licence", hint='write it like licence = "CC-BY-4.0", an SPDX identifier')
    limits, version = about.get("limits", {}), about.get("version")
    if type(version) is not int:
        raise MalformedError(f"{path} has no version that is a whole number", hint="write it like version = 1")
    if not isinstance(limits, dict) or set(limits) - {"fuel"} or type(limits.get("fuel", 1)) is not int:
        raise MalformedError(f"[limits] in {path} has something else than a fuel", hint="fuel = 2_000_000_000")
    weights = fields["weights"]
    if not isinstance(weights, dict) or any(type(weight) is not int for weight in weights.values()):
        raise MalformedError(f"{path} has no [parts] with whole numbers", hint="write them like correct = 1_000_000")
    if fields["thinking"] not in ("tags", "none"):
        raise MalformedError(f"thinking in {path} is {str(fields['thinking'])[:40]!r}", hint='"tags" or "none"')
    return fields | {"version": version, "fuel": limits.get("fuel", 2_000_000_000)}


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
            row = from_json(line, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedError(f"line {number} is not JSON: {error}", hint="one JSON object per line") from error
        task = _task(row, number, name, author)
        if (first := seen.setdefault(task.id, number)) != number:
            raise MalformedError(f"line {number}: its id is that of line {first}", hint="give each task its own")
        tasks.append(task)
    return tasks


def _task(row: object, number: int, name: str, author: str) -> Task:
    hint = '{"id": "…", "messages": [{"role": "user", "content": "…"}], "answer": …, "oracle": "…"}'
    if not isinstance(row, dict):
        raise MalformedError(f"line {number} is no object", hint=hint)
    if missing := sorted(_ROW - set(row)):
        raise MalformedError(f"line {number}: the task has no {missing[0]}", hint=f"write it like {hint}")
    if unknown := sorted(set(row) - _ROW - {"level"}):
        raise MalformedError(
            f"line {number} has {unknown[0][:40]!r}", hint=f"known are {', '.join(sorted(_ROW))}, level"
        )
    if not isinstance(row["id"], str) or not 1 <= len(row["id"]) <= MAX_ID_CHARS - len(name) - 1:
        raise MalformedError(f"line {number}: its id is no text of 1 to {MAX_ID_CHARS - len(name) - 1} characters")
    messages = []
    for message in row["messages"] if isinstance(row["messages"], list) else [None]:
        match message:
            case {"role": str(role), "content": str(content), **rest} if not rest and role in ROLES:
                messages.append(ChatMessage(role, content))
            case _:
                raise MalformedError(f"line {number}: messages are a list of role and content", hint=hint)
    level = row.get("level", 0)
    if type(level) is not int:
        raise MalformedError(f"line {number}: level is no whole number")
    reference = {"answer": row["answer"], "oracle": row["oracle"]}
    task = Task(f"{name}/{row['id']}", tuple(messages), reference, level, author)
    try:
        task.to_line()
    except MalformedError as error:
        raise MalformedError(f"line {number}: {error}", hint=error.hint) from error
    return task


def _read(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="muster env new writes a folder to begin with"
        ) from error
    if len(data) > limit:
        raise MalformedError(f"{path} has more than {limit} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"{path} is no UTF-8", hint="save it as UTF-8") from error
