"""One process of benchmarks/broadcast.py: says "ready", waits for a line, works, says "done".

python -m benchmarks.broadcast_process origin FOLDER
python -m benchmarks.broadcast_process relay FOLDER UPSTREAM
python -m benchmarks.broadcast_process publish FOLDER CHECKPOINT    "done" is followed by the root
python -m benchmarks.broadcast_process client FOLDER SOURCE         reads the root from stdin
python -m benchmarks.broadcast_process copy FILE SOURCE             the limit: sendfile, and fsync
python -m benchmarks.broadcast_process nginx FOLDER                 as `origin`, by nginx
python -m benchmarks.broadcast_process aiohttp-client FOLDER SOURCE as `client`, by aiohttp
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from pathlib import Path

RUN, STEP = 1, 0
POLL_SECONDS = 0.05
"""Between two looks of a relay upstream."""


def main() -> None:
    role, name, *rest = sys.argv[1:]
    work = ROLES[role](Path(name), *rest)
    if asyncio.iscoroutine(work):
        asyncio.run(work)
    sys.stdin.read()


async def serve(folder: Path, *upstreams: str) -> None:
    from muster.runtime import telemetry
    from muster.settings.schema import Settings
    from muster.shardcast.__main__ import serving

    role = "relay" if upstreams else "origin"
    telemetry.configure(role, level="error")
    chosen = {"role": role, "dir": folder, "port": 0, "upstreams": upstreams, "poll_seconds": POLL_SECONDS}
    async with serving(Settings.model_validate({"run": RUN, "shardcast": chosen})) as (port, _):
        print(f"ready\nport {port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def publish(folder: Path, checkpoint: str) -> None:
    from muster.shardcast.publish import publish

    begin()
    print("done", publish(Path(checkpoint), folder, RUN, STEP, link=True).id, flush=True)


def fetch(folder: Path, *sources: str) -> None:
    from muster.runtime import telemetry
    from muster.shardcast.fetch.fetch import FetchRequest, fetch_version

    telemetry.configure("client", level="error")
    root = begin()
    asyncio.run(fetch_version(FetchRequest(bytes.fromhex(root[2:]), RUN, STEP, sources, folder)))
    print("done", flush=True)


def copy(target: Path, source: str) -> None:
    begin()
    with Path(source).open("rb") as reader, target.open("wb") as writer:
        left = os.fstat(reader.fileno()).st_size
        while left:
            left -= os.sendfile(writer.fileno(), reader.fileno(), None, min(left, 1 << 30))
        os.fsync(writer.fileno())
    print("done", flush=True)


def serve_by_nginx(folder: Path) -> None:
    """Become nginx, serving a published folder by sendfile. Clients try again until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = Path(tempfile.mkdtemp(prefix="nginx-", dir=folder.parent))
    paths = " ".join(f"{kind}_temp_path {own}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = own / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {own}/pid; error_log {own}/errors; events {{}}\n"
        f"http {{ access_log off; sendfile on; tcp_nopush on; {paths}\n"
        f"server {{ listen 127.0.0.1:{port}; location /v1/weights/ {{ alias {folder}/; }} }} }}\n"
    )
    print(f"ready\nport {port}", flush=True)
    os.execvp("nginx", ["nginx", "-p", str(own), "-c", str(config), "-e", f"{own}/errors"])


async def fetch_by_aiohttp(folder: Path, source: str) -> None:
    """Fetch a version with aiohttp's client: as many connections as ours, and the same checks, writes and syncs."""
    import aiohttp
    from blake3 import blake3

    from muster.shardcast.fetch.bounds import FetchBounds
    from muster.shardcast.format.manifest import MANIFEST_NAME, Shard, parse_manifest
    from muster.shardcast.format.partial import PartialVersion

    root = begin()
    streams = FetchBounds().streams
    base = f"{source}/v1/weights/{root}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=streams)) as session:
        async with session.get(f"{base}/{MANIFEST_NAME}") as answer:
            manifest = parse_manifest(await answer.read(), bytes.fromhex(root[2:]))
        version = PartialVersion.prepare(folder, manifest)
        todo = iter(manifest.shards)

        def keep(shard: Shard, data: bytes) -> None:
            if blake3(data).digest() != shard.digest:
                raise SystemExit(f"shard {shard.index} is wrong")
            version.write(shard, memoryview(data))

        async def stream() -> None:
            for shard in todo:
                asked = {"Range": f"bytes={shard.offset}-{shard.end - 1}"}
                async with session.get(f"{base}/{manifest.files[shard.file].name}", headers=asked) as answer:
                    data = await answer.read()
                await asyncio.to_thread(keep, shard, data)

        await asyncio.gather(*(stream() for _ in range(streams)))
        await asyncio.to_thread(version.sync)
        version.finish()
    print("done", flush=True)


def begin() -> str:
    print("ready", flush=True)
    return sys.stdin.readline().strip()


ROLES = {
    **dict.fromkeys(("origin", "relay"), serve),
    **{"publish": publish, "client": fetch, "copy": copy, "nginx": serve_by_nginx},
    "aiohttp-client": fetch_by_aiohttp,
}


if __name__ == "__main__":
    main()
