"""Start processes, let them begin together, and watch them while they work.

Each says "ready" on stdout, waits for a line on stdin, works, and says "done". It stays alive until it is killed here,
so that its usage can be read from /proc at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from testbed.paths import ROOT

END_SECONDS = 30
SAMPLE_SECONDS = 0.02
TICKS = os.sysconf("SC_CLK_TCK")


def module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module here."""
    return [sys.executable, "-m", name, *map(str, arguments)]


def has_peer(package: str) -> bool:
    """Return whether a package to compare with is installed."""
    return (ROOT / ".peers" / package / "bin" / "built").exists()


def peer(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a script of benchmarks/peers by its peer's own Python. Exits without that."""
    package, script = name.partition("_")[0], ROOT / "benchmarks" / "peers" / f"{name}.py"
    if not has_peer(package):
        sys.exit(f"{package} is not here to compare with\n  next: make bench-peers")
    return [str(ROOT / ".peers" / package / "bin" / "python"), str(script), *map(str, arguments)]


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a process, wait until it says that it is ready, and kill it on exit."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
    )
    try:
        expect(process, "ready")
        yield process
    finally:
        process.kill()
        process.communicate(timeout=END_SECONDS)


def expect(process: subprocess.Popen[str], word: str) -> str:
    """Wait until a process says `word`, and return the rest of the line."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line.startswith(word):
        raise SystemExit(f"{process.args[:4]} said {line!r} instead of {word!r}")  # type: ignore[index]
    return line.removeprefix(word).strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str], line: str) -> Any:
    """Tell a process to work; return the JSON that it prints when it is done."""
    tell(process, line)
    return json.loads(expect(process, "done"))


def together(processes: Sequence[subprocess.Popen[str]], line: str) -> list[float]:
    """Tell all processes to begin; return after how many seconds each was done."""
    begun = time.perf_counter()
    for process in processes:
        tell(process, line)

    def finish(process: subprocess.Popen[str]) -> float:
        expect(process, "done")
        return time.perf_counter() - begun

    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(finish, processes))


class Watch:
    """What some processes use between entering and leaving."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self.cpu = 0.0
        """Seconds of all of them and of their children that have ended."""
        self.memory = 0
        """Bytes: the most that any of them held above what it held at the beginning."""
        self.peak = 0
        """Bytes: the most that any of them held."""
        self._pids = [process.pid for process in processes]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._idle: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._idle = {pid: memory_of(pid) for pid in self._pids}
        self.cpu = -sum(map(cpu_of, self._pids))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu += sum(map(cpu_of, self._pids))

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            held = {pid: memory_of(pid) for pid in self._pids}
            self.memory = max(self.memory, *(held[pid] - self._idle[pid] for pid in self._pids))
            self.peak = max(self.peak, *held.values())


def cpu_of(pid: int) -> float:
    """Return the processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def memory_of(pid: int | str, *kinds: str) -> int:
    """Return the bytes of a process's memory by these lines of its status; by default memory without a file."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line[0].rstrip(":") in (kinds or ("RssAnon", "RssShmem")))


def done(seconds: Sequence[float], percents: Sequence[int], **more: object) -> None:
    """Print, from a watched process, how long answers took: these percentiles, and the slowest."""
    taken = sorted(seconds)
    quantiles = {f"p{percent}": taken[int(len(taken) * percent / 100)] for percent in percents}
    print("done", json.dumps({"answers": len(taken), **quantiles, "slowest": taken[-1], **more}), flush=True)
