"""The process that scores for `muster.sandbox.client`, which starts it and talks to its pipes.

WebAssembly is the inner wall: a call reaches its own memory and nothing else. This process is the outer one, for the
day on which the inner has a hole: once the component is loaded it gives up every system call that scoring does not
need (`walls`), and it runs with limits and, where possible, in separate namespaces.

Request:  HEAD (length of the function's name, of the payload, fuel, memory), then both.
Answer:   ANSWER (status, fuel, length), then the body: the result, or why there is none.
"""

from __future__ import annotations

import enum
import struct
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Final

HEAD: Final = struct.Struct("<HIQQ")
ANSWER: Final = struct.Struct("<BQI")


class CallStatus(enum.IntEnum):
    RETURNED = 0
    STOPPED = 1
    """The call was stopped, everywhere alike: the body says by what."""
    FAILED = 2
    """This machine could not tell."""


def serve(code: Path, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the other side closes its pipe."""
    from wasmtime import WasmtimeError

    from muster.errors import UnreachableError
    from muster.sandbox.runtime import Runtime
    from muster.sandbox.scorer import ScorerManifest
    from muster.sandbox.walls import close_behind

    try:
        runtime = Runtime(code)
        runtime.call("echo", "0", 10**9, ScorerManifest.memory)  # what is loaded on first use is loaded while it can be
    except (UnreachableError, WasmtimeError, OSError, MemoryError) as error:
        return _answer(answers, CallStatus.FAILED, 0, str(error))
    _answer(answers, CallStatus.RETURNED, 0, ",".join(close_behind()))
    while len(head := requests.read(HEAD.size)) == HEAD.size:
        name, size, fuel, memory = HEAD.unpack(head)
        data = requests.read(name + size)
        if len(data) < name + size:
            return None
        try:
            result, used, stopped = runtime.call(data[:name].decode(), data[name:].decode(), fuel, memory)
            _answer(answers, CallStatus.STOPPED if stopped else CallStatus.RETURNED, used, stopped or result)
        except UnreachableError as error:
            _answer(answers, CallStatus.FAILED, 0, str(error))
    return None


def _answer(answers: BinaryIO, status: CallStatus, fuel: int, body: str) -> None:
    data = body.encode(errors="replace")
    answers.write(ANSWER.pack(status, fuel, len(data)) + data)
    answers.flush()


def main() -> None:
    """Serve in a thread whose stack WebAssembly has room on."""
    try:
        from muster.sandbox.runtime import THREAD_STACK_BYTES

        threading.stack_size(THREAD_STACK_BYTES)
        thread = threading.Thread(target=serve, args=(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer))
        thread.start()
    except (OSError, ImportError, MemoryError, RuntimeError) as error:
        return _answer(sys.stdout.buffer, CallStatus.FAILED, 0, f"{type(error).__name__}: {error}")
    return thread.join()


if __name__ == "__main__":
    main()
