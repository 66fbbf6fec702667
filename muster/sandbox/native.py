"""The second sandbox: runs native programs (`native_walls`), one fresh set of namespaces for each.

It shares the machine's kernel and clock, so it is for what WebAssembly cannot run. What ends a run for the machine's
reasons - time, memory, a kill - is an abstention (`scorer.ABSTAINED`): never a statement about the program.
Blocking and thread-safe. Every run is over, and everything of it gone, when `call` returns.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from muster.errors import MalformedError, UnreachableError
from muster.sandbox.component import find_component
from muster.sandbox.images import Image, unpacked
from muster.sandbox.native_walls import (
    MAX_BUILT_BYTES,
    MAX_WRITTEN_BYTES,
    limit,
    native_command,
    native_filter,
    require_walls,
    sealed,
)
from muster.sandbox.scorer import MAX_PAYLOAD_BYTES, NativeManifest, Outcome

START_SECONDS: Final = 60.0
WAIT_FACTOR: Final = 4
SPARE_SECONDS: Final = 10.0
"""How much longer than its CPU time a run may take on a machine that is busy: this times, and so much more."""
NEAR_TIME: Final = 8
"""A run that took more than this fraction of its CPU time might not have ended on a slower machine."""
NEAR_MEMORY: Final = 2
OUT_OF_TIME: Final = 0.5
"""The kernel ends a run by ticks, which may be before its time is over. What was killed after this share of it, and
could not be by itself or another program, was killed for that."""
BUILT_PROGRAMS: Final = 8
"""Kept in memory: a program is built once for its tests."""

_KILLED: Final = 128 + signal.SIGKILL


class Native:
    """Runs programs of native images."""

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        """Find runs' images in `folder`, unpack into `cache`; without them, only this machine's own."""
        self._folder, self._cache = folder or Path(), cache
        self._lock = threading.Lock()
        self._images: dict[str, tuple[Path, Image]] = {}
        self._built: OrderedDict[tuple[str, str], bytes | Outcome] = OrderedDict()

    def call(self, scorer: NativeManifest, payload: Any) -> Outcome:
        """Run a program once: `kind`, `code`, `input`, and for a function `entry`; `setup` comes before the program.

        Raises ConfigError where the walls do not stand, CheckError when the image is not here, UnreachableError when
        this machine could not start the program.
        """
        # 1. No program runs without its walls.
        require_walls()
        root, image = self._image(scorer.image)
        function = payload["kind"] == "function"
        if function and not image.call:
            raise MalformedError(f"image {scorer.image[:10]} calls no functions; its tasks are of the kind stdin")
        text = "\n\n".join(part for part in (payload.get("setup"), payload["code"]) if part)
        given = json.dumps({"entry": payload["entry"], "input": payload["input"]}) if function else payload["input"]
        if len(text) + len(given) > MAX_PAYLOAD_BYTES:
            return Outcome(None, 0, "payload")

        # 2. Its text, or what is built of it.
        files = {image.file: text.encode(errors="replace")}
        if image.build:
            program = self._build(scorer, root, image, files[image.file])
            if isinstance(program, Outcome):
                return program
            files = {"program": program}

        # 3. Run it.
        job = _Job(root, image.call if function else image.run, files, given.encode(errors="replace"))
        done = _run(scorer, image, job)
        if done.stopped:
            return Outcome(None, 0, done.stopped)
        return Outcome(_value(done, function), 0, near=done.near)

    def _image(self, name: str) -> tuple[Path, Image]:
        with self._lock:
            if name not in self._images:
                self._images[name] = unpacked(find_component(name, self._folder), self._cache)
            return self._images[name]

    def _build(self, scorer: NativeManifest, root: Path, image: Image, text: bytes) -> bytes | Outcome:
        """Return the program, or why there is none."""
        key = (scorer.image, text.decode(errors="replace"))
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        program: bytes | Outcome = text
        for number, step in enumerate(image.build):
            files = {image.file if number == 0 else "in": program}
            done = _run(scorer, image, _Job(root, step, files, builds=True))
            if done.stopped:
                return Outcome(None, 0, done.stopped)  # not kept: the next attempt may get further
            if done.code != 0:
                program = Outcome({"error": "it does not build"}, 0, near=done.near)
                break
            program = done.output
        with self._lock:
            self._built[key] = program
            while len(self._built) > BUILT_PROGRAMS:
                self._built.popitem(last=False)
        return program


@dataclass(frozen=True)
class _Job:
    root: Path
    arguments: Sequence[str]
    files: Mapping[str, bytes]
    stdin: bytes = b""
    builds: bool = False
    """Whether what it writes to `/task/out` is its output, instead of what it prints."""


class _Done(NamedTuple):
    code: int
    output: bytes
    stopped: str
    near: bool


def _value(done: _Done, function: bool) -> dict[str, Any]:
    if done.code != 0:
        return {"error": f"exit status {done.code}"}
    if len(done.output) >= MAX_WRITTEN_BYTES:
        return {"error": "too much output"}
    if not function:
        return {"text": done.output.decode("utf-8", "replace")}
    try:
        match from_json(done.output, allow_inf_nan=False):
            case {"value": value}:
                return {"value": value}
            case {"error": str(error)}:
                return {"error": error[:100]}
    except ValueError:
        pass
    return {"error": "not a result"}


def _run(scorer: NativeManifest, image: Image, job: _Job) -> _Done:
    """Run one process behind the walls, to its end."""
    with ExitStack() as stack:
        # 1. What it is given: all of it is in memory, and sealed, except for what it writes.
        output = None
        if job.builds:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-native-"))
            output = Path(folder) / "out"
            output.touch()
        stdin, rules = (
            stack.enter_context(_closing(sealed(job.stdin))),
            stack.enter_context(_closing(sealed(native_filter()))),
        )
        files = {name: stack.enter_context(_closing(sealed(data))) for name, data in job.files.items()}
        written, errors = (stack.enter_context(_closing(os.memfd_create(name))) for name in ("output", "errors"))
        status, status_end = os.pipe()
        stack.callback(os.close, status)
        block_end, block = os.pipe()
        stack.callback(os.close, block)
        with _closing(status_end), _closing(block_end):
            descriptors = {"--seccomp": rules, "--json-status-fd": status_end, "--block-fd": block_end}
            process = subprocess.Popen(
                native_command(job.root, job.arguments, image.environment, files, output, descriptors),
                stdin=stdin,
                stdout=written,
                stderr=errors,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
                pass_fds=(rules, status_end, block_end, *files.values()),
            )

        # 2. It waits until its limits are set, then runs until it ends or time is over.
        report = bytearray()
        child = 0
        try:
            child = _child(status, report)
            limit(child, scorer, MAX_BUILT_BYTES if job.builds else MAX_WRITTEN_BYTES)
            os.write(block, b"1")
            late = not _ended(process.pid, scorer.seconds * WAIT_FACTOR + SPARE_SECONDS)
        except OSError as error:
            raise UnreachableError(f"bubblewrap started no program: {_text(errors) or error}", hint=_HINT) from error
        finally:
            _, ending, usage = _end(process, child)

        # 3. What came of it.
        while chunk := os.read(status, 1 << 12):
            report += chunk
        seconds, memory = usage.ru_utime + usage.ru_stime, _peak_memory(usage)
        near = seconds > scorer.seconds / NEAR_TIME or memory > scorer.memory / NEAR_MEMORY
        if late:
            return _Done(0, b"", "time", near)
        code = _exit_code(bytes(report))
        if code is None:
            raise UnreachableError(f"bubblewrap started no program: {_text(errors) or ending}", hint=_HINT)
        if code == _KILLED:
            return _Done(code, b"", "time" if seconds > OUT_OF_TIME * scorer.seconds else "killed", near)
        if code != 0 and memory > scorer.memory / NEAR_MEMORY:
            return _Done(code, b"", "memory", near)
        if output is not None:
            with output.open("rb") as stream:
                return _Done(code, stream.read(MAX_BUILT_BYTES), "", near)
        return _Done(code, os.pread(written, MAX_WRITTEN_BYTES, 0), "", near)


_HINT: Final = "muster doctor says which walls stand; is this machine short of memory?"


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _child(status: int, report: bytearray) -> int:
    """Return the number of the process that waits for its limits, from bubblewrap's report. Raises OSError."""
    deadline = time.monotonic() + START_SECONDS
    while b"\n" not in report:
        if not select.select([status], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise OSError("it does not start")
        chunk = os.read(status, 1 << 12)
        if not chunk:
            raise OSError("it ended at once")
        report += chunk
    return int(json.loads(report.split(b"\n")[0])["child-pid"])


def _peak_memory(usage: resource.struct_rusage) -> int:
    """Return the most bytes that a program held at once; 0 where this process has held more.

    Linux counts what the process that starts a program has held as the program's own.
    """
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else 0


def _exit_code(report: bytes) -> int | None:
    """Return the program's exit status; None if it never started."""
    for line in report.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if "exit-code" in document:
            return int(document["exit-code"])
    return None


def _ended(pid: int, seconds: float) -> bool:
    """Wait until a process of ours has ended; return False where it has not in time."""
    with _closing(os.pidfd_open(pid)) as watched:
        return bool(select.select([watched], [], [], seconds)[0])


def _end(process: subprocess.Popen[bytes], child: int) -> tuple[int, int, Any]:
    """End bubblewrap and all that runs in its namespaces, if it has not ended; return what `os.wait4` does."""
    ended = _ended(process.pid, 0)
    if not ended:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # the namespace's first: the kernel ends all others with it
            ended = _ended(process.pid, START_SECONDS)
        if not ended:
            process.kill()
    result = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(result[1])
    return result


def _text(errors: int) -> str:
    return os.pread(errors, 300, 0).decode(errors="replace").strip()
