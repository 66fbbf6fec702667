"""Start this project's Python processes as forks of one that has imported torch and vLLM already (`fork_server`).

Importing them takes a process up to ten seconds of CPU time, and a swarm in which processes are killed imports them
twenty times. `install` replaces `subprocess.Popen`: `python -m MODULE` with a module of FORKED is forked, every other
command runs as ever. A forked process has its own pid, session, environment, folder and standard streams, and is our
child: it is waited for, signalled and killed like any other. Only /proc/PID/cmdline shows the fork server's command.
What a module of STARTERS spawns by `multiprocessing`, as vLLM does, is forked too and is given what it would be given.
A forked `muster` that becomes another module of FORKED by `os.execv` runs it where it is.
The processes that pytest-xdist shares the tests out to are forked as well, so that a run imports everything once.

`exec_process` starts a process in the plain way, and so does every other start with another PYTHONPATH, with variables
that torch reads when it is imported, or with MUSTER_TEST_FORKS=0 in its environment. The tests' own environment with
the latter starts all so, to measure coverage.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import psutil
from execnet.gateway_io import popen_bootstrapline

from testbed.paths import ROOT
from testbed.waiting import BOUND

FORKED: Final = frozenset(
    {
        "adversary",
        "benchmarks.chaos_member",
        "explorer",
        "muster",
        "muster.shardcast",
        "orchestrator",
        "tests.engine.gpu_config",
        "tests.engine.split_engine",
        "testbed.runs.learner_process",
        "testbed.runs.ranks_process",
        "torch.distributed.run",
        "trainer",
        "validator",
        "validator.measure",
        "vllm.entrypoints.openai.api_server",
        "worker",
        "worker.answering",
        "worker.probe",
    }
)
PYTEST: Final = "pytest"
"""Stands for the module of a process of pytest-xdist."""
STARTERS: Final = frozenset(
    {PYTEST, "muster", "tests.engine.split_engine", "torch.distributed.run", "vllm.entrypoints.openai.api_server"}
)
"""Modules that start others of FORKED: they get a fork server of their own, so that those are their children."""

SPAWNED: Final = "spawned"
"""Stands for the module of what `multiprocessing` spawns."""
OPTIONS: Final = frozenset({"-P", "-u", "-W", "ignore"})
exec_process: Final = subprocess.Popen
"""Starts a process in the plain way, as from a shell."""
PYTHON: Final = sys.executable
NAME_BYTES: Final = 15
"""How much of a process's name Linux keeps. A forked process has the name of its module."""
NAME: Final = "fork-server"
"""Of these processes among others."""
_SET_NAME: Final = 15
_SET_CHILD_SUBREAPER: Final = 36

_channel: socket.socket | None = None
"""To the fork server of this process."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Request:
    """What a forked process is to be: as a process that was started so would be."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    session: bool = False
    terminal: bool = False
    """Its standard input is its session's terminal."""
    lines: bool = False
    """Its standard output is flushed with each line."""
    quiet: bool = False
    """It shows no warnings."""
    descriptors: list[int] = field(default_factory=list)
    """Beside the standard streams."""


class ForkedPopen(exec_process):  # type: ignore[type-arg]
    """A `subprocess.Popen` that forks where it can."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Any, *rest: Any):
        cwd, env, _, _, shell, *pipes, _, gid, gids, uid, umask, new_session, group = rest
        wanted = os.environ if env is None else env
        special = any(wanted.get(name) != os.environ.get(name) for name in ("PYTHONPATH", "ATEN_CPU_CAPABILITY"))
        special |= wanted.get("MUSTER_TEST_FORKS") == "0"
        special |= preexec_fn not in (None, take_terminal) or bool(pass_fds) or max(umask, group) >= 0
        special |= (executable, gid, gids, uid) != (None,) * 4
        words = [] if isinstance(args, (str, bytes, os.PathLike)) else [os.fspath(word) for word in args]
        module = module_of(words)
        if module is None or shell or special:
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, *rest)  # type: ignore[misc]
        stdin, p2cwrite, c2pread, stdout, errread, stderr = pipes
        name = words.index("-c") if module == PYTEST else words.index(module)
        on_terminal = preexec_fn is take_terminal
        request = Request(
            module,
            words[name + 1 :],
            os.path.abspath(cwd or os.getcwd()),
            dict(wanted),
            session=bool(new_session),
            terminal=on_terminal,
            lines="-u" in words[:name] or on_terminal,
            quiet="-W" in words[:name],
        )
        streams = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
        self.pid = ask_for_fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(stdin, p2cwrite, c2pread, stdout, errread, stderr)  # type: ignore[attr-defined]
        return None


def module_of(words: list[str]) -> str | None:
    """Return the module that a command runs, if it is one that can be forked."""
    if not words or words[0] != PYTHON:
        return None
    first = next((i for i, word in enumerate(words[1:], 1) if word not in OPTIONS), 0)
    if words[first:] == ["-c", popen_bootstrapline]:
        return PYTEST
    if words[first : first + 1] != ["-m"] or words[first + 1] not in FORKED:
        return None
    return words[first + 1]


def install() -> None:
    """Fork what can be forked, from now on in this process.

    What it starts obeys Ctrl-C, even where these tests run in the background of a shell.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("MUSTER_TEST_FORKS") != "0":
        subprocess.Popen = ForkedPopen  # type: ignore[misc]


def _fork_spawned(path: Any, words: list[str], descriptors: list[int]) -> int:
    """Stand for `multiprocessing.util.spawnv_passfds`."""
    if "--multiprocessing-fork" not in words:
        return _spawn(path, words, descriptors)
    given = sorted(map(int, descriptors))
    code = words[words.index("-c") + 1 :]
    request = Request(SPAWNED, code, os.getcwd(), dict(os.environ), quiet=True, descriptors=given)
    return ask_for_fork(request, [0, 1, 2, *given])


_spawn = multiprocessing.util.spawnv_passfds


def runs(process: psutil.Process, module: str) -> bool:
    """Return whether a process, forked or started in the plain way, runs a module and has not ended."""
    if process.status() == psutil.STATUS_ZOMBIE:
        return False
    return process.name() == module[:NAME_BYTES] or module in process.cmdline()


def ask_for_fork(request: Request, streams: list[int]) -> int:
    """Let the fork server start a child of this process; its pid."""
    global _channel
    with _lock:
        if _channel is None:
            _channel = _start_server()
        socket.send_fds(_channel, [json.dumps(asdict(request)).encode()], streams)
        return int(_channel.recv(64))


def _start_server() -> socket.socket:
    """Start a fork server that imports everything first. It ends when this process's end of the channel closes."""
    adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    exec_process(
        [PYTHON, "-m", "testbed.suite.fork_server", str(theirs.fileno())],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    ).returncode = 0  # no caller waits for it
    theirs.close()
    ours.settimeout(BOUND)
    assert ours.recv(64) == b"ready", "the fork server did not start: its error is above"
    return ours


def use(channel: socket.socket) -> None:
    """Let this process, which was forked, fork what it starts and what it spawns by the server at a channel."""
    global _channel
    _channel = channel
    install()
    multiprocessing.util.spawnv_passfds = _fork_spawned


def close() -> None:
    """End the fork server of this process, if there is one."""
    global _channel
    if _channel is not None:
        _channel.close()
        _channel = None


def take_terminal() -> None:
    """Make the standard input the terminal of this process's session. A `preexec_fn` with which it can be forked."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def adopt_orphans() -> None:
    """Adopt the orphans of our children, such as the processes that the fork server forks and leaves."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_this_process(name: str) -> None:
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)
