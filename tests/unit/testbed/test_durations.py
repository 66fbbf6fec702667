"""The CPU seconds that a run of the tests reports: all of them, each with the test or fixture that caused them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from testbed.suite.durations import Meter, descendants, reaped
from testbed.suite.forks import exec_process

SECONDS = 0.3
"""CPU time of each burden."""
NEAR = 0.25
"""What an interpreter takes to start, and the clock ticks of several processes."""
BURN = f"import time\nend = time.process_time() + {SECONDS}\nwhile time.process_time() < end: pass\n"
PLAIN = [sys.executable, "-I", "-S", "-c"]
CHILD = f"import sys\n{BURN}\nprint(flush=True)\nsys.stdin.read()"
LASTING = f"""import subprocess, sys
sys.stdin.readline()
child = subprocess.Popen([*{PLAIN!r}, {CHILD!r}], stdin=subprocess.PIPE)
sys.stdin.readline()
child.communicate()
{BURN}
print(flush=True)
sys.stdin.read()
"""
"""At the first line of its input it starts a process that burns as much, at the second it ends that and burns."""


def test_cpu_seconds_go_to_who_caused_them() -> None:
    meter = Meter()
    meter.turn("fixture", look=True)
    lasting = exec_process([*PLAIN, LASTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    meter.turn("test", look=True)
    exec(BURN, {})
    subprocess.run([*PLAIN, BURN], check=True)
    assert lasting.stdin is not None
    assert lasting.stdout is not None
    for _ in range(2):
        lasting.stdin.write("\n")
        lasting.stdin.flush()
        assert lasting.stdout.readline() == "\n"
        meter.turn("test", look=True)
    meter.turn("next test")
    lasting.communicate()
    meter.turn("rest", look=True)
    assert abs(meter.cpu["fixture"] - 2 * SECONDS) < NEAR, meter.cpu
    assert abs(meter.cpu["test"] - 2 * SECONDS) < NEAR, meter.cpu
    assert meter.cpu["next test"] < NEAR, meter.cpu
    running = sum(used.seconds for _, used in descendants(os.getpid()))
    assert abs(meter.cpu.total() - time.process_time() - reaped() - running) < NEAR, meter.cpu
