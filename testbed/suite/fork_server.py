"""Start this project's Python processes as forks of one that has imported torch and vLLM already.

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

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import warnings
from typing import Any, Final, NoReturn

import psutil
import structlog
from execnet.gateway_io import popen_bootstrapline

from testbed.paths import ROOT
from testbed.suite import derived_keys, warm_models
from testbed.waiting import BOUND

FORKED: Final = frozenset(
    {
        "adversary",
        "muster",
        "muster.shardcast",
        "orchestrator",
        "tests.engine.gpu_config",
        "tests.engine.split_engine",
        "testbed.runs.learner_process",
        "testbed.runs.other_model_probe",
        "testbed.runs.ranks_process",
        "torch.distributed.run",
        "trainer",
        "validator",
        "validator.measure",
        "validator.probe",
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

IMPORTED: Final = (
    "worker",  # before vLLM, which it tells what the processor may be asked for
    "muster.console",
    "muster.models.init",
    "muster.shardcast.serve.relay",
    "muster.swarm.demo",
    "orchestrator.service",
    "torch.distributed.run",
    "trainer.launch",
    "transformers.models.qwen2.modeling_qwen2",
    "validator.service",
    "vllm.engine.arg_utils",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "worker.answering",
    "worker.engine_extension",
    "worker.sampler",
    "worker.service",
)
SPAWNED: Final = "spawned"
"""Stands for the module of what `multiprocessing` spawns."""
OPTIONS: Final = frozenset({"-P", "-u", "-W", "ignore"})
EXEC: Final = subprocess.Popen
PYTHON: Final = sys.executable
MESSAGE_BYTES: Final = 1 << 20
MAX_DESCRIPTORS: Final = 64
FREE_DESCRIPTOR: Final = 512
"""From here on a forked process has none that it was to be given."""
NAME_BYTES: Final = 15
"""How much of a process's name Linux keeps. A forked process has the name of its module."""
NAME: Final = "fork-server"
"""Of these processes among others."""
_SET_NAME: Final = 15
_SET_CHILD_SUBREAPER: Final = 36

_channel: socket.socket | None = None
"""To the fork server of this process."""
_lock = threading.Lock()


class ForkedPopen(EXEC):  # type: ignore[type-arg]
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
        request = {
            "module": module,
            "arguments": words[name + 1 :],
            "folder": os.path.abspath(cwd or os.getcwd()),
            "environment": dict(wanted),
            "session": bool(new_session),
            "terminal": preexec_fn is take_terminal,
            "lines": "-u" in words[:name] or preexec_fn is take_terminal,
            "quiet": "-W" in words[:name],
        }
        streams = [own if given == -1 else given for own, given in enumerate((stdin, stdout, stderr))]
        self.pid = ask_for_fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(stdin, p2cwrite, c2pread, stdout, errread, stderr)  # type: ignore[attr-defined]
        return None


def module_of(words: list[str]) -> str | None:
    """The module that a command runs, if it is one that can be forked."""
    if not words or words[0] != PYTHON:
        return None
    first = next((i for i, word in enumerate(words[1:], 1) if word not in OPTIONS), 0)
    if words[first:] == ["-c", popen_bootstrapline]:
        return PYTEST
    if words[first : first + 1] != ["-m"] or words[first + 1] not in FORKED:
        return None
    return words[first + 1]


def install() -> None:
    """Fork what can be forked, from now on in this process. Whatever it starts does not ignore Ctrl-C, even where
    these tests run in the background of a shell.
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
    request = {
        "module": SPAWNED,
        "arguments": words[words.index("-c") + 1 :],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "session": False,
        "terminal": False,
        "lines": False,
        "quiet": True,
        "descriptors": given,
    }
    return ask_for_fork(request, [0, 1, 2, *given])


_spawn = multiprocessing.util.spawnv_passfds


def exec_process(*args: Any, **options: Any) -> subprocess.Popen[str]:
    """A process that is started in the plain way, as from a shell."""
    return EXEC(*args, **options)


def runs(process: psutil.Process, module: str) -> bool:
    """Return whether a process, forked or started in the plain way, runs a module and has not ended."""
    if process.status() == psutil.STATUS_ZOMBIE:
        return False
    return process.name() == module[:NAME_BYTES] or module in process.cmdline()


def ask_for_fork(request: dict[str, Any], streams: list[int]) -> int:
    """Let the fork server start a child of this process; its pid."""
    global _channel
    with _lock:
        if _channel is None:
            _channel = _start_server()
        socket.send_fds(_channel, [json.dumps(request).encode()], streams)
        return int(_channel.recv(64))


def _start_server() -> socket.socket:
    """A fork server that imports everything first. It ends with this process, or rather with its end of the channel."""
    adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    EXEC(
        [PYTHON, "-m", "testbed.suite.fork_server", str(theirs.fileno())],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    ).returncode = 0  # nobody waits for it
    theirs.close()
    ours.settimeout(BOUND)
    assert ours.recv(64) == b"ready", "the fork server did not start: its error is above"
    return ours


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
    """Become the parent of whatever a child of ours leaves behind, as a forked process is left by the fork server."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _call_this_process(name: str) -> None:
    ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


