"""Chaos: a swarm under faults, and whether it keeps what it acknowledged.

    python benchmarks/chaos.py [--seed 1 2 3 4 5] [--minutes 12] [--json] [--keep FOLDER]

Anvil with the contracts, orchestrator, origin, relay, explorer, and members as processes: two workers, two validators
and the trainer, with their real journals, outboxes, senders and publisher, but without models. Every request of theirs
and what was acknowledged goes into a history on disk (`chaos_history`). Meanwhile the seed's faults strike
(`chaos_plan`): processes are killed and stopped, connections cut or silent, the chain's endpoint of one process lags,
loses answers or fails, the chain is silent, killed and resumed from its state, up to ten of its blocks are replaced,
hours pass on its clock, a relay lies, and what the machine allows of: a full disk (root), PostgreSQL frozen, the store
of files cut off. An odd seed has PostgreSQL and S3, where this checkout has their servers; an even one SQLite and files
on a small disk.

Then the faults end. The swarm has some minutes in which every worker commits, the trainer publishes, every verdict
arrives, and all that is due is claimed. Chain, orchestrator, explorer and storage are read, and a checker after
Jepsen's (`chaos_checker`) compares them with the history. `chaos_lost` counts what was acknowledged and is not so, and
every other promise that was not kept; `chaos_faults` are the faults, which must be many.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.chaos_checker import Violation, check
from benchmarks.chaos_faults import inflict
from benchmarks.chaos_history import Event
from benchmarks.chaos_plan import KINDS, OF_SERVERS, ORCHESTRATOR, Fault, plan
from benchmarks.chaos_swarm import EXPLORER, ORIGIN, RELAY, Place, Swarm, can_mount, running, small_disk
from benchmarks.chaos_truth import reading
from benchmarks.report import Figure, figure, none, parser, show
from benchmarks.service_pair import postgres
from muster.runtime import telemetry
from testbed.servers.s3 import PROGRAMS, moto
from testbed.suite import forks

SEEDS: Final = (1, 2, 3, 4, 5)
MINUTES: Final = 12.0
FAULTS_A_MINUTE: Final = 200 / 60


@dataclass(frozen=True)
class Outcome:
    """What one seed brought."""

    seed: int
    seconds: float
    faults: Counter[str]
    refused: int
    """Faults that could not be inflicted, such as a reorg of more blocks than the chain can undo."""
    acknowledged: Counter[str]
    violations: list[Violation] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--seed", type=int, nargs="+", default=SEEDS)
    made.add_argument("--minutes", type=float, default=MINUTES, help="of faults, for each seed")
    made.add_argument("--keep", type=Path, help="folder for histories and logs, which must not exist")
    options = made.parse_args(arguments)
    forks.install()
    telemetry.configure("chaos", level="error")
    outcomes = [_one(options, seed) for seed in options.seed]
    found = {
        "minutes": round(sum(one.seconds for one in outcomes) / 60, 1),
        "seeds": list(options.seed),
        "faults": dict(sum((one.faults for one in outcomes), Counter())),
        "acknowledged": dict(sum((one.acknowledged for one in outcomes), Counter())),
    }
    status = show(figures(outcomes), as_json=options.json, missing=missing(outcomes), **found)
    if not options.json:
        print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    return status


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return the document's figures."""
    violations = [{"seed": one.seed, **asdict(violation)} for one in outcomes for violation in one.violations]
    count, minutes = sum(sum(one.faults.values()) for one in outcomes), sum(one.seconds for one in outcomes) / 60
    return [
        none("chaos_lost", violations, "violations"),
        figure("chaos_faults", count, target=round(minutes * FAULTS_A_MINUTE, 1), unit="faults"),
    ]


def missing(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the kinds of fault that never struck, and why."""
    struck = {kind for one in outcomes for kind in one.faults}
    reasons = {
        "disk_full": "needs root and an even seed",
        "store_out": "needs make setup and an odd seed",
        "database_out": "needs make setup and an odd seed",
    }
    return {kind: reasons.get(kind, "the run was too short") for kind in KINDS if kind not in struck}


def _one(options: argparse.Namespace, seed: int) -> Outcome:
    """Run one seed, in a folder that is kept if the options say so."""
    with ExitStack() as stack:
        if options.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-chaos-")))
        else:
            (folder := options.keep / str(seed)).mkdir(parents=True)
        outcome = chaos(folder, seed, options.minutes * 60)
    print(f"seed {seed}: {sum(outcome.faults.values())} faults, {len(outcome.violations)} violations", file=sys.stderr)
    for violation in outcome.violations:
        print(f"  {violation.kind}: {violation.what}", file=sys.stderr)
    return outcome


def chaos(folder: Path, seed: int, seconds: float) -> Outcome:
    """Run one seed in a folder."""
    with furnished(folder, seed) as place:
        return asyncio.run(_strike(place, seed, seconds))


@contextmanager
def furnished(folder: Path, seed: int) -> Iterator[Place]:
    """Yield where the orchestrator of a seed keeps what it has."""
    with ExitStack() as stack:
        if seed % 2 and (PROGRAMS / "moto_server").exists():
            yield Place(folder, None, stack.enter_context(postgres()), stack.enter_context(moto(folder)))
        elif can_mount(folder / "disk"):
            yield Place(folder, stack.enter_context(small_disk(folder / "disk")))
        else:
            yield Place(folder)


async def _strike(place: Place, seed: int, seconds: float) -> Outcome:
    async with running(place, seed) as swarm:
        planned = plan(seed, seconds, list(swarm.members), [ORCHESTRATOR, ORIGIN, RELAY, EXPLORER])
        faults = [fault for fault in planned if fault.kind not in OF_SERVERS or fault.kind in place.kinds()]
        supervisor = asyncio.create_task(swarm.supervise())
        try:
            await _inflict(swarm, faults, seconds)
            async with reading(swarm) as reader:
                await reader.heal()
                supervisor.cancel()
                await swarm.stop_members()
                history = swarm.recorded()
                truth = await reader.truth(history)
        finally:
            supervisor.cancel()
        return outcome_of(seed, seconds, history, check(history, truth))


async def _inflict(swarm: Swarm, faults: Sequence[Fault], seconds: float) -> None:
    """Inflict every fault at its second, and return when the time is over."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(began + fault.at - time.monotonic())
            group.create_task(inflict(swarm, fault))
        await asyncio.sleep(began + seconds - time.monotonic())


def outcome_of(seed: int, seconds: float, history: Sequence[Event], violations: list[Violation]) -> Outcome:
    """Count what a history has."""
    faults = Counter(event.what["kind"] for event in history if event.operation == "fault")
    refused = sum(event.operation == "fault_refused" for event in history)
    acknowledged = Counter(event.operation for event in history if event.state == "ok" and event.by != "faults")
    return Outcome(seed, seconds, faults, refused, acknowledged, violations)


if __name__ == "__main__":
    sys.exit(main())
