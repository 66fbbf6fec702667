"""The process that has imported everything, and forks: python -m testbed.suite.fork_server DESCRIPTOR (`forks`)."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from typing import Final, NoReturn

import structlog

from testbed.suite import shared_work
from testbed.suite.forks import (
    NAME,
    PYTEST,
    SPAWNED,
    STARTERS,
    Request,
    adopt_orphans,
    install,
    module_of,
    name_this_process,
    take_terminal,
    use,
)

IMPORTED: Final = (
    "worker",  # before vLLM, which it tells what the processor may be asked for
    "explorer.service",
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
MESSAGE_BYTES: Final = 1 << 20
MAX_DESCRIPTORS: Final = 64
FREE_DESCRIPTOR: Final = 512
"""From here on a forked process has none that it was to be given."""


def main(descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    install()  # before any module imports `Popen` by its name
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
    init, keyfile = sys.modules["muster.models.init"], importlib.import_module("eth_keyfile.keyfile")
    init.warm_up = shared_work.share_warm_up(init.warm_up)  # type: ignore[attr-defined]
    keyfile.scrypt = shared_work.share_scrypt(keyfile.scrypt)  # type: ignore[attr-defined]
    gc.enable()


def serve(channel: socket.socket, added: dict[str, str]) -> None:
    """Fork for every request, until the other end is closed. Returns in a forked process when its module ends."""
    name_this_process(NAME)
    while True:
        message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        request = Request(**json.loads(message))
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


def run(request: Request, streams: list[int], added: dict[str, str]) -> NoReturn:
    """Become the process that was asked for."""
    name_this_process(request.module)
    if request.session:
        os.setsid()
    _put_in_place(streams, [0, 1, 2, *request.descriptors])
    if request.terminal:
        take_terminal()
    os.environ.clear()
    os.environ.update(added | request.environment)
    time.tzset()
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    if request.module in STARTERS:
        _fork_server_of_this_process(added)
    logging.root.handlers.clear()
    sys.stdout.reconfigure(line_buffering=request.lines)  # type: ignore[union-attr]
    if request.quiet:
        warnings.simplefilter("ignore")
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":  # torch reads it when it is imported
        sys.modules["torch._dynamo.config"].disable = True  # type: ignore[attr-defined]
    os.execv = _become
    _to_its_end(request.module, request.arguments)


def _become(path: str, words: list[str]) -> NoReturn:
    """Stand for `os.execv`: what a forked process becomes is imported already."""
    module = module_of(list(words))
    if module is None:
        _exec(path, words)
    name_this_process(module)
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
    use(ours)


if __name__ == "__main__":
    main(int(sys.argv[1]))
