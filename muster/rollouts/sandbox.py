"""The process that parses files from strangers for `muster.rollouts.reader`, which starts it and talks to its pipes.

It never parses a file itself. For every file it forks; the fork limits itself (address space, CPU time,
no writing to disk), parses, packs the columns into a pipe and exits. Whatever a file does to the parser, it does it to
a process that was going to end anyway, and the next file finds a fresh one. Forking takes milliseconds; importing
Arrow, which takes a third of a second, is done once.

Request:  HEAD (bytes of the file, rows, decoded bytes, CPU seconds, wall seconds), then the file.
Answer:   ANSWER (status, bytes of the body), then the body: packed columns, or the reason why there are none.

These are limits, not a jail: the fork runs as the same user and could do what that user can.
"""

from __future__ import annotations

import enum
import os
import resource
import select
import signal
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import numpy as np

from muster.errors import MalformedError, UnreachableError
from muster.rollouts.parquet import FileLimits, read_columns, write_rollouts
from muster.rollouts.schema import bare_row
from muster.sandbox.walls import check_room, set_limit

HEAD: Final = struct.Struct("<QIQdd")
ANSWER: Final = struct.Struct("<BQ")

PACKED_OVERHEAD: Final = 1 << 20
"""Room in an answer beside the decoded columns: the header and the row lengths."""

SPARE_MEMORY: Final = 192 << 20
"""Address space beside the file and its decoded copies: Arrow's pools, decompression windows, Python."""

_MESSAGE_BYTES: Final = 2000
_MALFORMED_EXIT: Final = 3
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class ParseStatus(enum.IntEnum):
    PARSED = 0
    MALFORMED = 1
    """The file is to blame: it breaks the format, or takes memory or CPU time that no honest file needs."""
    FAILED = 2
    """The file is not to blame: the machine was too busy, or the process was killed."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve requests until the other side closes its pipe."""
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        size, rows, decoded_bytes, cpu_seconds, wall_seconds = HEAD.unpack(head)
        data = requests.read(size)
        if len(data) < size:
            return
        status, body = parse_apart(data, FileLimits(rows, decoded_bytes), cpu_seconds, wall_seconds)
        answers.write(ANSWER.pack(status, len(body)) + body)
        answers.flush()


def warm_up() -> None:
    """Parse a file of our own: what Arrow loads on first use, every fork would load again for each file."""
    nothing = np.zeros(1, np.int32)
    row = bare_row(nothing, nothing, np.zeros(1, np.float32))
    read_columns(write_rollouts([row]), FileLimits(1, 1 << 20)).pack()


def parse_apart(data: bytes, limits: FileLimits, cpu_seconds: float, wall_seconds: float) -> tuple[ParseStatus, bytes]:
    """Parse in a fork with limits. Return the status, and the packed columns or the reason."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)  # or the fork would keep its own pipe open, and outlive a server that is killed
        _parse_and_exit(data, limits, cpu_seconds, write_end)
    os.close(write_end)
    try:
        body = read_until_closed(read_end, limits.decoded_bytes + PACKED_OVERHEAD, time.monotonic() + wall_seconds)
    finally:
        os.close(read_end)
    if isinstance(body, ParseRefusal):
        os.kill(pid, signal.SIGKILL)
    _, ending = os.waitpid(pid, 0)
    if isinstance(body, ParseRefusal):
        return body.status, body.why.encode()
    status, said = status_at_exit(ending, body, cpu_seconds)
    if status == ParseStatus.MALFORMED:
        try:
            check_room(_room(limits, len(data)))
        except UnreachableError as error:  # where an honest file would have failed too
            return ParseStatus.FAILED, str(error).encode()
    return status, said


def _parse_and_exit(data: bytes, limits: FileLimits, cpu_seconds: float, write_end: int) -> NoReturn:
    """In the fork: parse, write the packed columns or the reason to the pipe, and exit."""
    code = _MALFORMED_EXIT
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for end in (0, 1, 2):  # the server's pipes are not for a process that has read a stranger's file
            os.dup2(null, end)
        _limit_self(limits, len(data), cpu_seconds)
        body, code = read_columns(data, limits).pack(), 0
    except MalformedError as error:
        body = str(error).encode(errors="replace")[:_MESSAGE_BYTES]
    except MemoryError:
        body = b"parsing takes more memory than any honest file needs"
    except BaseException as error:  # noqa: BLE001 - the last frame of this process: what is not caught is not reported
        body = f"the parser raised {type(error).__name__}".encode()
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(write_end, view) :]
    finally:
        os._exit(code)


def _room(limits: FileLimits, size: int) -> int:
    """Return the memory in bytes that parsing a file of `size` bytes may take."""
    return SPARE_MEMORY + 2 * size + 5 * limits.decoded_bytes


def _limit_self(limits: FileLimits, size: int, cpu_seconds: float) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    seconds = max(1, round(cpu_seconds))
    set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + _room(limits, size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True)
class ParseRefusal:
    status: ParseStatus
    why: str


def read_until_closed(read_end: int, room: int, deadline: float) -> bytes | ParseRefusal:
    """Read everything the fork writes until it closes its end."""
    body = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read_end], [], [], left)[0]:
            return ParseRefusal(ParseStatus.FAILED, "parsing did not end in time")
        chunk = os.read(read_end, 1 << 20)
        if not chunk:
            return bytes(body)
        body += chunk
        if len(body) > room:
            return ParseRefusal(ParseStatus.MALFORMED, f"the file decodes to more than {room} bytes")


def status_at_exit(ending: int, body: bytes, cpu_seconds: float) -> tuple[ParseStatus, bytes]:
    """Return what a fork's exit status says about the file."""
    if os.WIFEXITED(ending):
        code = os.WEXITSTATUS(ending)
        return (ParseStatus.PARSED, body) if code == 0 else (ParseStatus.MALFORMED, body[:_MESSAGE_BYTES])
    killer = os.WTERMSIG(ending)
    if killer == signal.SIGXCPU:
        return ParseStatus.MALFORMED, f"parsing takes more than {cpu_seconds:g} s of CPU time".encode()
    if killer in _FROM_OUTSIDE:
        return ParseStatus.FAILED, f"the parser was ended by {signal.Signals(killer).name}".encode()
    return ParseStatus.MALFORMED, f"the parser died of {signal.Signals(killer).name}".encode()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks; this one ends with its pipe
    warm_up()
    serve(sys.stdin.buffer, sys.stdout.buffer)
