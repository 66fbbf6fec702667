"""Replace what a machine would answer differently from another: clocks, randomness, files. Imported before all else.

The component imports nothing, so whatever still reaches for the outside ends the call. What is replaced here answers
alike everywhere: programs that measure their time, shuffle a list or look for a file go on.
"""

import _io
import builtins
import datetime
import io
import os
import posix
import random
import select
import sys
import time
import types

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
    time.clock_gettime = lambda clock: _seconds() if clock == time.CLOCK_REALTIME else _seconds_since_start()
    time.get_clock_info = lambda name: types.SimpleNamespace(
        implementation="virtual", monotonic=name != "time", adjustable=False, resolution=TICK_NS / 10**9
    )
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _with_now(time.gmtime if name == "localtime" else getattr(time, name)))
    strftime, asctime = time.strftime, time.asctime
    time.strftime = lambda form, t=None: strftime(form, time.gmtime() if t is None else t)
    time.asctime = lambda t=None: asctime(time.gmtime() if t is None else t)

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

    os.urandom = posix.urandom = urandom
    random._urandom = urandom
    original = random.Random.seed

    def seed(self, a=None, version=2):
        original(self, int.from_bytes(urandom(8), "big") if a is None else a, version)

    random.Random.seed = seed
    random._inst.seed(0)
    random.seed = random._inst.seed


STAY = (
    "_create_environ _exit _inputhook _is_inputhook_installed _path_normpath _path_splitroot_ex abort confstr "
    "cpu_count fspath getcwd getcwdb getpid putenv sched_yield strerror sysconf uname unsetenv urandom"
)
"""What the system's functions answer without a system. All others would end the instance."""
AUDITED = ("open", "socket.__new__")
"""What code in C opens without asking `open`: for a syntax error, the file that the bad text is in."""


def refuse(*_, **__):
    raise PermissionError(1, "there are no files here")


def refuse_opening(event, _):
    if event in AUDITED:
        refuse()


def replace_files() -> None:
    """Let whatever would reach for a file, a socket or a terminal raise what CPython raises where it may not."""
    for module in (os, posix):
        for name, value in vars(posix).items():
            if isinstance(value, types.BuiltinFunctionType) and name not in STAY.split():
                setattr(module, name, refuse)
        module.isatty = module.access = lambda *_, **__: False
        module.times = lambda: os.times_result((_seconds_since_start(), 0.0, 0.0, 0.0, _seconds_since_start()))
    for module, names in ((builtins, "open"), (io, "open FileIO"), (_io, "open FileIO"), (select, "select poll")):
        for name in names.split():
            setattr(module, name, refuse)
    sys.addaudithook(refuse_opening)
    sys.stdin = io.StringIO("")


def replace_waits() -> None:
    """Let a wait that ends by itself take its time, and every other raise: there is nobody who could end it."""
    import queue
    import threading

    def wait(condition, timeout=None):
        if timeout is None:
            raise RuntimeError("this would wait for ever: there is one thread")
        _sleep(timeout)
        return False

    threading.Condition.wait = wait
    queue.SimpleQueue = queue._PySimpleQueue


def limit_recursion() -> None:
    original = sys.setrecursionlimit
    sys.setrecursionlimit = lambda limit: original(min(limit, MAX_RECURSION))
    original(1_000)


replace_clocks()
replace_randomness()
limit_recursion()
