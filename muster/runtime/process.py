"""Starting and ending a process of ours: settings, logs, signals, and an exit code that means something.

`run_process` is the whole `__main__` of a process. SIGTERM and SIGINT cancel what runs, which then has the
chance to put things away; whatever it does not get to, its journal knows. Exit codes are those of `muster.errors`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from muster import telemetry
from muster.errors import ConfigError, MusterError
from muster.settings import Settings
from muster.settings_sources import load_settings

Main = Callable[[Settings], Coroutine[Any, Any, None]]
T = TypeVar("T")


def run_process(
    role: str, what: str, main: Main, arguments: Sequence[str] | None = None, *, metrics: bool = True
) -> int:
    """Run `main` with the settings of `--config` until it ends, fails or is told to stop; the exit code.

    `role` names the process in logs where the settings do not; `what` is the line that --help shows. `metrics`: serve
    them, if the settings say so; of several processes with the same settings only one can.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {role}", description=what)
    parser.add_argument("--config", type=Path, required=True, help="settings file (TOML)")
    options = parser.parse_args(arguments)
    log = telemetry.logger(role)
    try:
        settings = load_settings(options.config)
        telemetry.configure(settings.name or role, log_file=settings.log.file, level=settings.log.level)
        asyncio.run(_until_told(main, settings, settings.log.metrics_port if metrics else 0))
    except MusterError as error:
        log.error("ended", error=str(error), hint=error.hint, exit_code=error.exit_code)
        print(f"error: {error}" + (f"\n  try: {error.hint}" if error.hint else ""), file=sys.stderr)
        if os.environ.get("MUSTER_DEBUG"):
            raise
        return error.exit_code
    log.info("ended", exit_code=0)
    return 0


async def run_together(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run all until one fails, then cancel the others; raises the failure itself, not a group of it."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except BaseExceptionGroup as failures:
        raise _first(failures) from failures


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that must not be left half done, however often this task is cancelled meanwhile: that counts once
    the work is done. Raises what the work raises; cancelled, CancelledError with that as its cause."""
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


async def wait_for_bell(bell: asyncio.Event, seconds: float) -> None:
    """Wait until the bell rings, or until `seconds` are over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await bell.wait()


def _first(failures: BaseExceptionGroup) -> BaseException:
    """What ended them: a failure that nobody expected before one that has a name."""
    unexpected = failures.subgroup(lambda failure: not isinstance(failure, MusterError))
    chosen: BaseException = unexpected or failures
    while isinstance(chosen, BaseExceptionGroup):
        chosen = chosen.exceptions[0]
    return chosen


async def _until_told(main: Main, settings: Settings, metrics_port: int) -> None:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(main(settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with _metrics(metrics_port):
        try:
            await work
        except asyncio.CancelledError:
            if not work.cancelled():
                raise


@contextmanager
def _metrics(port: int) -> Iterator[None]:
    if port == 0:
        yield
        return
    try:
        server, thread = telemetry.serve_metrics("127.0.0.1", port)
    except OSError as error:
        raise ConfigError(f"port {port} for metrics is taken", hint="set log.metrics_port to another") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
