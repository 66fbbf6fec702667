"""A process that fetches a step with what it has already, and folders that have a step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import version_path
from testbed.waiting import BOUND

CLIENT = """
import asyncio, json, sys
from pathlib import Path
from muster.runtime import telemetry
from muster.errors import ChainError, MusterError
from muster.settings.schema import ShardcastSettings
from muster.shardcast.fetch.catch_up import fetch_step
from muster.shardcast.fetch.fetch import Wanted
telemetry.configure("client")
step, dest, roots, sources = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
async def anchored(step):
    if str(step) not in roots:
        raise ChainError(f"step {step} is not published")
    return bytes.fromhex(roots[str(step)][2:])
async def main():
    settings = ShardcastSettings(fetch_seconds=300, give_up_seconds=120, stall_seconds=30)
    return await fetch_step(Wanted(await anchored(step), 1, step, sources, dest, settings), anchored)
try:
    found = asyncio.run(main())
except MusterError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
print(json.dumps({"path": str(found.path), "fetched": found.fetched_bytes, "deltas": found.delta_bytes}))
"""


def client(step: int, dest: Path, made: list[Manifest], *sources: str, **environment: str) -> subprocess.Popen[str]:
    """A process that fetches a step, prints what it fetched, and ends."""
    roots = json.dumps({manifest.step: manifest.id for manifest in made})
    command = [sys.executable, "-c", CLIENT, str(step), str(dest), roots, *sources]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> dict[str, int]:
    output, errors = process.communicate(timeout=BOUND)
    assert process.returncode == 0, errors
    return json.loads(output)


def give(folder: Path, manifest: Manifest, dest: Path) -> Path:
    """Let a client have a step as if it had fetched it before."""
    return Path(shutil.copytree(version_path(folder / "published", manifest.root), version_path(dest, manifest.root)))
