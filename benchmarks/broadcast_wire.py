"""Machines behind links of different speeds, as network namespaces, for `wire_share` of benchmarks/broadcast.py.

Needs root, `ip` and `tc` with its qdisc `tbf`. All of it is gone when the block ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

PAYLOAD: Final = 1448 / 1514
"""Of the bytes on an Ethernet link with full TCP segments, what is payload."""

SEGMENT: Final = "10.77.0"
PORT: Final = 8700


def problem() -> str:
    """Return why no links can be shaped here; "" if they can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def address(place: int) -> str:
    """Return the address of the machine at this place of `wired`."""
    return f"{SEGMENT}.{place + 1}"


@contextmanager
def wired(megabits: Sequence[int]) -> Iterator[list[list[str]]]:
    """Yield what starts a command on each machine of a star whose links have these speeds, either way."""
    name = f"mw{os.getpid()}"
    hub, machines = f"{name}-hub", [f"{name}-{place}" for place in range(len(megabits))]
    try:
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for place, (machine, rate) in enumerate(zip(machines, megabits, strict=True)):
            _plug(hub, machine, f"port{place}", address(place), rate)
        yield [["ip", "netns", "exec", machine] for machine in machines]
    finally:
        for namespace in (*machines, hub):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _plug(hub: str, machine: str, port: str, own: str, rate: int) -> None:
    """Make a machine, and its link to the hub."""
    _ip("netns", "add", machine)
    _ip("link", "add", port, "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", machine)
    _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
    _ip("-n", machine, "address", "add", f"{own}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _ip("-n", machine, "link", "set", device, "up")
    for namespace, device in ((hub, port), (machine, "eth0")):
        shape = ["tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "30ms"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
