"""Score through the sandbox's process. Blocking, for threads: the callers are pure functions that score row by row."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from muster.errors import UnreachableError
from muster.runtime.closing import Closing
from muster.runtime.module_command import bare_environment, module_command
from muster.sandbox.component import compiled, find_component
from muster.sandbox.scorer import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, Outcome, ScorerManifest
from muster.sandbox.server import ANSWER, HEAD, CallStatus
from muster.sandbox.walls import in_namespaces

FUEL_PER_SECOND: Final = 10**9
"""The slowest machine that is waited for: a ninth of what one core here does."""
SPARE_SECONDS: Final = 30.0
START_SECONDS: Final = 60.0
ATTEMPTS: Final = 2
SHORT: Final = "is this machine short of memory or CPU? see ulimit -a, and vm.overcommit_memory"
CLOSED: Final = "the sandbox was closed: this process is ending"


class Sandbox(Closing):
    """Calls functions of components, each call in a fresh instance, one at a time per component.

    Processes start when they are first needed and end with `close`, or with this process. Thread-safe.
    """

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        """Keep runs' components in `folder` and compiled ones in `cache`; without them, only this machine's own."""
        self._folder = folder or Path()
        self._cache = cache
        self._lock = threading.Lock()
        self._servers: dict[str, _ScorerProcess] = {}
        self._closed = False

    def call(self, scorer: ScorerManifest, payload: Any) -> Outcome:
        """Return the outcome of one call.

        Raises UnreachableError when this machine cannot tell, CheckError when the component is not here.
        """
        text = json.dumps(payload, allow_nan=False)
        if len(text) > MAX_PAYLOAD_BYTES:
            return Outcome(None, 0, "payload")
        return self._server(scorer.component).call(scorer, text)

    def walls(self, component: str) -> tuple[str, ...]:
        """Return the outer walls that stand around a component's process."""
        return self._server(component).walls()

    def close(self) -> None:
        """End the processes, for good: calls under way, and later ones, raise UnreachableError."""
        with self._lock:
            servers, self._servers, self._closed = list(self._servers.values()), {}, True
        for server in servers:
            server.close()

    def _server(self, component: str) -> _ScorerProcess:
        with self._lock:
            if self._closed:
                raise UnreachableError(CLOSED)
            if component not in self._servers:
                code = compiled(find_component(component, self._folder), self._cache)
                self._servers[component] = _ScorerProcess(code)
            return self._servers[component]


class _ScorerProcess:
    """One process with one component."""

    def __init__(self, code: Path) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._walls: tuple[str, ...] = ()
        self._closed = False

    def call(self, scorer: ScorerManifest, payload: str) -> Outcome:
        """Return the outcome of a call. A process that does not answer is replaced, and the call repeated once."""
        name, data = scorer.function.encode(), payload.encode()
        request = HEAD.pack(len(name), len(data), scorer.fuel, scorer.memory) + name + data
        seconds = SPARE_SECONDS + scorer.fuel / FUEL_PER_SECOND
        reason = ""
        with self._lock:
            for _ in range(ATTEMPTS):
                if self._closed:
                    raise UnreachableError(CLOSED)
                try:
                    status, fuel, body = self._exchange(request, seconds)
                except (OSError, EOFError, TimeoutError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    self._end()
                    continue
                return _outcome(status, min(fuel, scorer.fuel), body)
        raise UnreachableError(f"the process that scores did not answer ({reason})", hint=SHORT)

    def walls(self) -> tuple[str, ...]:
        """Start the process if need be, and return its walls. Raises UnreachableError where it does not start."""
        with self._lock:
            try:
                self._start()
            except (OSError, EOFError, TimeoutError) as error:
                self._end()
                raise UnreachableError(f"the process that scores did not start: {error}", hint=SHORT) from error
        return self._walls

    def close(self) -> None:
        """End the process, for good, without waiting for a call under way."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _exchange(self, request: bytes, seconds: float) -> tuple[int, int, bytes]:
        process = self._start()
        assert process.stdin is not None
        _write(process.stdin.fileno(), request, time.monotonic() + seconds)
        return self._answer(process, time.monotonic() + seconds)

    def _answer(self, process: subprocess.Popen[bytes], deadline: float) -> tuple[int, int, bytes]:
        assert process.stdout is not None
        status, fuel, size = ANSWER.unpack(_read(process.stdout.fileno(), ANSWER.size, deadline))
        if size > 4 * MAX_RESULT_BYTES:
            raise OSError(f"an answer of {size} bytes")
        return status, fuel, _read(process.stdout.fileno(), size, deadline)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = module_command("muster.sandbox.server", self._code)
        command = in_namespaces(command, readable=(self._code,))
        start = partial(
            subprocess.Popen[bytes],
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=bare_environment(OMP_NUM_THREADS="1", RUST_BACKTRACE="0"),
            bufsize=0,
            close_fds=True,
        )
        self._process = _start_apart(start)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # or a write to one that hangs would hang too
        status, _, walls = self._answer(self._process, time.monotonic() + START_SECONDS)
        if status == CallStatus.FAILED:
            self._end()
            raise UnreachableError(f"the process that scores did not start: {walls[:300].decode()}", hint=SHORT)
        self._walls = tuple(walls.decode().split(",")) if walls else ()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _start_apart(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process in a thread that lasts as long: bubblewrap's ends with the thread that started it, not with us.

    Raises OSError as `start`.
    """
    begun: Future[subprocess.Popen[bytes]] = Future()

    def run() -> None:
        try:
            process = start()
        except OSError as error:
            return begun.set_exception(error)
        begun.set_result(process)
        process.wait()
        return None

    threading.Thread(target=run, name="muster-sandbox", daemon=True).start()
    return begun.result()


def _outcome(status: int, fuel: int, body: bytes) -> Outcome:
    """Read an answer. What the guest returned is a stranger's: bounded, and JSON or nothing."""
    if status == CallStatus.FAILED:
        raise UnreachableError(f"the scorer cannot tell: {body[:300].decode(errors='replace')}")
    if status == CallStatus.STOPPED:
        return Outcome(None, fuel, body[:100].decode(errors="replace"))
    try:
        answer = from_json(body, allow_inf_nan=False)
    except ValueError:
        return Outcome(None, fuel, "result")
    match answer:
        case {"value": value}:
            return Outcome(value, fuel)
        case {"error": str(error)}:
            return Outcome(None, fuel, error[:100] or "error")
    return Outcome(None, fuel, "result")


def _write(descriptor: int, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        if not select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))[1]:
            raise TimeoutError("it does not read")
        try:
            view = view[os.write(descriptor, view[: 1 << 16]) :]
        except BlockingIOError:  # less room than a page
            continue


def _read(descriptor: int, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError("it does not answer")
        chunk = os.read(descriptor, min(1 << 16, size - len(data)))
        if not chunk:
            raise EOFError("it ended")
        data += chunk
    return bytes(data)
