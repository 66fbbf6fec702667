"""An orchestrator that loses power, or gets an older database back, has all that it acknowledged."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.ledger.tables import uploads, verdicts
from muster.proofs.native import compiler
from testbed.power_cut import Power
from testbed.processes import Process
from testbed.runs.power_story import PowerStory
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.story import Story, content_of
from testbed.waiting import until
from worker.journal import WorkJournal

WORKERS, UPLOADERS = ("w1", "w2"), ("w3",)


@pytest.fixture(scope="module")
def run_fixture(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("power")
    made = asyncio.run(
        RunFixture.build(folder, deployment.settings, seed="power", workers=(*WORKERS, *UPLOADERS, "w4", "w5"))
    )
    asyncio.run(made.publish(0))
    return made


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
async def test_what_was_acknowledged_survives_a_power_cut(run_fixture: RunFixture, tmp_path: Path) -> None:
    story = PowerStory(run_fixture, tmp_path, WORKERS, UPLOADERS)
    story.orchestrator.start()
    async with story.cut_amid_work():
        for verdicts_given in (1, 3):
            await until(lambda least=verdicts_given: len(story.acknowledged.verdicts) >= least)
            assert story.lost_now() == []
    assert story.lost_now() == []
    with story.orchestrator:
        assert await story.missing() == []


async def test_older_copy_of_the_database_gets_what_storage_has(run_fixture: RunFixture, tmp_path: Path) -> None:
    """A day's work came after the copy of the stopped database. No honest worker may seem to have brought no file."""
    database = tmp_path / "orchestrator" / "orchestrator.db"
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as orchestrator:
        story = Story(run_fixture, orchestrator)
        await story.work("w4", 0)
        await story.judge("v1", "w4", 0)
        orchestrator.stop()
        shutil.copy(database, tmp_path / "copy.db")
        orchestrator.start()
        assert not orchestrator.logged("rebuilt from storage")
        await story.work("w4", 1)
        for validator in ("v1", "v2"):
            await story.judge(validator, "w4", 1)
        await story.reject("v2", "w4", 0, b"{}")
        before = [await orchestrator.rows(table, "node", "index", "document") for table in (uploads, verdicts)]
        orchestrator.stop()
        shutil.copy(tmp_path / "copy.db", database)
        orchestrator.start()
        assert [line["uploads"] for line in orchestrator.logged("rebuilt from storage")] == [1]
        after = [await orchestrator.rows(table, "node", "index", "document") for table in (uploads, verdicts)]
        assert list(map(sorted, after)) == list(map(sorted, before))
        async with story.client("v3") as validator:
            upload = await validator.upload(story.run, run_fixture.key("w4").address, 1, content_of("w4", 1)[1])
            assert await validator.get_file(upload.receipt.file_hash) == content_of("w4", 1)[0]


_KEEP = """
import sys, time
from pathlib import Path
from worker.journal import WorkJournal
journal = WorkJournal(Path(sys.argv[1]), "w1")
entry = journal.save(0, 0, bytes(32), bytes(32), b"finished work")
print(entry.file_hash, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
def test_what_a_worker_noted_survives_a_power_cut(tmp_path: Path) -> None:
    """The file in its first folder too: it is promised to the chain by a root that only it has."""
    state, said = tmp_path / "state", tmp_path / "said"
    state.mkdir()
    power = Power(state, tmp_path / "power")
    command = [sys.executable, "-c", _KEEP, state]
    with Process(command, tmp_path / "log", output=said, environment=power.environment) as process:
        process.wait_until(said.read_text, "it has noted its work")
        process.kill()
    power.cut()
    with WorkJournal(state, "w1") as journal:
        entry = journal.entry(0)
        assert entry is not None
        assert (entry.file_hash, journal.data(entry)) == (said.read_text().strip(), b"finished work")