# --- In the fork server


def main(descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    install()  # before anybody imports `Popen` by its name
    before = dict(os.environ)
    import_everything()
    assert threading.active_count() == 1, "a process with threads must not be forked"
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()
    channel.send(b"ready")
    serve(channel, added)


def import_everything() -> None:
    from worker.engine import VLLM_DEFAULTS, VLLM_REQUIRED

    os.environ.update(VLLM_DEFAULTS | VLLM_REQUIRED)
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in IMPORTED:
            importlib.import_module(module)
    init = sys.modules["muster.models.init"]
    init.warm_up = warm_models.share(init.warm_up)  # type: ignore[attr-defined]
    keyfile = importlib.import_module("eth_keyfile.keyfile")
    keyfile.scrypt = derived_keys.share(keyfile.scrypt)  # type: ignore[attr-defined]
    gc.enable()


def serve(channel: socket.socket, added: dict[str, str]) -> None:
    """Fork for every request, until the other end is closed. Returns in a forked process when its module ends."""
    _call_this_process(NAME)
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        request = json.loads(message)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            forked = os.fork()
            if forked:
                os.write(writing, str(forked).encode())
                os._exit(0)
            for opened in (reading, writing, channel.detach()):
                os.close(opened)
            run(request, streams, added)
        os.waitpid(between, 0)  # from here on the forked process is the asking one's child
        channel.send(os.read(reading, 64))
        for opened in (*streams, reading, writing):
            os.close(opened)


def run(request: dict[str, Any], streams: list[int], added: dict[str, str]) -> NoReturn:
    """Become the process that was asked for."""
    _call_this_process(request["module"])
    if request["session"]:
        os.setsid()
    _put_in_place(streams, [0, 1, 2, *request.get("descriptors", ())])
    if request["terminal"]:
        take_terminal()
    os.environ.clear()
    os.environ.update(added | request["environment"])
    time.tzset()
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    if request["module"] in STARTERS:
        _fork_server_of_this_process(added)
    logging.root.handlers.clear()
    sys.stdout.reconfigure(line_buffering=request["lines"])  # type: ignore[union-attr]
    if request["quiet"]:
        warnings.simplefilter("ignore")
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":  # torch reads it when it is imported
        sys.modules["torch._dynamo.config"].disable = True  # type: ignore[attr-defined]
    os.execv = _become
    _to_its_end(request["module"], request["arguments"])


def _become(path: str, words: list[str]) -> NoReturn:
    """Stand for `os.execv`: what a forked process becomes is imported already."""
    module = module_of(list(words))
    if module is None:
        _exec(path, words)
    _call_this_process(module)
    logging.root.handlers.clear()
    structlog.reset_defaults()
    _to_its_end(module, words[words.index(module) + 1 :])


_exec = os.execv


def _to_its_end(module: str, arguments: list[str]) -> NoReturn:
    """Run a module, and end as its process would."""
    status = 0
    try:
        if module in (SPAWNED, PYTEST):
            code, *words = arguments
            sys.argv = ["-c", *words]
            exec(code, {"__name__": "__main__"})
        else:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (as an interpreter does)
        traceback.print_exc()
        status = 1
    _leave(status)


def _put_in_place(came: list[int], wanted: list[int]) -> None:
    """Give the descriptors that came the numbers that they have where they were sent."""
    kept = [fcntl.fcntl(each, fcntl.F_DUPFD, FREE_DESCRIPTOR) for each in came]
    for each in came:
        os.close(each)
    for each, own in zip(kept, wanted, strict=True):
        os.dup2(each, own)
        os.close(each)


def _leave(status: int) -> NoReturn:
    """End as an interpreter ends, without taking apart what was imported: that takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _fork_server_of_this_process(added: dict[str, str]) -> None:
    global _channel
    adopt_orphans()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for own in range(3):
            os.dup2(nothing, own)
        serve(theirs, added)
        raise AssertionError("a fork server does not return")
    theirs.close()
    _channel = ours
    install()
    multiprocessing.util.spawnv_passfds = _fork_spawned


if __name__ == "__main__":
    # As the module that others import, so that there is one `_channel`.
    from testbed.suite import fork_server

    fork_server.main(int(sys.argv[1]))
