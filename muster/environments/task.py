"""One task: messages to answer, and the reference that an environment scores by. Read from strangers' files."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, get_args

from pydantic_core import from_json

from muster.errors import MalformedError
from muster.runtime.documents import canonical_json

Role = Literal["system", "user", "assistant"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

MAX_TASK_BYTES: Final = 4 * 1024 * 1024
"""Largest canonical task. Code tasks carry their tests. Changing this changes which task sets nodes refuse."""
MAX_MESSAGES: Final = 64
MAX_ID_CHARS: Final = 200
MAX_INTEGER: Final = (1 << 63) - 1
_KEY_HASH: Final = re.compile("0x[0-9a-f]{64}")
SEAL_BYTES: Final = 16
"""Of a ciphertext besides its text: AES-GCM's tag."""
MAX_DEPTH: Final = 64
"""Deepest nesting of a reference; the JSON parser gives up at 200."""


@dataclass(frozen=True)
class ChatMessage:
    """One message of the conversation that a completion goes on."""

    role: Role
    content: str


@dataclass(frozen=True)
class SealedReference:
    """A reference that no one can read before its epoch's master is known (`muster.tasksets.sealing`)."""

    cipher: bytes
    key_hash: bytes
    """sha256 of the key that opens it."""


@dataclass(frozen=True)
class Task:
    """One question. Which environment scores it stands in the part of the task set that holds it."""

    id: str
    """Unique within its task set; the source's own name where it has one."""
    messages: tuple[ChatMessage, ...]
    """The conversation so far; the last one is the user's."""
    reference: Mapping[str, Any]
    """What the environment scores by (JSON): an answer, tests, instructions. Never part of the prompt."""
    level: int = 0
    """Grows with difficulty, where the source knows it."""
    author: str = ""
    """Who made it: an address, or a data set's name."""
    sealed: SealedReference | None = None
    """In a private part, in place of the reference, which is empty then."""

    @property
    def text(self) -> str:
        """Return all messages as one text, for comparing tasks with each other."""
        return "\n".join(message.content for message in self.messages)

    def to_line(self) -> bytes:
        """Return the canonical form: one line of ASCII JSON without its newline. Equal tasks have equal lines.

        Raises MalformedError when the task cannot be one: see `from_line`.
        """
        return self._line

    @cached_property
    def _line(self) -> bytes:
        document = {
            "author": self.author,
            "id": self.id,
            "level": self.level,
            "messages": [[message.role, message.content] for message in self.messages],
        }
        if self.sealed is None:
            document["reference"] = dict(self.reference)
        else:
            document["sealed"] = [base64.b64encode(self.sealed.cipher).decode(), "0x" + self.sealed.key_hash.hex()]
        line = canonical_json(document)
        _check(self, len(line))
        return line

    @classmethod
    def from_line(cls, line: bytes) -> Task:
        """Read a canonical line. Raises MalformedError on anything else, however large or deep it is."""
        if len(line) > MAX_TASK_BYTES:
            raise MalformedError(f"a task of {len(line)} bytes; at most {MAX_TASK_BYTES}")
        try:
            document = from_json(line, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedError(f"a task that is not JSON: {error}") from error
        match document:
            case {"author": str(author), "id": str(name), "level": int(level), "messages": list(messages), **rest}:
                sealed = _sealed(rest.pop("sealed"), name) if "sealed" in rest else None
                reference = rest.pop("reference", None) if sealed is None else {}
                if not rest and isinstance(reference, dict) and not isinstance(level, bool):
                    task = cls(name, tuple(_message(one) for one in messages), reference, level, author, sealed)
                    if task.to_line() == line:
                        return task
                    raise MalformedError(f"task {name[:80]!r} is not in canonical form")
        raise MalformedError(f"a line that is no task: {line[:80]!r}")


def ask(question: str, **reference: Any) -> Task:
    """Return a task of one user message. Its id is the question, cut to fit."""
    return Task(question[:MAX_ID_CHARS], (ChatMessage("user", question),), reference)


def _message(value: object) -> ChatMessage:
    match value:
        case [str(role), str(content)] if role in ROLES:
            return ChatMessage(role, content)
    raise MalformedError(f"a message that is not [role, content]: {str(value)[:80]!r}")


def _sealed(value: object, name: str) -> SealedReference:
    match value:
        case [str(cipher), str(key_hash)] if _KEY_HASH.fullmatch(key_hash) and cipher.isascii():
            try:
                return SealedReference(base64.b64decode(cipher, validate=True), bytes.fromhex(key_hash[2:]))
            except binascii.Error:
                pass
    raise MalformedError(f"task {name[:80]!r} has no sealed reference: [base64, 0x and a hash]")


def _check(task: Task, size: int) -> None:
    """Raise MalformedError unless the task is within the bounds and every text is valid Unicode."""
    if size > MAX_TASK_BYTES:
        raise MalformedError(f"task {task.id[:80]!r} has {size} bytes; at most {MAX_TASK_BYTES}")
    if not 1 <= len(task.id) <= MAX_ID_CHARS or len(task.author) > MAX_ID_CHARS:
        raise MalformedError(f"a task's id and author have 1 to {MAX_ID_CHARS} characters, not {len(task.id)}")
    if not 1 <= len(task.messages) <= MAX_MESSAGES or task.messages[-1].role != "user":
        raise MalformedError(f"task {task.id[:80]!r} needs 1 to {MAX_MESSAGES} messages, the last one a user's")
    if task.sealed is not None and (task.reference or len(task.sealed.cipher) <= SEAL_BYTES):
        raise MalformedError(f"sealed task {task.id[:80]!r} has a reference, or no ciphertext")
    if not -MAX_INTEGER <= task.level <= MAX_INTEGER:
        raise MalformedError(f"task {task.id[:80]!r} has the level {task.level}")
    _check_value([task.id, task.author, task.text, dict(task.reference)], task.id)


def _check_value(value: Any, name: str, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise MalformedError(f"task {name[:80]!r} is nested deeper than {MAX_DEPTH}")
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise MalformedError(f"task {name[:80]!r} has half a surrogate pair in a text") from error
        case bool() | None:
            pass
        case int():
            if abs(value) > MAX_INTEGER:  # others would come back as floats from some readers
                raise MalformedError(f"task {name[:80]!r} has the integer {str(value)[:40]}; write it as a text")
        case float():
            if not math.isfinite(value):
                raise MalformedError(f"task {name[:80]!r} has a number that is not finite")
        case list() | tuple():
            for one in value:
                _check_value(one, name, depth + 1)
        case dict():
            for key, one in value.items():
                if not isinstance(key, str):
                    raise MalformedError(f"task {name[:80]!r} has a key that is no text")
                _check_value(key, name)
                _check_value(one, name, depth + 1)
        case _:
            raise MalformedError(f"task {name[:80]!r} has a {type(value).__name__}, which JSON lacks")
