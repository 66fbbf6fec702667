"""What the orchestrator withstands and how far one goes: members that work beside strangers who mean harm.

    python benchmarks/service.py [--json] [--quick] [--only NAME …] [--commitments 1600000] [--seconds 30]

A real orchestrator process with plain settings over a synthetic run (`testbed.big_run`) and a real Anvil, on the same
machine as its load (`service_members` and `service_strangers` say what they do). Against strangers it has one core, and
an explorer the others. Members are rows of its database with real keys: their signatures are real, and the chain emits
their commitments.

- `hostile_…`: p99 of answers to 100 members and to the trainer while strangers do their worst, of whom `pages` and
  `watchers` ask the explorer. Each kind takes turns with rounds without it (*limit*). The ratio is the p99 over what is
  allowed, twice that without or 0.25 s, of the party with the larger one. `hostile_503` counts refusals for want of
  room, `hostile_health` is the slowest answer to a health check.
- `hostile_origin…`: the same of an origin of weights, whose connections one address holds (`service_origin`).
- `request_cpu_…`: CPU time of a request with as many query keys or headers as may be, beside one with none.
- `workers_one_process`: the most members with whom neither the p99 of waits nor that of writes exceeds 0.25 s.
- `rss_per_worker`: memory that the orchestrator takes for each of 3,000 members, beyond what it took to serve 50
  others.
- `verdict_cpu_…`, `two_processes_…`, `catch_up_…`, `reorg_…`, `explorer_…`: those of `service_writes`, `service_pair`,
  `service_chain` and `service_explorer`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sqlalchemy import create_engine

from benchmarks import service_chain, service_explorer, service_pair, service_writes
from benchmarks.page_cost import able_workers, load_of, watching
from benchmarks.report import Figure, figure, none, parser, show
from benchmarks.service_load import Line, Load
from benchmarks.service_origin import hostile_origin
from benchmarks.service_strangers import HELD, wide_request
from benchmarks.watched import cpu_of, expect, memory_of, module, started, tell
from muster.chain.keys import Signer
from muster.constants import HOUR_SECONDS
from muster.errors import MusterError
from muster.ledger.tables import PAYMENTS, nodes
from muster.protocol.messages import StepReport
from muster.runtime import telemetry
from muster.runtime.http_limits import HEADERS, QUERY_KEYS
from testbed.big_run.process import BigRun, big_run
from testbed.big_run.rows import NOTHING
from testbed.big_run.shape import Shape
from testbed.chain.emitter import let_emit

MEMBERS: Final = 100
WATCHERS: Final = 1_000
ALLOWED_SECONDS: Final = 0.25
WORKERS: Final = 3_000
KIB_PER_WORKER: Final = 12
SMALL: Final = 10_000
"""Commitments before the members', where strangers read none of them."""
FIRST: Final = 500
"""Members that the search begins with."""
FEW: Final = 50
WITHIN: Final = 0.15
"""Share of the found number by which a larger one may pass too."""
VALIDATORS: Final = 32
"""Of each crowd: with as many members as the target names each posts a verdict a second."""
ABLE: Final = 0.9
"""Share of a synthetic run's nodes that can work, at least."""
ROUNDS: Final = 3
HEALTH: Final = ("/healthz", "/readyz", "/metrics", "/version")
HEALTH_SECONDS: Final = 0.5
TRAINER_SECONDS: Final = 0.5
STEP_SECONDS: Final = 5.0
ATTACKS: Final = ("reads", "pages", "heads", "signatures", "uploads", "watchers", "scrapes", "signed", "wide")
WIDE: Final = {"plain": (1, 0), "keys": (QUERY_KEYS, 0), "headers": (1, HEADERS - 2), "refused": (9_000, 0)}
"""Query keys and further headers of requests whose processor time is measured. One key leads to the framework."""
WIDE_REQUESTS: Final = 500


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    commitments: int
    seconds: float
    rounds: int = ROUNDS
    is_quick: bool = False
    attacks: Sequence[str] = ATTACKS


@dataclass
class Round:
    """What members, trainer and health checks saw over some seconds. Seconds, shares of a core, bytes."""

    members: dict[str, Any]
    trainer: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    refused: int = 0
    """Of the trainer's requests and the health checks."""
    cpu: float = 0.0
    memory: int = 0
    """What the orchestrator took since it had started."""
    strangers: object = None
    """What they said of what they do."""

    @property
    def p99(self) -> float:
        """Return the larger p99 of the members' waits and writes."""
        return max(kind["p99"] for kind in self.members["kinds"].values())

    @property
    def trainer_p99(self) -> float:
        return sorted(self.trainer)[int(len(self.trainer) * 0.99)]

    @property
    def full(self) -> int:
        """Return how many requests were refused for want of room."""
        return self.members["statuses"].get("503", 0) + self.refused

    def passes(self) -> bool:
        """Return whether everybody was served in time."""
        return self.p99 <= ALLOWED_SECONDS and not self.full and not self.members["statuses"].get("0", 0)


