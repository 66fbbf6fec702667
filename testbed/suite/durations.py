"""CPU seconds of every test and fixture, written to cache/durations.json; the dearest are named at the end of a run.

A whole `make test` is compared with the list of what may be dear (testbed/suite/dear.py).

Counted are this process of pytest and all processes below it: what has ended by what the system says of reaped
children, what runs by /proc. A process belongs to the test or fixture that started it, and so do those that it starts:
a swarm that works while tests look at it is its fixture's. A fixture that lives no longer than a test is the test's.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from testbed.paths import ROOT
from testbed.suite import forks
from testbed.suite.dear import FILE, Findings, compare, read_list

DEAREST: Final = 10
LOOK_SECONDS: Final = 0.05
"""Running processes are looked at no more often, except where a fixture begins or ends."""
COLLECTING, REST, FORKS, SHARING_OUT = "collection", "pytest", "fork server", "pytest-xdist"
"""Owners that are no test and no fixture."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """A running process: its parent, its name, and the CPU seconds of it and of its children that have ended."""

    parent: int
    name: str
    seconds: float


class Meter:
    """Shares out the CPU seconds of this process and of those below it."""

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self._owner = REST
        self._own = self._reaped = 0.0  # counted so far, of this process and of its children that have ended
        self._running: dict[tuple[int, str], Used] = {}
        self._owners: dict[tuple[int, str], str] = {}
        self._looked = time.monotonic()

    def turn(self, owner: str, *, look: bool = False) -> str:
        """Count what was used since the last turn, and count for `owner` from now on. Returns the owner until now."""
        own = time.process_time()
        self.cpu[self._owner] += own - self._own
        self._own = own
        if look or time.monotonic() > self._looked + LOOK_SECONDS or reaped() != self._reaped:
            self._look()
        before, self._owner = self._owner, owner
        return before

    def _look(self) -> None:
        """Count what the processes below this one have used since the last look."""
        # 1. What a process that has ended used is now in the figure of the next one above it, and is counted.
        found, ended = dict(descendants(os.getpid())), reaped()
        there = {key[0]: key for key in found}
        counted = Counter({key: used.seconds for key, used in self._running.items()})
        above = {pid: used.parent for (pid, _), used in self._running.items()}
        for gone in self._running.keys() - found.keys():
            pid = gone[0]
            while pid in above and pid not in there:
                pid = above[pid]
            if pid in there:
                counted[there[pid]] += counted[gone]
            else:
                self._reaped += counted[gone]
        # 2. The rest is new. A process belongs to its parent's owner, or else to the one of now.
        self.cpu[self._owner] += ended - self._reaped
        owners: dict[tuple[int, str], str] = {}
        for key, used in found.items():
            new = FORKS if used.name == forks.NAME else self._owner
            owners[key] = self._owners.get(key) or owners.get(there.get(used.parent, key), new)
            self.cpu[owners[key]] += used.seconds - counted[key]
        self._running, self._owners, self._reaped, self._looked = found, owners, ended, time.monotonic()


def reaped() -> float:
    """CPU seconds of the children of this process that have ended and been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def descendants(pid: int) -> Iterator[tuple[tuple[int, str], Used]]:
    """Each running process below one, by its number and the time of its start; a parent before its children."""
    for child in children(pid):
        try:
            text = Path(f"/proc/{child}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        yield (child, fields[19]), Used(pid, name, sum(map(int, fields[11:15])) / TICKS)
        yield from descendants(child)


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended, or this thread of it
    return found


class Durations:
    """The plugin: in a process that runs tests it measures, in the one that hands them out it adds up."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.meter = Meter()
        self.cpu: Counter[str] = Counter()
        self.findings = Findings([], fails=False)
        self._ending: dict[Any, str] = {}
        forks.adopt_orphans()  # so that all below this process stays below it
        config.add_cleanup(forks.close)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        before = self.meter.turn(COLLECTING)
        try:
            return (yield)
        finally:
            self.meter.turn(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self.meter.turn(item.nodeid)
        try:
            return (yield)
        finally:
            self.meter.turn(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        name = f"{fixturedef.baseid}::{fixturedef.argname} (fixture)"
        before = self.meter.turn(name, look=True)
        try:
            return (yield)
        finally:
            self.meter.turn(before, look=True)
            fixturedef.addfinalizer(lambda: self._end(fixturedef, name))

    def _end(self, fixturedef: pytest.FixtureDef[Any], name: str) -> None:
        self._ending[fixturedef] = self.meter.turn(name, look=True)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if fixturedef in self._ending:
            self.meter.turn(self._ending.pop(fixturedef), look=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._add_up()
        if is_whole(self.config):
            self.findings = compare(self.cpu, read_list().promises)
            if self.findings.fails:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _add_up(self) -> None:
        if self.config.pluginmanager.hasplugin("dsession"):  # the tests' processes count for themselves
            self.cpu[SHARING_OUT] += time.process_time()
            below = [used for _, used in descendants(os.getpid()) if used.parent == os.getpid()]
            self.cpu[FORKS] += sum(used.seconds for used in below if used.name == forks.NAME)
            return
        self.meter.turn(REST, look=True)
        self.cpu.update(self.meter.cpu)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["cpu"] = dict(self.cpu)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.cpu.update(getattr(node, "workeroutput", {}).get("cpu", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if hasattr(self.config, "workeroutput"):
            return
        rows = {name: round(seconds, 3) for name, seconds in self.cpu.most_common() if seconds >= 0.001}
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps({"seconds": round(self.cpu.total(), 3), "of": rows}, indent=1) + "\n")
        terminalreporter.section(f"{self.cpu.total():.0f} CPU seconds; the dearest, of all in {FILE.relative_to(ROOT)}")
        for name, seconds in list(rows.items())[:DEAREST]:
            terminalreporter.line(f"{seconds:8.1f} {name}")
        for sentence in self.findings.sentences:
            terminalreporter.line(sentence, red=self.findings.fails)


def is_whole(config: pytest.Config) -> bool:
    """Return whether a run is the whole of `make test`, in the process that adds up, and not under coverage."""
    options = config.option
    chosen = options.markexpr == "not slow" and not options.keyword and not getattr(options, "cov_source", None)
    return chosen and config.args_source == config.ArgsSource.TESTPATHS and not hasattr(config, "workeroutput")
