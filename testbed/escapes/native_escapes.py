"""Let native programs attack the second sandbox, and judge from outside what they read, wrote, reached or left.

The host has canaries: those of `escapes`, two local sockets, shared memory, and a process with a secret that must live.
The same programs without the walls are the control: most of those that harm nobody succeed.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.errors import MusterError
from muster.sandbox.native import Native
from muster.sandbox.scorer import NativeManifest, Outcome
from testbed.escapes.escapes import Canaries, Report, canaries
from testbed.escapes.native_attacks import ATTACKS, CONTROLS, REACHED, program

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LIMITS: Final = {"seconds": 2, "memory": 1 << 30}
PROBE: Final = "import os, sys; print(sorted(os.environ), sorted(os.listdir('/')), os.listdir('/task'), sys.flags)"
VICTIM: Final = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
kept = ctypes.create_string_buffer(sys.argv[1].encode())
print(ctypes.addressof(kept), flush=True)
time.sleep(3600)
"""


class Surroundings:
    """What a native program could reach beside the canaries of `escapes`."""

    def __init__(self, guarded: Canaries) -> None:
        self.guarded, self.token, self.secret = guarded, secrets.token_hex(6), secrets.token_hex(16)
        self.local = guarded.folder / "socket"
        self.sockets = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        self.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sockets[2].bind(("127.0.0.1", guarded.port))
        for one, name in zip(self.sockets, (str(self.local), f"\0muster-{self.token}"), strict=False):
            one.bind(name)
            one.listen()
        for one in self.sockets:
            one.setblocking(False)
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        self.segment = libc.shmget(0, 4096, 0o1666)
        ctypes.memmove(libc.shmat(self.segment, 0, 0), self.secret.encode(), 32)
        libc.shmctl(self.segment, 0, None)  # gone with this process
        self.start_victim()
        guarded.touched()

    def start_victim(self) -> None:
        command = [sys.executable, "-c", VICTIM, self.secret]
        self.victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.victim.stdout is not None
        self.wanted = int(self.victim.stdout.readline())

    def names(self) -> dict[str, Any]:
        return {
            "FILE": self.guarded.file,
            "FOLDER": self.guarded.folder,
            "PORT": self.guarded.port,
            "LOCAL": self.local,
            "ABSTRACT": f"muster-{self.token}",
            "VICTIM": self.victim.pid,
            "WANTED": self.wanted,
            "SEGMENT": self.segment,
            "TOKEN": self.token,
        }

    def gained(self, text: str) -> list[str]:
        """Return what a program's words, and the state of the host, say that it gained."""
        found = self.guarded.told_by(Outcome(text, 0)) + self.guarded.touched()
        found += ["it read another's memory"] if self.secret in text else []
        found += ["it reached what it wanted"] if REACHED in text else []
        for one in self.sockets:
            try:
                one.recv(1) if one.type == socket.SOCK_DGRAM else one.accept()[0].close()
                found.append("it reached a socket")
            except BlockingIOError:
                pass
        left = [path for folder in ("/dev/shm", "/var/tmp", "/tmp", Path.home()) for path in Path(folder).glob("left*")]
        for path in left:
            path.unlink()
            found.append(f"it left {path}")
        if self.victim.poll() is not None:
            found.append("it killed another process")
            self.start_victim()
        return found

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        for one in self.sockets:
            one.close()


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    """Put canaries around the sandbox."""
    with canaries() as guarded:
        found = Surroundings(guarded)
        try:
            yield found
        finally:
            found.close()


def inside(folder: Path) -> set[int]:
    """Return the processes that see an image of this folder, wherever they hang: others' sandboxes have other ones."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and folder.name in (entry / "mountinfo").read_text():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def attack(folder: Path, image: str, kinds: Sequence[str] = tuple(ATTACKS)) -> Report:
    """Run the attacks behind the walls. `folder` has the image, and is where it is unpacked."""
    report = Report()
    native = Native(folder, folder / "cache")
    scorer = NativeManifest(image, **LIMITS)

    def run(text: str) -> Outcome:
        return native.call(scorer, {"kind": "stdin", "code": text, "input": "x\n"})

    with surroundings() as host:
        clean, files = run(PROBE), _state(folder)
        assert "text" in (clean.value or {}), clean
        for kind in kinds:
            begun = time.monotonic()
            try:
                outcome = run(program(kind, **host.names()))
                gained = host.gained(json.dumps(outcome.value) if outcome.value else "")
            except MusterError as error:
                gained = [f"it made the scorer fail ({error})"]
            seconds = time.monotonic() - begun
            gained += [f"process {pid} outlived it" for pid in inside(folder)]
            gained += ["the next run differs"] if run(PROBE).value != clean.value else []
            gained += ["the image changed"] if _state(folder) != files else []
            report.add(kind, gained, seconds)
    return report


def control() -> list[str]:
    """Run the harmless attacks without the walls; return those that gained nothing."""
    failed = []
    with surroundings() as host, tempfile.TemporaryDirectory(prefix="muster-control-") as work:
        for kind in CONTROLS:
            text = program(kind, **host.names())
            try:
                done = subprocess.run(
                    [sys.executable, "-c", text], capture_output=True, text=True, input="x\n", timeout=20, cwd=work
                )
                said = done.stdout
            except subprocess.TimeoutExpired as error:
                said = str(error.stdout)
            if not host.gained(said):
                failed.append(kind)
    return failed


def build_image(folder: Path) -> str:
    """Build an image of this interpreter with numpy, as a component of a run is kept; return its name."""
    command = [sys.executable, str(ROOT / "scripts" / "build_native_image.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=os.environ | {"PYTHONPATH": str(ROOT)})
    name = (folder / "native.sha256").read_text().strip()
    (folder / "native.tar.zst").rename(folder / name)
    return name


def _state(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))]
