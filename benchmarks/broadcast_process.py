"""One process of benchmarks/broadcast.py: says "ready", waits for a line, works, says "done".

python -m benchmarks.broadcast_process origin FOLDER
python -m benchmarks.broadcast_process relay FOLDER UPSTREAM
python -m benchmarks.broadcast_process publish FOLDER CHECKPOINT    "done" is followed by the root
python -m benchmarks.broadcast_process client FOLDER SOURCE         is told the root
python -m benchmarks.broadcast_process copy FILE SOURCE             the limit: sendfile, and fsync
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

RUN, STEP = 1, 0
POLL_SECONDS = 0.05
"""Between two looks of a relay upstream."""


def main() -> None:
    role, name, *rest = sys.argv[1:]
    match role:
        case "origin" | "relay":
            asyncio.run(serve(role, Path(name), rest))
        case "publish":
            publish(Path(name), Path(rest[0]))
        case "client":
            fetch(Path(name), rest[0])
        case "copy":
            copy(Path(name), Path(rest[0]))
    sys.stdin.read()


async def serve(role: str, folder: Path, upstreams: list[str]) -> None:
    from muster import telemetry
    from muster.settings import Settings
    from muster.shardcast.serve import serving

    telemetry.configure(role, level="error")
    chosen = {"role": role, "dir": folder, "port": 0, "upstreams": upstreams, "poll_seconds": POLL_SECONDS}
    async with serving(Settings.model_validate({"run": RUN, "shardcast": chosen})) as (port, _):
        print(f"ready\nport {port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def publish(folder: Path, checkpoint: Path) -> None:
    from muster.shardcast import publish

    begin()
    print("done", publish(checkpoint, folder, RUN, STEP).id, flush=True)


def fetch(folder: Path, source: str) -> None:
    from muster import telemetry
    from muster.shardcast import fetch

    telemetry.configure("client", level="error")
    root = begin()
    asyncio.run(fetch(bytes.fromhex(root[2:]), RUN, STEP, [source], folder))
    print("done", flush=True)


def copy(target: Path, source: Path) -> None:
    begin()
    with source.open("rb") as reader, target.open("wb") as writer:
        left = os.fstat(reader.fileno()).st_size
        while left:
            left -= os.sendfile(writer.fileno(), reader.fileno(), None, min(left, 1 << 30))
        os.fsync(writer.fileno())
    print("done", flush=True)


def begin() -> str:
    print("ready", flush=True)
    return sys.stdin.readline().strip()


if __name__ == "__main__":
    main()
