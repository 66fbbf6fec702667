"""Answers that took hours, kept on disk while they come, so that an interrupted filter goes on where it was.

One folder per filter, locked while it is used. It belongs to one checkpoint, one task set and one way of asking; the
band does not matter to it, so another band of the same answers costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from muster.errors import ConfigError
from muster.journal import FolderLock, Journal
from muster.questions import Answers

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS identity (document TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS answers (
        task INTEGER PRIMARY KEY, correct INTEGER NOT NULL, finished INTEGER NOT NULL, tokens INTEGER NOT NULL
    )""",
)


class AnswerJournal:
    """The answers of one filter, task by task from the first. Use as a context manager."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """`identity`: what the answers depend on, as JSON. Raises ConfigError when the folder has answers to something
        else, or another process uses it; StorageError when it cannot be used."""
        self._lock = FolderLock(folder)
        try:
            self._journal = Journal(folder / "answers.sqlite", _SCHEMA)
            try:
                self._claim(folder, json.loads(json.dumps(identity)))
            except BaseException:
                self._journal.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    def _claim(self, folder: Path, identity: dict[str, Any]) -> None:
        known = self._journal.value("SELECT document FROM identity")
        before = {} if known is None else json.loads(known)
        others = [name for name in identity if before.get(name) != identity[name]]
        if not others:
            return
        if self._journal.value("SELECT 1 FROM answers LIMIT 1") is not None:
            raise ConfigError(
                f"{folder} holds answers to other questions: {', '.join(others)} differ",
                hint=f"ask as before, or choose another OUT, or delete {folder} to begin anew",
            )
        with self._journal.transaction():
            self._journal.execute("DELETE FROM identity")
            self._journal.execute("INSERT INTO identity VALUES (?)", json.dumps(identity))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        self._lock.release()

    def answers(self) -> list[Answers]:
        """What is known, from task 0 on."""
        rows = self._journal.rows("SELECT task, correct, finished, tokens FROM answers ORDER BY task")
        return [Answers(*row) for row in rows]

    def add(self, answers: Answers) -> None:
        """On disk on return. Raises StorageError."""
        self._journal.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?)", answers.task, answers.right, answers.finished, answers.tokens
        )
