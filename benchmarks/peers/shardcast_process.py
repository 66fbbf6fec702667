"""Run the `shardcast` package in a separate environment (`make bench-peers`), never imported by Muster.

    shardcast_process.py origin FOLDER PORT
    shardcast_process.py relay FOLDER PORT UPSTREAM
    shardcast_process.py client FOLDER SERVER

Started by benchmarks/broadcast.py. Says "ready", waits for a line on stdin, works, says "done", and lives on. The line
names the file that an origin broadcasts. A relay is done when it has the whole file, a client when it has checked it. A
relay looks for new versions all the time instead of every thirty seconds.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from shardcast import ClientNode, MiddleNode, OriginServer, logger

VERSION = "v1"
PAUSE = 0.02
DUMMY = "data1.bin"
"""A file that every server must have: the package fetches it to see how fast the server is."""


def main() -> None:
    role, name, *rest = sys.argv[1:]
    logger.setLevel(logging.ERROR)
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DUMMY).write_bytes(bytes(1 << 20))
    match role:
        case "origin":
            origin = OriginServer(name, int(rest[0]))
            file = begin()
            origin.broadcast(file)
        case "relay":
            relay = MiddleNode([rest[1]], name, int(rest[0]), check_interval=PAUSE)  # slept through as it is
            begin()
            while VERSION not in relay.processed_versions:
                time.sleep(PAUSE)
        case "client":
            client = ClientNode([rest[0]], name)
            begin()
            while VERSION not in client.list_available_versions():
                time.sleep(PAUSE)
            if client.download_version(VERSION) is None:
                raise SystemExit("the package's client did not get the file")
    print("done", flush=True)
    sys.stdin.read()


def begin() -> str:
    print("ready", flush=True)
    return sys.stdin.readline().strip()


if __name__ == "__main__":
    main()
