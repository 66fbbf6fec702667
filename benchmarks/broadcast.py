"""How fast weights reach the clients, against a plain copy to the clients' disks and against the `shardcast` package.

    python benchmarks/broadcast.py [--json] [--runs 3] [--quick] [--only relay_vs_peer_4g …]

Everything runs on one machine; hashing, sending and writing share its cores and its disk. Each origin, relay and client
is a separate process. Clients verify every shard and sync what they wrote. Ours and its yardstick take turns:

    limit   sendfile from file to file with fsync, one process per client
    peer    shardcast 0.3.2 (`make bench-peers`) in the same set-up, at its defaults, but for a relay that looks for new
            versions all the time instead of every thirty seconds, and clients that begin once the relay has all of it
            (its clients' attempts fail before, and then rest for seconds)

Server and client are compared with what could take their place, on the same broadcast from one origin:

    server_vs_nginx     ours, and nginx with sendfile, one process; our clients. No target; left out where there is none
    client_vs_aiohttp   our client, which is hand-written, and aiohttp's; our server

`ratio` is the median over the runs of theirs over ours, and `cpu_ratio` the same of the processor time of the
server, or of the clients. Both sides take turns, since a machine is seldom quiet.

Seconds against the limit are from the word go until the last client is done; against the peer also cutting the file
into shards counts, on both sides. A checkpoint is one file of random bytes: nothing here compresses. `delta` figures
are those of benchmarks/deltas.py.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import deltas, report
from benchmarks.watched import Watch, expect, module, peer, started, tell, together
from testbed.paths import ROOT
from testbed.weights.checkpoints import NOISE_HEAD, noise_head

CLIENTS = 4
MOST_WARM = 8 << 30
"""Most bytes of warm pages; a run that fills more takes cold pages for the rest, on either side."""
KEEP_OURS = 1.3
"""How many times as fast as its replacement our hand-written client must be."""
NGINX = shutil.which("nginx")
TREE = (2, 4)
"""Relays, and clients of each."""
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Spread:
    """One broadcast."""

    seconds: list[float]
    """Until each client was done."""
    cpu: float
    """Seconds of all processes together."""
    memory: int
    """Most bytes of any process above its idle."""


# --- Set-ups


class Setups:
    """Broadcasts of one checkpoint, each in an empty folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.checkpoint = folder / "checkpoint"
        self.checkpoint.mkdir()
        self.file = self.checkpoint / "model.safetensors"
        with self.file.open("wb") as file:
            file.write(noise_head(size + NOISE_HEAD))
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))

    def copy(self, clients: int) -> float:
        """Return the seconds that plain copies take: the limit."""
        folder = self._emptied()
        with ExitStack() as stack:
            copiers = [stack.enter_context(_ours("copy", folder / str(i), self.file)) for i in range(clients)]
            self._warm(folder, clients)
            return max(together(copiers, "go"))

    def direct(self, clients: int, *, server: str = "origin", client: str = "client", watch: str = "all") -> Spread:
        """Run an origin that has published, and its clients.

        server, client: roles of `broadcast_process`. watch: whose processor time counts, "server", "clients" or "all".
        """
        folder = self._emptied()
        with ExitStack() as stack:
            publisher = stack.enter_context(_ours("publish", folder / "published", self.checkpoint))
            tell(publisher, "go")
            root = expect(publisher, "done")
            os.sync()
            origin, url = _server(stack, server, folder / "published")
            fetching = [stack.enter_context(_ours(client, folder / str(i), url)) for i in range(clients)]
            self._warm(folder, clients)
            watched = {"all": [origin, *fetching], "server": [origin], "clients": fetching}[watch]
            with Watch(watched) as used:
                seconds = together(fetching, root)
            return Spread(seconds, used.cpu, used.memory)

    def tree(self, relays: int, clients: int) -> Spread:
        """From a checkpoint on the origin's disk through relays to the clients of each."""
        folder = self._emptied()
        with ExitStack() as stack:
            publisher = stack.enter_context(_ours("publish", folder / "published", self.checkpoint))
            origin, url = _server(stack, "origin", folder / "published")
            between = [_server(stack, "relay", folder / f"relay-{i}", url) for i in range(relays)]
            fetching = [
                stack.enter_context(_ours("client", folder / f"{i}-{j}", source))
                for i, (_, source) in enumerate(between)
                for j in range(clients)
            ]
            self._warm(folder, 1 + relays + relays * clients)
            with Watch([publisher, origin, *(relay for relay, _ in between), *fetching]) as watch:
                begun = time.perf_counter()
                tell(publisher, "go")
                root = expect(publisher, "done")
                published = time.perf_counter() - begun
                seconds = together(fetching, root)
            return Spread([published + each for each in seconds], watch.cpu, watch.memory)

    def peer(self, clients: int) -> Spread:
        """Run the peer's own way: through one relay."""
        folder = self._emptied()
        ports = _free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        with ExitStack() as stack:
            origin = stack.enter_context(_peers(folder / "lib", "origin", folder / "origin", ports[0]))
            relay = stack.enter_context(_peers(folder / "lib", "relay", folder / "relay", ports[1], urls[0]))
            # Each with a copy of the package: clients write into its folder, under one and the same name.
            fetching = [
                stack.enter_context(_peers(folder / f"lib-{i}", "client", folder / str(i), urls[1]))
                for i in range(clients)
            ]
            self._warm(folder, 2 + 2 * clients)
            with Watch([origin, relay, *fetching]) as watch:
                begun = time.perf_counter()
                tell(origin, str(self.file))
                tell(relay, "go")
                expect(relay, "done")
                relayed = time.perf_counter() - begun
                seconds = together(fetching, "go")
            return Spread([relayed + each for each in seconds], watch.cpu, watch.memory)

    def _warm(self, folder: Path, copies: int) -> None:
        """Leave the kernel so many copies' worth of pages that were in use a moment ago.

        A virtual machine returns pages to its host once they are free for a second or two. Taking such a page back
        costs several times as much as filling it. Without warm pages, a run depends on what the run before it left.
        """
        scratch, piece = folder / "scratch", bytes(MIB)
        with scratch.open("wb", buffering=0) as file:
            for _ in range(min(copies * self.size, MOST_WARM) // MIB):
                file.write(piece)
        os.sync()
        scratch.unlink()

    def _emptied(self) -> Path:
        folder = self.folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.sync()
        return folder


def _ours(role: str, *arguments: object):
    return started(module("benchmarks.broadcast_process", role, *arguments))


def _server(stack: ExitStack, role: str, *arguments: object) -> tuple[subprocess.Popen[str], str]:
    """Start an origin or relay; return it and its URL."""
    process = stack.enter_context(_ours(role, *arguments))
    return process, f"http://127.0.0.1:{expect(process, 'port')}"


def _peers(library: Path, *arguments: object):
    command = peer("shardcast_process", *arguments)
    if not library.exists():
        (package,) = (ROOT / ".peers").glob("shardcast/lib/python*/site-packages/shardcast")
        shutil.copytree(package, library / "shardcast")
    return started(command, {"PYTHONPATH": str(library)})


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


# --- Figures


def against_the_limit(setups: Setups, runs: int, name: str, clients: int, target: float) -> list[report.Figure]:
    ours, limit = report.alternate(runs, lambda: max(setups.direct(clients).seconds), lambda: setups.copy(clients))
    return [report.slower(name, ours, limit=limit, target=target, unit="s")]


def against_the_peer(setups: Setups, runs: int, name: str, target: float) -> list[report.Figure]:
    """Return the seconds; at 1 GiB also processor time and memory."""
    ours, theirs = report.alternate(runs, lambda: setups.tree(1, CLIENTS), lambda: setups.peer(CLIENTS))
    last = [[max(one.seconds) for one in side] for side in (ours, theirs)]
    found = [report.slower(name, last[0], peer=last[1], target=target, unit="s")]
    if setups.size == GIB:
        per_client = CLIENTS * setups.size / GIB
        cpu, their_cpu = ([one.cpu / per_client for one in side] for side in (ours, theirs))
        memory, their_memory = ([one.memory / MIB for one in side] for side in (ours, theirs))
        unit = "CPU s per GiB and client"
        found += [
            report.relative("cpu_vs_peer", cpu, peer=their_cpu, target=0.4, unit=unit, at_most=True),
            report.figure("memory_mib", memory, peer=their_memory, ratio=max, target=128, unit="MiB", at_most=True),
        ]
    return found


def tail(setups: Setups, runs: int) -> list[report.Figure]:
    """Eight clients in a tree: the last against the first, and against four clients of one relay."""
    eight, four = report.alternate(runs, lambda: setups.tree(*TREE), lambda: setups.tree(1, CLIENTS))
    first, last = ([pick(one.seconds) for one in eight] for pick in (min, max))
    others = [max(one.seconds) for one in four]
    return [
        report.relative("tail", last, limit=first, target=1.3, unit="s", at_most=True),
        report.relative("tail_vs_four", last, limit=others, target=2.2, unit="s", at_most=True),
    ]


def against_another(
    setups: Setups, runs: int, name: str, watch: str, target: float = 0.0, **other: str
) -> list[report.Figure]:
    """Compare our server or client with another on the same broadcast. other: the role that takes its place."""
    sides = report.alternate(
        runs, partial(setups.direct, CLIENTS, watch=watch), partial(setups.direct, CLIENTS, watch=watch, **other)
    )
    ours, theirs = ([max(one.seconds) for one in side] for side in sides)
    cpu, their_cpu = ([one.cpu for one in side] for side in sides)
    middle = statistics.median
    found = report.figure(
        name,
        ours,
        peer=theirs,
        ratio=middle(their / our for our, their in zip(ours, theirs, strict=True)),
        target=target,
        unit="s",
        cpu=round(middle(cpu), 3),
        peer_cpu=round(middle(their_cpu), 3),
        cpu_ratio=round(middle(their / our for our, their in zip(cpu, their_cpu, strict=True)), 3),
    )
    return [found]


def against_nginx(setups: Setups, runs: int) -> list[report.Figure]:
    if NGINX is None:
        print("server_vs_nginx: nginx is not installed, left out", file=sys.stderr)
        return []
    return against_another(setups, runs, "server_vs_nginx", "server", server="nginx")


Measure = Callable[[Setups, int], list[report.Figure]]
SMALL: dict[str, Measure] = {
    "one_client_vs_limit": partial(against_the_limit, name="one_client_vs_limit", clients=1, target=0.8),
    "four_clients_vs_limit": partial(against_the_limit, name="four_clients_vs_limit", clients=CLIENTS, target=0.6),
    "relay_vs_peer_1g": partial(against_the_peer, name="relay_vs_peer_1g", target=3.5),
    "tail": tail,
    "server_vs_nginx": against_nginx,
    "client_vs_aiohttp": partial(
        against_another, name="client_vs_aiohttp", watch="clients", target=KEEP_OURS, client="aiohttp-client"
    ),
}
"""Of a checkpoint of 1 GiB."""
LARGE: dict[str, Measure] = {"relay_vs_peer_4g": partial(against_the_peer, name="relay_vs_peer_4g", target=3.0)}
"""Of one of 4 GiB."""


def measure(size: int, measures: Sequence[Measure], runs: int) -> list[report.Figure]:
    if not measures:
        return []
    with tempfile.TemporaryDirectory(prefix="muster-broadcast-") as name:
        setups = Setups(Path(name), size)
        return [figure for each in measures for figure in each(setups, runs)]


def main() -> int:
    groups = ((GIB, SMALL), (4 * GIB, LARGE))
    names = [*(name for _, group in groups for name in group), "deltas"]
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run, of checkpoints of 64 MiB at most")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these figures alone")
    options = parser.parse_args()
    runs, most = (1, 64 * MIB) if options.quick else (options.runs, 4 * GIB)
    figures: list[report.Figure] = []
    for size, group in groups:
        figures += measure(min(size, most), [group[name] for name in options.only if name in group], runs)
    if "deltas" in options.only:
        figures += deltas.figures(runs)
    return report.show(figures, as_json=options.json, about=[] if NGINX else ["nginx not installed"])


if __name__ == "__main__":
    sys.exit(main())
