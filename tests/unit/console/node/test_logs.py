"""muster logs: its output, hostile values, and a file that is cut or replaced while it is followed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster.console.node.logs import (
    FIRST_BYTES,
    LineFilter,
    Tail,
    escaped,
    follow_lines,
    last_lines,
    parse_age,
    parsed,
    shown,
)
from muster.errors import UsageError
from testbed.machine import Machine
from testbed.waiting import BOUND


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "machine", "http://127.0.0.1:1")
    made.settings("[log]\nfile = 'node.jsonl'\n")
    return made


def line(event: str, level: str = "info", at: float | None = None, **values: Any) -> str:
    when = datetime.fromtimestamp(at if at is not None else time.time(), UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({**values, "process": "worker-1", "level": level, "time": when, "event": event}) + "\n"


def write(machine: Machine, *lines: str) -> Path:
    path = machine.folder / "node.jsonl"
    path.write_text("".join(lines))
    return path


def test_lines_are_for_people(machine: Machine) -> None:
    write(
        machine,
        line("generated", "debug", 1_700_000_000, rows=3),
        line("committed", at=1_700_000_000.25, index=7, tx="0x" + "ab" * 32, seconds=1.23456),
        line("waiting", "warning", 1_700_000_001, reason="no answer"),
        "no JSON\n",
    )
    done = machine.type("logs")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "2023-11-14 22:13:20 worker-1 committed index=7 tx=0xabababab… seconds=1.235",
        "2023-11-14 22:13:21 worker-1 warning: waiting reason=no answer",
        "no JSON",
    ]
    assert machine.type("logs", "--level", "warning", "-n", "2").stdout.splitlines() == [
        "2023-11-14 22:13:21 worker-1 warning: waiting reason=no answer"
    ]
    assert [row["event"] for row in machine.json("logs", "--level", "debug")] == [
        "generated",
        "committed",
        "waiting",
        "no JSON",
    ]


def test_since_and_count(machine: Machine) -> None:
    now = time.time()
    write(machine, *(line(f"event {age}", at=now - age) for age in (7300, 3500, 500, 5)))
    assert [row["event"] for row in machine.json("logs", "--since", "1h")] == ["event 3500", "event 500", "event 5"]
    assert [row["event"] for row in machine.json("logs", "--since", "10m", "-n", "1")] == ["event 5"]
    assert machine.json("logs", "--since", "2s") == []


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172_800)])
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "1w", "1m2s", "١m"])
def test_invalid_age_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_age(text)


HOSTILE_KEY: Any = {"key\x1b[1m": 1}


def test_terminal_control_characters_are_escaped(machine: Machine) -> None:
    hostile = "\x1b[2J\x1b]0;own\x07\u202eevil\u2066\nnext\r\u2028\x9b31m\x7f\U000e0041"
    write(machine, line(hostile, reason=hostile, **HOSTILE_KEY))
    done = machine.type("logs")
    assert done.stdout.count("\n") == 1
    safe = "\\x1b[2J\\x1b]0;own\\x07\\u202eevil\\u2066\\nnext\\r\\u2028\\x9b31m\\x7f\\U000e0041"
    assert done.stdout[20:].rstrip("\n") == f"worker-1 {safe} reason={safe} key\\x1b[1m=1"
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout)
    assert escaped("é 漢字 🙂") == "é 漢字 🙂"
    assert escaped("x" * 5_000) == "x" * 4_000 + "…"


def test_an_exception_stands_below_its_line() -> None:
    text = shown(parsed(line("failed", "error", 0, exception="Traceback\n  File \x1b[1m").encode()))
    assert text == "1970-01-01 00:00:00 worker-1 error: failed\n    Traceback\n      File \\x1b[1m"


def test_missing_log_is_an_error_with_a_hint(machine: Machine) -> None:
    missing = machine.json("logs", status=78)
    assert missing["error"] == "no log at node.jsonl yet"
    machine.settings("")
    unset = machine.json("logs", status=78)
    assert unset["error"] == "log.file is not set: this process writes no log file"
    assert 'file = "log.jsonl" under [log]' in unset["hint"]
    machine.settings("[log]\nfile = 'node.jsonl'\n")
    assert machine.json("logs", "--follow", status=2)["error"] == "--json prints one document, and --follow never ends"


def events_from(path: Path, start: int) -> list[str]:
    with Tail(path, start) as tail:
        return [parsed(data)["event"] for data in tail.read()][:2]


def test_no_more_is_read_than_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [line(f"event {number}", at=number, padding="x" * 1000) for number in range(3 * FIRST_BYTES // 1000)]
    path.write_text("".join(rows))
    found, _ = last_lines(path, LineFilter(), 3)
    assert [row["event"] for row in found] == [f"event {len(rows) - left}" for left in (3, 2, 1)]
    found, _ = last_lines(path, LineFilter(), 10**6)
    assert [row["event"] for row in found] == [f"event {number}" for number in range(len(rows))]
    found, _ = last_lines(path, LineFilter(since=len(rows) - 2), 10**6)
    assert [row["event"] for row in found] == [f"event {len(rows) - left}" for left in (2, 1)]
    # A start at the very beginning of a line keeps that line.
    start = len("".join(rows[:5]))
    assert events_from(path, start) == ["event 5", "event 6"]
    assert events_from(path, start + 1) == ["event 6", "event 7"]


class EndedError(Exception):
    """The test has seen enough."""


async def follow(path: Path, *steps: Callable[[], object], count: int = 10) -> list[str]:
    """The events that following shows, where a step is taken at each pause."""
    seen: list[str] = []
    left = list(steps)

    async def pause(_: float) -> None:
        if not left:
            raise EndedError
        left.pop(0)()

    with pytest.raises(EndedError):
        await follow_lines(path, LineFilter(), count, lambda line: seen.append(line["event"]), pause)
    return seen


async def test_following_begins_with_last_lines_and_leaves_out_lower_levels(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(line(f"event {number}") for number in range(5)))

    def add() -> None:
        with path.open("a") as file:
            file.write(line("detail", "debug") + line("event 5"))

    assert await follow(path, add, count=2) == ["event 3", "event 4", "event 5"]


async def test_following_goes_on_through_half_lines_cuts_and_new_files(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def add(text: str) -> Callable[[], object]:
        def write() -> None:
            with path.open("a") as file:
                file.write(text)

        return write

    def rotate() -> None:
        with path.open("a") as file:
            file.write("last of the old\n")
        os.rename(path, tmp_path / "log.jsonl.1")

    def cut() -> None:
        path.write_text("cut\n")

    seen = await follow(
        path,
        lambda: None,  # no file yet
        add("one\ntw"),
        add("o\n"),
        cut,
        add("after the cut\n"),
        rotate,
        add("first of the new\n"),
        add("\n\nsecond\n"),
        lambda: None,
    )
    assert seen == [
        "one",
        "two",
        "cut",
        "after the cut",
        "last of the old",
        "first of the new",
        "second",
    ]


def test_an_endless_line_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * (3 << 20) + b"\nnext\n")
    with Tail(path) as tail:
        first, second = tail.read()
    assert len(first) < (1 << 20) + (1 << 17)
    assert second == b"next"


def test_follow_shows_what_is_added_to_what_was_there(machine: Machine, tmp_path: Path) -> None:
    path = write(machine, line("before"), line("half")[:10])
    command = [sys.executable, "-m", "muster", "--config", str(machine.folder / "muster.toml"), "logs", "--follow"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("worker-1 before\n")
        with path.open("a") as file:
            file.write(line("half")[10:] + line("after"))
        assert process.stdout.readline().endswith("worker-1 half\n")
        assert process.stdout.readline().endswith("worker-1 after\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130


def test_a_reader_that_has_seen_enough_is_no_error(machine: Machine) -> None:
    write(machine, *(line(f"event {number}", text="x" * 1000) for number in range(2_000)))
    command = [sys.executable, "-m", "muster", "logs", "-n", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=machine.folder) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"worker-1 event 0 " in process.stdout.readline()
        process.stdout.close()
        assert (process.wait(BOUND), process.stderr.read()) == (0, b"")
