"""Requests to a file server and its replies, apart from how they travel.

Paths and headers come from strangers; a handler turns a `FileRequest` into a `Reply` or raises a `FileProblem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO, Final, Protocol

_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


@dataclass(frozen=True)
class FileRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""


class Body(Protocol):
    """Bytes of a file, some of which may still be on their way."""

    file: BinaryIO

    async def ready(self, start: int, stop: int) -> int:
        """Wait until byte `start` can be served; return the end, at most `stop`, of what can be served with it.

        Raises FileProblem when that takes too long.
        """
        ...


def _ignore(_: int) -> None:
    pass


@dataclass(frozen=True)
class Reply:
    """An answer: either `content`, or bytes `start` to `stop` of `body`."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | None = None
    start: int = 0
    stop: int = 0
    count: Callable[[int], None] = _ignore
    """Called with how many bytes of the body have been handed to the kernel, after each run of RUN_BYTES."""

    @property
    def length(self) -> int:
        return self.stop - self.start if self.body else len(self.content)


class FileProblem(Exception):  # noqa: N818 (it is an answer, not a failure)
    """An answer other than success, written as a problem document (RFC 9457)."""

    def __init__(self, status: int, detail: str = "", *, hint: str = "", headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status = status
        self.hint = hint
        self.headers = headers or {}

    def reply(self) -> Reply:
        document = {"title": HTTPStatus(self.status).phrase, "status": self.status, "detail": str(self)}
        if self.hint:
            document["hint"] = self.hint
        headers = {"Content-Type": "application/problem+json", **self.headers}
        return Reply(self.status, json.dumps(document).encode(), headers)


Handler = Callable[[FileRequest], Awaitable[Reply]]


def requested_range(request: FileRequest, size: int) -> tuple[int, int] | None:
    """Return (start, stop) of the one range asked for, None for the whole file.

    Several ranges, or something that is no range, ask for the whole file, as RFC 9110 allows. Raises FileProblem 416
    for a range that holds no byte of the file.
    """
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if not match or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise FileProblem(416, f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return start, stop


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})
