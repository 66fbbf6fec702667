"""Real S3 servers, out of the environment `.servers` that `make setup` makes (tests/servers.txt).

moto keeps to conditional puts and ranges, and accepts any key. rclone checks keys, overwrites what it was asked to
create and ignores ranges. A `Link` to one of them can fall silent.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

from testbed.http import connecting
from testbed.paths import ROOT
from testbed.processes import Process

PROGRAMS = ROOT / ".servers" / "bin"
SECRET = "a secret for rclone"


@dataclass(frozen=True)
class Endpoint:
    """An S3 server, and a bucket in it, as an orchestrator's environment names it."""

    url: str
    bucket: str = "bucket"
    key: str = "a-key"
    secret: str = SECRET

    @property
    def storage_url(self) -> str:
        return f"s3://{self.bucket}/a/prefix"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that an operator sets to use it. No other AWS variable may be set."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def new_bucket(self) -> Endpoint:
        """Make an empty bucket on the same server; moto lets any client make one."""
        made = replace(self, bucket=f"bucket-{secrets.token_hex(8)}")
        httpx2.put(f"{made.url}/{made.bucket}", timeout=30).raise_for_status()
        return made


@contextmanager
def moto(folder: Path) -> Iterator[Endpoint]:
    """Yield a server that is right; without a bucket."""
    with _running(folder, "moto_server", "--host", "127.0.0.1", "--port", "0") as url:
        yield Endpoint(url)


@contextmanager
def rclone(folder: Path) -> Iterator[Endpoint]:
    """Yield a server that is broken; with an empty bucket."""
    (folder / "kept" / "bucket").mkdir(parents=True)
    words = ("serve", "s3", "--addr", "127.0.0.1:0", "--config", folder / "none.conf", "--auth-key", f"a-key,{SECRET}")
    with _running(folder, "rclone", *words, folder / "kept") as url:
        yield Endpoint(url)


@contextmanager
def _running(folder: Path, program: str, *words: object) -> Iterator[str]:
    """Yield a server's URL, as it says it on starting; ended afterwards."""
    path = PROGRAMS / program
    assert path.exists(), f"{path} is missing: make setup"
    with Process([path, *words], folder / f"{program}.log", environment={"PYTHONUNBUFFERED": "1"}) as process:
        named = process.wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", process.said), "it says its URL")
        assert named is not None
        yield named.group()


class Link:
    """A TCP link to a server that can stop carrying its answers. Connections stay open until the link is closed."""

    def __init__(self, server_url: str) -> None:
        host, _, port = server_url.removeprefix("http://").partition(":")
        self._server = (host, int(port))
        self.url = ""
        self.silent = False
        """Whether every answer is withheld."""
        self.body_bytes: int | None = None
        """Of an answer's body so many bytes arrive, and its head; None: all."""

    @asynccontextmanager
    async def carrying(self) -> AsyncIterator[Link]:
        async with connecting(self._connected) as self.url:
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._server)
        answers = asyncio.create_task(self._carry_answers(up_reader, writer))
        try:
            with suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    up_writer.write(data)
                    await up_writer.drain()
        finally:
            answers.cancel()
            for end in (writer, up_writer):  # before any wait: one that the test's end cuts short would leave them open
                end.close()
            await asyncio.gather(answers, writer.wait_closed(), up_writer.wait_closed(), return_exceptions=True)

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
