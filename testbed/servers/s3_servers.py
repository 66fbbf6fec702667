"""Real S3 servers for tests, out of the environment `.servers` that `make setup` makes (tests/servers.txt).

moto keeps to conditional puts and ranges, and accepts any key. rclone checks keys, overwrites what it was asked to
create and ignores ranges. A `Link` to one of them can fall silent.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from testbed.paths import ROOT
from testbed.servers.s3 import SECRET, Endpoint, without_aws
from testbed.waiting import BOUND, wait_until

PROGRAMS = ROOT / ".servers" / "bin"


@contextmanager
def moto(folder: Path) -> Iterator[Endpoint]:
    """A server that is right; without a bucket."""
    command = [PROGRAMS / "moto_server", "--host", "127.0.0.1", "--port", "0"]
    with _running(command, folder / "moto.log") as url:
        yield Endpoint(url)


@contextmanager
def rclone(folder: Path) -> Iterator[Endpoint]:
    """A server that is broken; with an empty bucket."""
    (folder / "kept" / "bucket").mkdir(parents=True)
    command = [PROGRAMS / "rclone", "serve", "s3", "--addr", "127.0.0.1:0", "--config", folder / "none.conf"]
    command += ["--auth-key", f"a-key,{SECRET}", folder / "kept"]
    with _running(command, folder / "rclone.log") as url:
        yield Endpoint(url)


@contextmanager
def _running(command: list[str | Path], log: Path) -> Iterator[str]:
    """A server's URL, as it says it on starting; ended afterwards."""
    assert Path(command[0]).exists(), f"{command[0]} is missing: make setup"
    with log.open("wb") as output:
        environment = without_aws(dict(os.environ)) | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:

        def named() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return re.search(r"http://127\.0\.0\.1:\d+", log.read_text())

        found = wait_until(named, lambda: f"{command[0]} says its URL: {log.read_text()}")
        assert found is not None
        yield found.group()
    finally:
        process.terminate()
        try:
            process.wait(BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Link:
    """A TCP link to a server that can stop carrying its answers. Connections stay open until the link is closed."""

    def __init__(self, server_url: str) -> None:
        host, _, port = server_url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self.url = ""
        self.silent = False
        """Nothing of an answer arrives any more."""
        self.body_bytes: int | None = None
        """Of an answer's body so many bytes arrive, and its head; None: all."""
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def carrying(self) -> AsyncIterator[Link]:
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pumps.add(task)
        up_reader, up_writer = await asyncio.open_connection(*self._server)
        answers = asyncio.create_task(self._carry_answers(up_reader, writer))
        try:
            while data := await reader.read(1 << 16):
                up_writer.write(data)
                await up_writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            for end in (writer, up_writer):
                end.close()
                await asyncio.gather(end.wait_closed(), return_exceptions=True)
            self._pumps.discard(task)

    async def _carry_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One answer a connection is enough: moto closes after each."""
        seen, sent = b"", 0
        while data := await reader.read(1 << 16):
            if self.silent:
                await asyncio.Event().wait()
            seen += data
            head, end, _ = seen.partition(b"\r\n\r\n")
            limit = len(seen) if self.body_bytes is None or not end else len(head) + 4 + self.body_bytes
            writer.write(seen[sent:limit])
            sent = min(len(seen), limit)
            await writer.drain()
            if sent < len(seen):
                await asyncio.Event().wait()
        writer.close()