# --- A run whose members' keys are known


class Members:
    """A run with a running orchestrator, and those of its members that no load has had."""

    def __init__(self, big: BigRun, judges: Sequence[str]) -> None:
        self.big = big
        self._workers, self._judges = iter(able_workers(big)), iter(judges)
        self.idle_memory = memory_of(big.orchestrator.pid, "VmRSS")

    def load(self, members: int, judges: int = VALIDATORS, seconds: float = 0.0) -> Load:
        """Return a load by members and validators that no other load has."""
        taken = list(islice(self._workers, members))
        if len(taken) < members:
            raise SystemExit(f"{members} members are needed and {len(taken)} are left")
        return Load(
            **load_of(self.big, taken).model_dump(),
            judges=list(islice(self._judges, judges)),
            chain_port=self.big.anvil.port,
            runs=self.big.run_fixture.book.runs,
            sender=self.big.anvil.request("eth_accounts")[0],
            step=self.big.shape.steps,
            hour=self.big.rows.work.now // HOUR_SECONDS,
            seconds=seconds,
        )


@contextmanager
def furnished(members: int, commitments: int, crowds: int = 1, *, shown: bool = False) -> Iterator[Members]:
    """Yield a run with so many members, and validators for so many crowds.

    shown: the orchestrator has one core, and an explorer runs on the others.
    """
    shape = Shape(steps=max(1_000, commitments // 16), nodes=int(members / ABLE) + 100, commitments=commitments)
    with tempfile.TemporaryDirectory(prefix="muster-service-") as folder, big_run(Path(folder), shape) as big:
        judges = enrol(big, crowds * VALIDATORS)
        let_emit(big.anvil, big.run_fixture.book.runs)
        cores = sorted(os.sched_getaffinity(0))
        with _on(cores[:1] if shown else cores):
            big.orchestrator.start()
        if shown:
            with _on(cores[1:] or cores):
                big.explorer.start()
        yield Members(big, judges)


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Let what is started have these cores, as it inherits them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    yield
    os.sched_setaffinity(0, before)


def enrol(big: BigRun, count: int) -> list[str]:
    """Write validators into the databases of a run whose services do not run; return their keys."""
    secrets = [big.run_fixture.secret(f"judge {number}") for number in range(count)]
    joined = {"operator": big.run_fixture.key("owner").address, "role": "validator", "status": "active", "block": 1}
    rest = {"work_class": 0, "first_step": 0, "settled": 0, "joined": 0, "transaction": NOTHING, "hours": 0}
    rest |= {"withdrawn": False, **dict.fromkeys(PAYMENTS, "0")}
    rows = [{"address": Signer.from_key(key).address, **joined, **rest} for key in secrets]
    for service in (big.orchestrator, big.explorer):
        engine = create_engine(service.database_url)
        with engine.begin() as connection:
            connection.execute(nodes.insert(), rows)
        engine.dispose()
    return secrets


# --- Measuring


@contextmanager
def loading(kind: str, load: Load) -> Iterator[tuple[Popen[str], object]]:
    """Once all are connected, yield the process of a load, which ends on exit, and what it says of itself."""
    command = ("benchmarks.service_members",) if kind == "members" else ("benchmarks.service_strangers", kind)
    with started(module(*command)) as process:
        tell(process, load.model_dump_json())
        yield process, json.loads(expect(process, "connected"))


@contextmanager
def attacking(members: Members, kind: str) -> Iterator[object]:
    """Let strangers of a kind do their worst while the block runs; yield what they say of it."""
    if not kind:
        yield None
    elif kind == "watchers":
        with watching(members.big, WATCHERS):
            yield None
    else:
        load = members.load(HELD if kind == "uploads" else 1, judges=0)
        if kind == "pages":
            load.url = members.big.explorer.url
        with loading(kind, load) as (_, about):
            yield about


def measure(members: Members, count: int, seconds: float, kind: str = "") -> Round:
    """Measure one round of so many members, beside strangers of a kind or none."""
    with loading("members", members.load(count, seconds=seconds)) as (crowd, _), attacking(members, kind) as about:
        tell(crowd, "go")
        expect(crowd, "begun")
        found = asyncio.run(_watch(members, crowd))
    found.strangers = about
    return found


async def _watch(members: Members, crowd: Popen[str]) -> Round:
    pid = members.big.orchestrator.pid
    spent, begun = cpu_of(pid), time.monotonic()
    counted = asyncio.create_task(asyncio.to_thread(expect, crowd, "done"))
    found = Round({})
    await asyncio.gather(_ask_health(members.big, counted, found), _be_trainer(members.big, counted, found))
    found.members = json.loads(await counted)
    found.cpu = (cpu_of(pid) - spent) / (time.monotonic() - begun)
    found.memory = memory_of(pid, "VmRSS") - members.idle_memory
    return found


async def _ask_health(big: BigRun, until: asyncio.Task[str], found: Round) -> None:
    while not until.done():
        for path in HEALTH:
            asked = time.monotonic()
            status, _ = await asyncio.to_thread(big.orchestrator.get, path)
            found.health.append(time.monotonic() - asked)
            found.refused += status != 200
        await asyncio.wait([until], timeout=HEALTH_SECONDS)


async def _be_trainer(big: BigRun, until: asyncio.Task[str], found: Round) -> None:
    """Follow the log and report a step now and then."""
    run, step, reported, place = big.run_fixture.run, big.shape.steps, float("-inf"), 0
    async with big.run_fixture.client(big.orchestrator.url, "trainer", attempts=1) as client:
        while not until.done():
            asked = time.monotonic()
            try:
                _, place = await client.verdicts(run, place)
                if asked - reported > STEP_SECONDS:
                    await client.post_step(StepReport(run=run, step=step, metrics={"reward": 0.5}))
                    reported = asked
            except MusterError as error:
                print(error, file=sys.stderr)
                found.refused += 1
            found.trainer.append(time.monotonic() - asked)
            await asyncio.wait([until], timeout=TRAINER_SECONDS)


# --- Figures


def hostile(scale: Scale) -> list[Figure]:
    """Measure members and trainer with and without each kind of strangers, in turns."""
    kinds = ("", *scale.attacks)
    crowds = scale.rounds * len(kinds)
    rounds: dict[str, list[Round]] = {kind: [] for kind in kinds}
    count = crowds * MEMBERS + scale.rounds * (HELD + len(kinds))
    with furnished(count, scale.commitments, crowds, shown=True) as members:
        for _ in range(scale.rounds):
            for kind in kinds:
                rounds[kind].append(measure(members, MEMBERS, scale.seconds, kind))
    return [*hostile_figures(rounds), *hostile_origin(scale.seconds)]


def request_cpu(_: Scale) -> list[Figure]:
    """Measure the processor time of requests by how many query keys and headers they have."""
    with furnished(1, SMALL) as members:
        load = members.load(1, judges=0)
        ms = {name: asyncio.run(_cpu_of_each(members, wide_request(load, *wide))) for name, wide in WIDE.items()}
    return [
        figure(f"request_cpu_{name}", ms[name], limit=ms["plain"], target=5.0, unit="ms", at_most=True)
        for name in WIDE
        if name != "plain"
    ]


async def _cpu_of_each(members: Members, request: bytes) -> float:
    """Return the orchestrator's milliseconds for one of many such requests."""
    pid, port = members.big.orchestrator.pid, members.big.orchestrator.port
    line, spent = await Line.open(port, 0, 5), cpu_of(pid)
    for _ in range(WIDE_REQUESTS):
        with suppress(OSError):
            await line.ask(request)
        if not line.is_free:
            line = await Line.open(port, 0, 5)
    return 1000 * (cpu_of(pid) - spent) / WIDE_REQUESTS


def hostile_figures(rounds: dict[str, list[Round]]) -> list[Figure]:
    """Return the figures of rounds by the kind of strangers; "" is without any."""
    everything = [one for found in rounds.values() for one in found]
    return [
        *(_hostile_figure(kind, rounds[kind], rounds[""]) for kind in rounds if kind),
        none("hostile_503", sum(one.full for one in everything), "refusals"),
        figure(
            "hostile_health", [max(one.health) for one in everything], ratio=max, target=1.0, unit="s", at_most=True
        ),
    ]


def _hostile_figure(kind: str, beside: Sequence[Round], without: Sequence[Round]) -> Figure:
    parties: dict[str, Callable[[Round], float]] = {
        "members": lambda one: one.p99,
        "trainer": lambda one: one.trainer_p99,
    }
    seconds = {name: ([p99(one) for one in beside], [p99(one) for one in without]) for name, p99 in parties.items()}
    ratios = {name: allowed_share(*pair) for name, pair in seconds.items()}
    worst = max(ratios, key=ratios.__getitem__)
    ours, limit = seconds[worst]
    statuses = [one.members["statuses"] for one in beside]
    return figure(
        f"hostile_{kind}",
        ours,
        limit=limit,
        ratio=ratios[worst],
        target=1.0,
        unit=f"s, p99 of the {worst}",
        at_most=True,
        ratios=ratios,
        statuses=statuses,
        strangers=beside[-1].strangers,
    )


def allowed_share(beside: Sequence[float], without: Sequence[float]) -> float:
    """Return the median p99 beside strangers over what is allowed: twice that without, or ALLOWED_SECONDS."""
    return median(beside) / max(2 * median(without), ALLOWED_SECONDS)


def workers_one_process(scale: Scale) -> list[Figure]:
    """Find the most members that one process serves in time."""
    rounds: dict[int, Round] = {}

    def passes(count: int) -> bool:
        found = rounds[count] = crowd_of(count, scale)
        print(f"{count} members: p99 {found.p99:.3f} s, {found.members['statuses']}", file=sys.stderr)
        return found.passes()

    most = largest(passes, FIRST // 5 if scale.is_quick else FIRST)
    tried = [
        {"members": count, "p99": one.p99, "cpu": one.cpu, "load_cpu": one.members["load_cpu"], **one.members["kinds"]}
        for count, one in sorted(rounds.items())
    ]
    return [figure("workers_one_process", most, target=WORKERS, unit="members", tried=tried)]


def largest(passes: Callable[[int], bool], first: int) -> int:
    """Return the largest number found that passes, by doubling and then bisection; 0 for none above `first` / 64."""
    low, high = 0, first
    while passes(high):
        low, high = high, 2 * high
    while high - low > max(WITHIN * low, first / 64):
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def rss_per_worker(scale: Scale) -> list[Figure]:
    """Measure the memory that members take, beyond what the orchestrator took to serve a few others before."""
    count = WORKERS // 10 if scale.is_quick else WORKERS
    with furnished(count + FEW, SMALL, crowds=2) as members:
        before, after = (measure(members, number, scale.seconds).memory for number in (FEW, count))
    kib = (after - before) / 1024 / count
    return [figure("rss_per_worker", kib, target=KIB_PER_WORKER, unit="KiB", at_most=True, members=count)]


def crowd_of(count: int, scale: Scale) -> Round:
    """Measure one round of so many members over a fresh run that has no others."""
    with furnished(count, SMALL) as members:
        return measure(members, count, scale.seconds)


def both_writes(scale: Scale) -> list[Figure]:
    """Measure signed writes on SQLite and on PostgreSQL."""
    with service_pair.postgres() as server:
        on_server = service_writes.signed_writes(server.create_database, quick=scale.is_quick)
    return [*service_writes.signed_writes(quick=scale.is_quick), *on_server]


PARTS: Final[dict[str, Callable[[Scale], list[Figure]]]] = {
    "hostile": hostile,
    "request_cpu": request_cpu,
    "workers_one_process": workers_one_process,
    "rss_per_worker": rss_per_worker,
    "signed_writes": both_writes,
    "two_processes": lambda scale: service_pair.two_processes(quick=scale.is_quick),
    "catch_up_and_reorg": lambda scale: service_chain.figures(scale.commitments),
    "explorer": lambda scale: service_explorer.figures(scale.seconds, quick=scale.is_quick),
}


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help="less of everything: to see that it runs, not to report")
    made.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help="these figures alone"
    )
    made.add_argument(
        "--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS), metavar="NAME", help="these strangers alone"
    )
    made.add_argument("--commitments", type=int, default=1_600_000, help="of the run that strangers read")
    made.add_argument("--seconds", type=float, default=30.0, help="of one round")
    options = made.parse_args(arguments)
    telemetry.configure("service", level="error")
    scale = Scale(options.commitments, options.seconds, attacks=options.attacks)
    if options.quick:
        smaller = {"commitments": min(40_000, scale.commitments), "seconds": min(10.0, scale.seconds), "rounds": 1}
        scale = replace(scale, **smaller, is_quick=True)
    figures = [one for name in options.only for one in PARTS[name](scale)]
    about = [f"{scale.commitments} commitments", f"{scale.seconds:g} s a round"]
    return show(figures, as_json=options.json, about=about)


if __name__ == "__main__":
    sys.exit(main())
