"""Fetch weights, in this process or in one that can be killed.

python -m testbed.weights.fetching STEP DEST ROOTS SOURCE…   ROOTS: as JSON, by step, those that are on chain
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from muster.errors import ChainError, MusterError
from muster.runtime import telemetry
from muster.shardcast.fetch.bounds import FetchBounds
from muster.shardcast.fetch.delta_fetch import Anchored, fetch_step
from muster.shardcast.fetch.fetch import FetchedVersion, FetchRequest, fetch_version
from muster.shardcast.format.manifest import Manifest
from testbed.processes import Process
from testbed.waiting import BOUND
from testbed.weights.checkpoints import RUN

QUICK: Final = FetchBounds(seconds=BOUND, give_up_seconds=120, stall_seconds=30)
"""Bounds in which a machine full of tests still does everything."""


async def get(manifest: Manifest, dest: Path, *sources: str, **changes: Any) -> FetchedVersion:
    """Fetch a version whole, within QUICK bounds, some of them changed."""
    bounds = replace(QUICK, **changes)
    return await fetch_version(FetchRequest(manifest.root, RUN, manifest.step, sources, dest, bounds))


async def get_step(
    made: Sequence[Manifest],
    step: int,
    dest: Path,
    *sources: str,
    **changes: Any,
) -> FetchedVersion:
    """Fetch a step by what is there of others, within QUICK bounds, some of them changed. The chain has those made."""
    bounds = replace(QUICK, **changes)
    roots = roots_of(made)
    request = FetchRequest(roots[step], RUN, step, sources, dest, bounds)
    return await fetch_step(request, anchor_of(roots))


def roots_of(made: Iterable[Manifest]) -> dict[int, bytes]:
    return {manifest.step: manifest.root for manifest in made}


def anchor_of(roots: Mapping[int, bytes]) -> Anchored:
    """Return what says which root a step has on chain."""

    async def anchored(step: int) -> bytes:
        if step not in roots:
            raise ChainError(f"step {step} is not published")
        return roots[step]

    return anchored


def fetcher(
    made: Sequence[Manifest], step: int, dest: Path, *sources: str, launcher: Sequence[str] = (), **environment: str
) -> Process:
    """Start a process that fetches a step: whole where the chain has no other. launcher: what starts it."""
    roots = json.dumps({step: root.hex() for step, root in roots_of(made).items()})
    command = [*launcher, sys.executable, "-m", __name__, step, dest, roots, *sources]
    log, output = (dest.with_name(f"{dest.name}.{ending}") for ending in ("log", "json"))
    return Process(command, log, output=output, environment=environment).spawn()


def outcome(process: Process) -> dict[str, Any]:
    """Return what a process says that it fetched, once it has ended."""
    status, said = process.end()
    assert status == 0, said
    return process.document


def main(step: int, dest: Path, known: Mapping[str, str], *sources: str) -> int:
    telemetry.configure("fetcher")
    roots = {int(number): bytes.fromhex(root) for number, root in known.items()}
    request = FetchRequest(roots[step], RUN, step, sources, dest, QUICK)
    try:
        found = asyncio.run(fetch_step(request, anchor_of(roots)) if len(roots) > 1 else fetch_version(request))
    except MusterError as error:
        print(f"{type(error).__name__}: {error} ({error.hint})", file=sys.stderr)
        return error.exit_code
    kinds = {"found": found.found_bytes, "fetched": found.fetched_bytes, "deltas": found.delta_bytes}
    print(json.dumps({"path": str(found.path), **kinds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), *sys.argv[4:]))
