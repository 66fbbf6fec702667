"""The trainer's reports: what a later report of a step replaces and what it keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import select

from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from muster.ledger.tables import spent, steps
from muster.protocol.messages import StepReport
from muster.protocol.receipts import sign_text
from orchestrator.log import Log
from orchestrator.reports import Reports
from testbed.samples.messages import HERE, KEY
from testbed.samples.terms import keys_of

USED, OTHER = "0x" + "01" * 32, "0x" + "02" * 32


async def recorded(folder: Path, url: str, *reports: StepReport) -> tuple[StepReport, set[str]]:
    """Take the reports and return the stored report and the hashes of the files used up."""
    queries: Any = SimpleNamespace(run=1, keys_now=keys_of(KEY.address).at(0), chain=ChainState())
    database = await Database.open(url, "a test")
    try:
        documents = Log(HERE, database, queries, storage_url=f"file:{folder}")
        Reports(queries, database, documents)
        for report in reports:
            await documents.take("report", sign_text(KEY, HERE, "report", report))
        document = await database.read(lambda connection: connection.execute(select(steps.c.document)).scalar())
        names = await database.read(lambda connection: connection.execute(select(spent.c.file_hash)).scalars().all())
    finally:
        await database.close()
    assert document is not None
    return StepReport.model_validate_json(document), set(names)


async def test_a_trainer_that_starts_again_takes_no_score_and_no_refusal_back(
    tmp_path: Path, database_url: str
) -> None:
    """It repeats its newest reports from notes that are older than the scores."""
    noted = StepReport(run=1, step=3, metrics={"reward": 0.5}, batch=[USED], stages={"update": 2.0})
    scored = noted.model_copy(
        update={"metrics": {"reward": 0.5, "held_out/reward": 0.75}, "stages": {"update": 2.0, "evaluate": 1.0}}
    )
    refused = scored.model_copy(update={"dropped": [OTHER]})
    report, used = await recorded(tmp_path, database_url, noted, refused, noted)
    assert report == refused
    assert used == {USED, OTHER}


async def test_report_with_another_batch_replaces_the_earlier_one(tmp_path: Path, database_url: str) -> None:
    first = StepReport(run=1, step=3, metrics={"reward": 0.5, "held_out/reward": 0.75}, batch=[USED])
    again = StepReport(run=1, step=3, metrics={"reward": 0.25}, batch=[OTHER])
    report, used = await recorded(tmp_path, database_url, first, again)
    assert (report, used) == (again, {OTHER})


async def test_a_metric_may_have_any_name(tmp_path: Path, database_url: str) -> None:
    """PostgreSQL accepts no NUL in a text, so the stored document must not hold one."""
    odd = StepReport(run=1, step=3, metrics={"re\0ward": 0.5, "größe 奖": 1.5}, batch=[USED])
    assert await recorded(tmp_path, database_url, odd, odd) == (odd, {USED})
