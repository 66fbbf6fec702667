"""An installed Muster, away from its clone: what its commands cost, and whether what is printed for strangers is true.

    python benchmarks/install.py [--json] [--quick]

The package is built and installed as `make release` does it, into empty environments: `wheel_whole` counts the commands
that end as they should (wheel and source distribution give the same bytes, so one install tries both). Then a local
swarm with a cheater runs, and readers with an empty home and the package `muster[verify]` type what page and docs show.

    stranger_verify   seconds of `muster slash verify CASE --url URL` on the conviction, home and caches empty
    stranger_bytes    what it receives beyond the weights and the evidence of the case, in MiB
    printed           lines that end otherwise than they should; listed with how many were typed, and why others are not
    cli_help          CPU seconds of `muster --help`
    cli_status        CPU seconds of `muster worker status`
    doctor_dead_chain seconds until `muster doctor` ends while the chain is stopped

`--quick` leaves out the engine's install. It takes five minutes, without the downloads.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import Figure, figure, none, parser, show
from scripts import release
from testbed.http import get
from testbed.paths import ROOT
from testbed.printed import TABLE, Reader, conviction, lines_of, reason_not_to_run, type_as_visitor
from testbed.runs.swarms import LiveSwarm, live_swarm
from testbed.waiting import wait_until

CONVICTION_SECONDS: Final = 420.0
RUNS: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help="leave out the worker's engine")
    options = made.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-install-") as name:
        figures = measure(Path(name), quick=options.quick)
    return show(figures, as_json=options.json)


def measure(folder: Path, *, quick: bool) -> list[Figure]:
    """Return all figures."""
    # 1. The package, in empty environments.
    files = release.build(folder / "dist", folder / "again")
    wheel = next(path for path in files if path.suffix == ".whl")
    kinds = [kind for kind in release.TYPED if not (quick and kind == "worker")]
    tried = [one for kind in kinds for one in release.try_install(kind, wheel, folder / (kind or "plain"))]
    tried.append(release.resolve_gpu(wheel, folder / "plain" / "environment"))
    wrong = [str(one) for one in tried if not one.is_right]
    figures = [
        none("wheel_whole", wrong, "commands that end otherwise", typed=len(tried), files=[f.name for f in files])
    ]

    # 2. Strangers to a swarm with a conviction.
    python = folder / "validator" / "environment" / "bin" / "python"
    with live_swarm(folder, "--workers", "1", "--cheaters", "1", "--seed", "0") as swarm:
        verdict = wait_until(lambda: conviction(swarm), "a conviction", CONVICTION_SECONDS)
        figures += stranger(folder, swarm, python, verdict)
        reader = Reader(folder / "visitor", None, verdict, python, has_engine=False)
        figures.append(printed(type_as_visitor(swarm, reader)))
        figures += commands(folder, swarm, reader)
    return figures


def stranger(folder: Path, swarm: LiveSwarm, python: Path, verdict: dict[str, object]) -> list[Figure]:
    """Measure what it costs a stranger with only a URL to verify one verdict."""
    counted = folder / "counted.jsonl"
    reader = Reader(folder / "stranger", ROOT / "benchmarks" / "counted", verdict, python, shares_components=False)
    reader.environment["COUNTED"] = str(counted)
    typed = reader.type(f"muster slash verify {verdict['case']} --url {swarm.url}")
    if not typed.is_true:
        raise SystemExit(f"{typed.typed} ended with {typed.status}:\n{typed.said}")
    received: Counter[str] = Counter()
    for line in counted.read_text().splitlines():
        received.update(json.loads(line))
    relays = swarm.get("/v1/runs/1/checkpoints/0")["relays"]
    weights = sum(received.pop(relay.rpartition(":")[2], 0) for relay in relays)
    evidence = len(get(f"{swarm.url}/v1/evidence/{verdict['evidence']}")[1])
    beyond = (received.total() - evidence) / 2**20
    about = {"weights_bytes": weights, "evidence_bytes": evidence}
    return [
        figure("stranger_verify", typed.seconds, target=25.0, unit="s", at_most=True),
        figure("stranger_bytes", beyond, target=1.0, unit="MiB", at_most=True, **about),
    ]


def printed(typed: Sequence[object]) -> Figure:
    """Return which lines end otherwise than they should, and why others are not typed."""
    wrong = [f"{one.typed}: {one.status}\n{one.said[-500:]}" for one in typed if not one.is_true]  # type: ignore[attr-defined]
    reasons = Counter(
        reason_not_to_run(page, line) or "typed here or in tests/integration/test_printed.py"
        for page in TABLE
        for line in lines_of(page)
    )
    return none("printed", wrong, "lines that end otherwise", typed=len(typed), lines=dict(reasons))


def commands(folder: Path, swarm: LiveSwarm, reader: Reader) -> list[Figure]:
    """Measure the cost of single commands."""
    worker = swarm.folder / "worker-1" / "muster.toml"
    program, environment = str(reader.program), os.environ | reader.environment

    def cpu(*words: object, status: int = 0) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        call = [program, *map(str, words)]
        done = subprocess.run(call, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode != status:
            raise SystemExit(f"{call} ended with {done.returncode}:\n{done.stderr}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def stopped() -> float:
        begun = time.monotonic()
        call = [program, "doctor", "--config", str(worker)]
        subprocess.run(call, env=environment, cwd=folder, capture_output=True, timeout=120, check=False)
        return time.monotonic() - begun

    help_, status = ([each() for _ in range(RUNS)] for each in (lambda: cpu("--help"), lambda: _status(cpu, worker)))
    chain = swarm.pid_of("chain")
    os.kill(chain, signal.SIGSTOP)
    try:
        dead = stopped()
    finally:
        os.kill(chain, signal.SIGCONT)
    return [
        figure("cli_help", help_, target=0.4, unit="CPU s", at_most=True),
        figure("cli_status", status, target=1.0, unit="CPU s", at_most=True),
        figure("doctor_dead_chain", dead, target=10.0, unit="s", at_most=True),
    ]


def _status(cpu: Callable[..., float], config: Path) -> float:
    return cpu("worker", "status", "--config", config)


if __name__ == "__main__":
    sys.exit(main())
