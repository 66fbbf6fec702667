"""Orderly shutdown: protected work finishes, even after repeated stop requests."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.errors import ConfigError
from muster.runtime.files import write_atomically
from muster.runtime.process import run_process, to_the_end
from testbed.waiting import BOUND


async def test_protected_work_finishes_before_cancellation() -> None:
    done: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        begun.set()
        await go_on.wait()
        done.append("work")
        return "result"

    task = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work"]


async def test_undisturbed_it_is_a_plain_call() -> None:
    assert await to_the_end(asyncio.sleep(0, "result")) == "result"

    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await to_the_end(fail())


async def test_error_in_protected_work_is_the_cause() -> None:
    go_on = asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise OSError("no")

    task = asyncio.create_task(to_the_end(fail()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert str(caught.value.__cause__) == "no"


BUSY = """
import asyncio, sys, threading
from muster.runtime.process import run_process

async def main(settings):
    print("begun", flush=True)
    await asyncio.to_thread(threading.Event().wait, 600)  # uninterruptible, like an engine that starts

sys.exit(run_process("busy", "be busy", main, sys.argv[1:], stop_seconds=0.5))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_in_time_whatever_its_threads_are_at(tmp_path: Path, number: signal.Signals) -> None:
    config = tmp_path / "muster.toml"
    config.write_text(f"[log]\nfile = '{tmp_path / 'log.jsonl'}'\n")
    command = [sys.executable, "-c", BUSY, "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.wait(BOUND) == 0
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "ended without waiting for threads"
    assert "asyncio_0" in last["threads"]


WAITING = """
import sys
from muster.runtime.process import run_process

async def main(settings):
    print("settings of", settings.name)

def prepare():
    print("prepared", flush=True)

sys.exit(run_process("waiting", "wait", main, sys.argv[1:], prepare=prepare))
"""


def test_a_process_prepares_while_it_waits_for_its_settings(tmp_path: Path) -> None:
    config = tmp_path / "muster.toml"
    command = [sys.executable, "-c", WAITING, "--config", str(config), "--wait", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "prepared\n"
        write_atomically(config, 'name = "late"\n')
        assert process.stdout.read() == "settings of late\n"
    assert process.returncode == 0


def test_ctrl_c_ends_the_wait_for_settings(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, "--config", str(tmp_path / "muster.toml"), "--wait", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "prepared\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=BOUND)
    assert (process.returncode, "Traceback" in errors) == (0, False)


@pytest.mark.parametrize("seconds", ["-1.0", "nan", "inf"])
def test_invalid_wait_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_: object) -> None:
        raise AssertionError("it must not begin")

    with pytest.raises(SystemExit) as ended:
        run_process("waiting", "wait", serve, ["--config", "none", f"--wait={seconds}"])
    assert ended.value.code == 2
    assert f"--wait takes a number of seconds, not {seconds}" in capsys.readouterr().err


def test_settings_that_do_not_come_in_time_are_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, "--config", str(tmp_path / "muster.toml"), "--wait", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == ConfigError.exit_code
    assert done.stdout.startswith("prepared\n")
    assert f"error: no settings file at {tmp_path / 'muster.toml'}" in done.stderr
