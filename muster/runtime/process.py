"""Start and end a process of ours: settings, logs, signals and exit codes.

`run_process` is the whole `__main__` of a process. SIGTERM and SIGINT cancel its tasks, which then clean up; what they
do not finish, the journal knows at the next start. Threads cannot be cancelled, so a process that gives `stop_seconds`
ends that long after the signal, whatever its threads do. Exit codes are those of `muster.errors`.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from prometheus_client import start_http_server

from muster.errors import EXIT_CODES, ConfigError, FinishedError, MusterError
from muster.runtime import telemetry
from muster.settings.schema import Settings
from muster.settings.sources import load_settings

STOP_SECONDS: Final = 4.0
"""From a signal to the end of a worker or validator. Unfinished work is done again at the next start."""

THREAD_SECONDS: Final = 1.0
"""From the end of all tasks to the end of the process: threads may still end by themselves and free what they hold."""

WAIT_POLL_SECONDS: Final = 0.05
"""Pause between two looks for a settings file that is waited for."""

Main = Callable[[Settings], Coroutine[Any, Any, None]]
T = TypeVar("T")


def run_process(
    role: str,
    what: str,
    main: Main,
    arguments: Sequence[str] | None = None,
    *,
    metrics: bool = True,
    tool: bool = False,
    stop_seconds: float | None = None,
    prepare: Callable[[], object] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run `main` with the settings of `--config` until it ends, fails or a signal comes; return the exit code.

    `role` names the process in logs where the settings do not; `what` is the line that --help shows. `metrics`: serve
    them, if the settings say so; of several processes with the same settings only one can. `tool`: somebody waits for
    its answer, beside the process that the settings are for; it has neither that one's name nor its log file nor its
    metrics, and says an error once. `stop_seconds`: longest time from a signal to the end of the process; None
    waits for every thread. `prepare`: called before it waits for its settings (`--wait`), to load what it needs
    whatever they say. `loop_factory`: makes the event loop, such as `quick_loop`; asyncio's own without it.
    """
    # 1. Settings and logs.
    parser = argparse.ArgumentParser(prog=f"python -m {role}", description=what, epilog=EXIT_CODES)
    add_settings_options(parser)
    options = parser.parse_args(arguments)
    if not 0 <= options.wait < math.inf:
        parser.error(f"--wait takes a number of seconds, not {options.wait}")
    log = telemetry.logger(role)
    try:
        if options.wait and prepare is not None:
            prepare()
        deadline = time.monotonic() + options.wait
        while not options.config.exists() and time.monotonic() < deadline:
            time.sleep(WAIT_POLL_SECONDS)
        settings = load_settings(options.config)
        if tool:
            telemetry.configure("muster", level=settings.log.level)
        else:
            telemetry.configure(settings.name or role, log_file=settings.log.file, level=settings.log.level)
        # 2. Run until the end or a signal.
        port = settings.log.metrics_port if metrics and not tool else 0
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            stopped = runner.run(_run_until_signal(main, settings, port, stop_seconds))
    # 3. Say how it ended.
    except FinishedError as end:
        log.info("finished", reason=str(end), next=end.hint, exit_code=end.exit_code)
        return end.exit_code
    except MusterError as error:
        if not tool:
            log.error("ended", error=error.text, next=error.hint, exit_code=error.exit_code)
        _print_error(error)
        if os.environ.get("MUSTER_DEBUG"):
            raise
        return error.exit_code
    except KeyboardInterrupt:  # while it waited for settings, or for a password
        stopped = True
    if not tool:
        log.info("ended", exit_code=0)
    if stopped and stop_seconds is not None:
        _leave()  # an interpreter that ends with an engine in it collects garbage for seconds
    return 0


def quick_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of uvloop where that is installed, else one of asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add what `run_process` reads: --config and --wait."""
    parser.add_argument("--config", type=Path, required=True, help="settings file (TOML)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="wait for the file so long, at most")


def run_tool(job: Callable[[], None]) -> int:
    """Run a job that needs neither settings nor a loop; print an error of ours and return the exit code.

    A signal ends the process at once, with whatever it has begun.
    """
    try:
        job()
    except MusterError as error:
        _print_error(error)
        if os.environ.get("MUSTER_DEBUG"):
            raise
        return error.exit_code
    return 0


def _print_error(error: MusterError) -> None:
    print(f"error: {error.text}" + (f"\n  next: {error.hint}" if error.hint else ""), file=sys.stderr)


async def run_together(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run all until one fails, then cancel the others; raises the failure itself, not a group of it."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as failures:
        raise _first(failures) from failures


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that must not be left half done; a cancellation takes effect once it is done.

    Raises what the work raises; if cancelled, CancelledError with that as its cause.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


def _first(failures: BaseExceptionGroup) -> BaseException:
    """Return what ended them: an unexpected failure before one of our own errors."""
    unexpected = failures.subgroup(lambda failure: not isinstance(failure, MusterError))
    chosen: BaseException = unexpected or failures
    while isinstance(chosen, BaseExceptionGroup):
        chosen = chosen.exceptions[0]
    return chosen


async def _run_until_signal(main: Main, settings: Settings, metrics_port: int, stop_seconds: float | None) -> bool:
    """Run `main`; return whether a signal ended it."""
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(main(settings))
    stopped = False

    def leave_after(seconds: float) -> None:
        threading.Thread(target=_leave_after, args=(seconds,), name="stop", daemon=True).start()

    def stop() -> None:
        nonlocal stopped
        work.cancel()
        if stop_seconds is not None and not stopped:
            leave_after(stop_seconds)
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    with _metrics(metrics_port):
        try:
            await work
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
    if stop_seconds is not None and stopped:  # only threads are left, whose results are not awaited
        leave_after(THREAD_SECONDS)
    return stopped


def _leave_after(seconds: float) -> None:
    """End the process after `seconds`, without waiting for its threads: starting an engine can take minutes.

    Runs in a daemon thread, so a process that ends earlier is not kept.
    """
    time.sleep(seconds)
    if os.environ.get("MUSTER_DEBUG"):
        faulthandler.dump_traceback(sys.stderr)
    busy = sorted(one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread())
    telemetry.logger("muster").info("ended without waiting for threads", threads=busy, seconds=seconds, exit_code=0)
    _leave()


def _leave() -> NoReturn:
    """Flush the logs and end the process with 0 at once."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _metrics(port: int) -> Iterator[None]:
    if port == 0:
        yield
        return
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=telemetry.REGISTRY)
    except OSError as error:
        raise ConfigError(f"port {port} for metrics is taken", hint="set log.metrics_port to another") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
