"""A run whose orchestrator loses power at some moment, again and again: what it acknowledged must be there."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from muster.contracts import runs
from muster.errors import RefusedError
from muster.protocol.hashes import content_hash
from orchestrator.uploads import AHEAD, MAX_ROOTS
from testbed.power_cut import Power
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash
from testbed.runs.story import Story
from testbed.waiting import wait_until

VALIDATORS = ("v1", "v2")
DATABASE: Final = "orchestrator.db"
STORAGE: Final = "storage"


@dataclass
class Acknowledged:
    """What members were told is kept."""

    uploads: list[tuple[str, int, str, str]] = field(default_factory=list)
    """Node, index, root and hash of the file."""
    verdicts: list[tuple[str, str, int]] = field(default_factory=list)
    """Validator, node, index."""

    @property
    def numbers(self) -> tuple[int, int]:
        """Return how many uploads and verdicts."""
        return len(set(self.uploads)), len(self.verdicts)


class PowerStory(Story):
    """Its workers: the first commit to what they upload and are judged, the others only upload."""

    def __init__(self, run_fixture: RunFixture, folder: Path, workers: Sequence[str], uploaders: Sequence[str]) -> None:
        self.disk, self._left = folder / "disk", folder / "left"
        self.disk.mkdir(parents=True)
        self.power = Power(self.disk, folder / "power")
        orchestrator = Orchestrator(
            run_fixture,
            folder / "orchestrator",
            environment=self.power.environment,
            database_url=f"sqlite:///{self.disk / DATABASE}",
            storage_url=f"file:{self.disk / STORAGE}",
        )
        super().__init__(run_fixture, orchestrator)
        self._workers = workers
        self._uploads = [(name, i, n) for i in range(AHEAD) for n in range(MAX_ROOTS) for name in uploaders]
        self.acknowledged = Acknowledged()
        self._checked = 0

    @asynccontextmanager
    async def cut_amid_work(self) -> AsyncIterator[None]:
        """Let members work while the block runs, then cut the power amid what they do."""
        work = [asyncio.create_task(self._commit_and_judge()), asyncio.create_task(self._upload())]
        try:
            yield
        finally:
            self.orchestrator.kill()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        self.power.cut()

    def lost_now(self) -> list[object]:
        """Return what would be lost if the power failed at this moment, or was by the last cut."""
        running = [psutil.Process(self.orchestrator.pid)] if self.orchestrator.is_running else []
        for process in running:
            process.suspend()
            wait_until(lambda one=process: one.status() == psutil.STATUS_STOPPED, "the orchestrator is stopped")
        self.power.leave(self._left)
        for process in running:
            process.resume()
        lost = self._lost_in(self._left)
        shutil.rmtree(self._left)
        return lost

    async def _commit_and_judge(self) -> None:
        for worker in itertools.cycle(self._workers):
            node = self.run_fixture.key(worker).address
            async with self.run_fixture.chain(worker) as chain:
                index = (await chain.call(runs.work(node))).next  # the one before may have been cut off
            name, root = await self.work(worker, index), some_hash(f"{worker} root {index}")
            self.acknowledged.uploads.append((node, index, root, name))
            for validator in VALIDATORS:
                await self.judge(validator, worker, index)
                self.acknowledged.verdicts.append((self.run_fixture.key(validator).address, node, index))

    async def _upload(self) -> None:
        while self._uploads:
            worker, index, number = self._uploads.pop(0)
            data, root = f"{worker} {index} {number}".encode() * 50, some_hash(f"{worker} {index} {number}")
            async with self.client(worker) as client:
                await client.put_file(data, self.run, index, root)
            node = self.run_fixture.key(worker).address
            self.acknowledged.uploads.append((node, index, root, content_hash(data)))
            await asyncio.sleep(0.2)

    def _lost_in(self, disk: Path) -> list[object]:
        """Return what was acknowledged and is not in a copy of an orchestrator's database and storage."""
        with closing(sqlite3.connect(disk / DATABASE)) as database:
            uploads = set(database.execute('SELECT node, "index", root, file_hash FROM uploads'))
            verdicts = set(database.execute('SELECT validator, node, "index" FROM verdicts'))
        files = {path.name: path for path in (disk / STORAGE / "files").rglob("*") if path.is_file()}
        names = [upload[-1] for upload in self.acknowledged.uploads]
        broken = [name for name in names if name[2:] not in files or content_hash(files[name[2:]].read_bytes()) != name]
        return [*(set(self.acknowledged.uploads) - uploads), *(set(self.acknowledged.verdicts) - verdicts), *broken]

    async def missing(self) -> list[object]:
        """Return the uploads since the last call for which an honest validator would find no file."""
        found: list[object] = []
        async with self.client(None) as reader:
            for upload in self.acknowledged.uploads[self._checked :]:
                node, index, root, name = upload
                try:
                    await reader.upload(self.run, node, index, root)
                    await reader.get_file(name)
                except RefusedError:
                    found.append(upload)
        self._checked = len(self.acknowledged.uploads)
        return found
