"""Replace what a machine would answer differently from another: clocks, randomness, files. Imported before all else.

The component imports nothing, so whatever still reaches for the outside ends the call. What is replaced here answers
alike everywhere: programs that measure their time, shuffle a list or look for a file go on.
"""

import builtins
import datetime
import io
import os
import random
import sys
import time

START_NS = 1_721_952_000 * 10**9
"""Midnight of 26 July 2024, UTC: when every call begins."""
TICK_NS = 1_000
"""What one look at a clock takes."""
MAX_RECURSION = 50_000
"""Deepest recursion of Python code: programs ask for a million. To free some hundred thousand frames takes more than
the machine's stack, which must never decide. Through code written in C some thousand calls are the most."""


class Clock:
    now = START_NS


def _time_ns() -> int:
    Clock.now += TICK_NS
    return Clock.now


def _since_start_ns() -> int:
    return _time_ns() - START_NS


def _seconds() -> float:
    return _time_ns() / 10**9


def _seconds_since_start() -> float:
    return _since_start_ns() / 10**9


def _sleep(seconds) -> None:
    Clock.now += max(0, int(seconds * 10**9))


def replace_clocks() -> None:
    time.time, time.time_ns = _seconds, _time_ns
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, _seconds_since_start)
        setattr(time, name + "_ns", _since_start_ns)
    time.sleep = _sleep
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_now(time.gmtime if name == "localtime" else getattr(time, name)))
    original = time.strftime
    time.strftime = lambda form, t=None: original(form, time.gmtime() if t is None else t)

    class VirtualDatetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(_seconds(), tz or datetime.UTC).replace(tzinfo=tz)

        @classmethod
        def utcnow(cls):
            return cls.now()

        @classmethod
        def today(cls):
            return cls.now()

    class VirtualDate(datetime.date):
        @classmethod
        def today(cls):
            return cls.fromordinal(VirtualDatetime.now().toordinal())

    VirtualDatetime.__name__ = VirtualDatetime.__qualname__ = "datetime"
    VirtualDate.__name__ = VirtualDate.__qualname__ = "date"
    datetime.datetime, datetime.date = VirtualDatetime, VirtualDate


def _with_now(original):
    return lambda seconds=None: original(_seconds() if seconds is None else seconds)


def replace_randomness() -> None:
    drawn = [0]

    def urandom(size):
        import hashlib

        drawn[0] += 1
        return hashlib.shake_256(drawn[0].to_bytes(8, "big")).digest(size)

    os.urandom = urandom
    random._urandom = urandom
    original = random.Random.seed

    def seed(self, a=None, version=2):
        original(self, int.from_bytes(urandom(8), "big") if a is None else a, version)

    random.Random.seed = seed
    random._inst.seed(0)
    random.seed = random._inst.seed


def replace_files() -> None:
    def refuse(*_, **__):
        raise PermissionError(1, "there are no files here")

    builtins.open = io.open = refuse
    for name in (
        "open",
        "listdir",
        "scandir",
        "stat",
        "lstat",
        "mkdir",
        "remove",
        "unlink",
        "rename",
        "rmdir",
        "chdir",
    ):
        if hasattr(os, name):
            setattr(os, name, refuse)
    sys.stdin = io.StringIO("")


def limit_recursion() -> None:
    original = sys.setrecursionlimit
    sys.setrecursionlimit = lambda limit: original(min(limit, MAX_RECURSION))
    original(1_000)


replace_clocks()
replace_randomness()
limit_recursion()
