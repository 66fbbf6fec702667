"""Answers that took hours, kept on disk while they come, so that an interrupted filter resumes.

One folder per filter, locked while it is used. It belongs to one checkpoint, one task set and one way of asking; the
band does not matter to it, so another band of the same answers costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from muster.clients.evaluation import TaskResult
from muster.errors import ConfigError
from muster.runtime.journal import FolderLock, Journal

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS identity (document TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS answers (
        task INTEGER PRIMARY KEY, correct INTEGER NOT NULL, finished INTEGER NOT NULL, tokens INTEGER NOT NULL,
        unended INTEGER NOT NULL DEFAULT 0
    )""",
)


class AnswerJournal(Journal):
    """The answers of one filter, task by task from the first. Use as a context manager."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open or make it for `identity`: what the answers depend on, as JSON.

        Raises ConfigError when the folder has answers to something else, or another process uses it; StorageError when
        it cannot be used.
        """
        with ExitStack() as opened:
            opened.enter_context(FolderLock(folder))
            super().__init__(folder / "answers.sqlite", _SCHEMA)
            opened.callback(super().close)
            self._check_identity(folder, json.loads(json.dumps(identity)))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the database and free the folder."""
        self._opened.close()

    def _check_identity(self, folder: Path, identity: dict[str, Any]) -> None:
        known = self.value("SELECT document FROM identity")
        before = {} if known is None else json.loads(known)
        others = [name for name in identity if before.get(name) != identity[name]]
        if not others:
            return
        if self.value("SELECT 1 FROM answers LIMIT 1") is not None:
            raise ConfigError(
                f"{folder} holds answers to other questions: {', '.join(others)} differ",
                hint=f"ask as before, or choose another OUT, or delete {folder} to start over",
            )
        with self.transaction():
            self.execute("DELETE FROM identity")
            self.execute("INSERT INTO identity VALUES (?)", json.dumps(identity))

    def answers(self) -> list[TaskResult]:
        """Return the answers known, from task 0 on."""
        rows = self.rows("SELECT task, correct, finished, tokens, unended FROM answers ORDER BY task")
        return [TaskResult(*row) for row in rows]

    def add(self, answers: TaskResult) -> None:
        """Keep the answers to a task; on disk on return. Raises StorageError."""
        self.execute(
            "INSERT INTO answers (task, correct, finished, tokens, unended) VALUES (?, ?, ?, ?, ?)",
            *(answers.task, answers.right, answers.finished, answers.tokens, answers.unended),
        )
