"""How fast weights reach the clients, against a plain copy of the same bytes to the clients' disks.

    python benchmarks/broadcast.py [--json] [--mib 256] [--runs 3]

`limit` is sendfile from file to file with fsync, one process per client, on the same disk in the same run, alternating
with ours: an origin process and as many client processes, each verifying every shard and syncing what it wrote.
Figures are seconds from the word go until the last client is done; `ratio` is limit over ours, 1 being the limit.
Everything is on one machine, so the clients' hashing and the origin's sending share its cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from muster.shardcast import Manifest, publish  # noqa: E402

TARGETS = {1: ("one_client_vs_limit", 0.8), 4: ("four_clients_vs_limit", 0.6)}
READY_SECONDS = 60

CLIENT = """
import asyncio, sys
from pathlib import Path
from muster import telemetry
from muster.shardcast import fetch
telemetry.configure("client", level="error")
root, url, dest = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(fetch(bytes.fromhex(root[2:]), 1, 0, [url], Path(dest)))
print("done", flush=True)
"""

COPIER = """
import os, sys
source, dest = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with open(source, "rb") as reader, open(dest, "wb") as writer:
    left = os.fstat(reader.fileno()).st_size
    while left:
        left -= os.sendfile(writer.fileno(), reader.fileno(), None, min(left, 1 << 30))
    os.fsync(writer.fileno())
print("done", flush=True)
"""


def together(commands: list[list[str]]) -> float:
    """Seconds that processes take together, from telling them to begin until the last says that it is done."""
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for command in commands
    ]
    try:
        for process in processes:
            _expect(process, "ready")
        started = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            _expect(process, "done")
        return time.perf_counter() - started
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise SystemExit(f"a client said {line!r} instead of {word!r}")


@contextmanager
def origin(folder: Path, published: Path) -> Iterator[str]:
    """An origin process; its URL."""
    log, config = folder / "log.jsonl", folder / "muster.toml"
    config.write_text(f'[log]\nlevel = "error"\nfile = "{log}"\n[shardcast]\nport = 0\ndir = "{published}"\n')
    process = subprocess.Popen([sys.executable, "-m", "muster.shardcast", "--config", str(config)], cwd=ROOT)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not (log.exists() and '"listening"' in log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the origin did not come up")
            time.sleep(0.05)
        line = next(line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "listening")
        yield f"http://127.0.0.1:{line['port']}"
    finally:
        process.terminate()
        process.wait(timeout=READY_SECONDS)


def measure(folder: Path, manifest: Manifest, model: Path, url: str, runs: int) -> list[report.Figure]:
    """All figures; ours and the limit alternate, so that a busy moment hits both."""

    def emptied(name: str) -> Path:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
        os.sync()
        return folder / name

    def ours(clients: int) -> float:
        dest = emptied("ours")
        client = [sys.executable, "-c", CLIENT, manifest.id, url]
        return together([[*client, str(dest / str(i))] for i in range(clients)])

    def limit(clients: int) -> float:
        dest = emptied("limit")
        return together([[sys.executable, "-c", COPIER, str(model), str(dest / str(i))] for i in range(clients)])

    figures = []
    for clients, (name, target) in TARGETS.items():
        mine, plain = report.alternate(runs, lambda n=clients: ours(n), lambda n=clients: limit(n))
        figures.append(report.slower(name, mine, limit=plain, target=target, unit="s"))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--mib", type=int, default=256, help="size of the checkpoint")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-broadcast-") as name:
        folder = Path(name)
        model = folder / "checkpoint" / "model.safetensors"
        model.parent.mkdir()
        with model.open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        manifest = publish(model.parent, folder / "published", 1, 0)
        with origin(folder, folder / "published") as url:
            figures = measure(folder, manifest, model, url, options.runs)
    return report.show(figures, as_json=options.json, about=[f"{options.mib} MiB"])


if __name__ == "__main__":
    sys.exit(main())
