"""One browser for all tests that look at the page, and two synthetic runs with a page of every kind.

Without a browser the tests are skipped; with MUSTER_BROWSER=required, as .ci/run sets it, they fail.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from testbed.big_run.process import BigRun, big_run
from testbed.big_run.shape import Shape
from testbed.browser import find_browser, open_browser
from testbed.samples.texts import HOSTILE, WRITTEN

SMALL = Shape(steps=200, nodes=120, commitments=2_000, step_seconds=2_400, at_work=30)
"""Five days with everything that a run has: claims, convictions, lost cases, an open one."""
SMALLER = Shape(steps=120, nodes=60, commitments=1_200, step_seconds=900, at_work=20)
THINKS = [(text, f"{text}</think>{text}") for text in WRITTEN]
"""Prompts and completions; the last ones are megabytes."""
METRIC = "rewards/<img/src=x/onerror=document.title='taken'>"
RELAY = "http://relay.example/\u202e<script>document.title='taken'</script>"
ABOUT = {"title": "Sums", "about": "Trains a small model to add.\nFor everybody."}


@pytest.fixture(scope="session", autouse=True)
def _required() -> None:
    if find_browser() is None and os.environ.get("MUSTER_BROWSER") != "required":
        pytest.skip("no browser is installed: scripts/setup --tests")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(_required: None) -> AsyncIterator[Browser]:
    """The browser. Tests that use it run in the session's event loop."""
    async with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def big(_required: None, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A synthetic run, small, behind a running explorer; what strangers wrote in it is tame."""
    with big_run(tmp_path_factory.mktemp("big"), SMALL, **ABOUT) as made:
        made.start()
        yield made


@pytest.fixture(scope="session")
def hostile(_required: None, built_contracts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    """A synthetic run in which everything that can be is hostile."""
    settings = {"title": HOSTILE[0], "about": "\n".join(HOSTILE)}
    with big_run(tmp_path_factory.mktemp("hostile"), SMALLER, texts=THINKS, **settings) as made:
        _spoil(made.explorer.database)
        made.start()
        yield made


def _spoil(path: Path) -> None:
    """Write hostile texts over what strangers wrote."""
    database = sqlite3.connect(path)
    with database:
        texts = [text[:40] for text in HOSTILE]
        for table, column in (("node_names", "name"), ("machines", "device")):
            nodes = [row[0] for row in database.execute(f"SELECT node FROM {table} ORDER BY node")]
            pairs = [(texts[at % len(texts)], node) for at, node in enumerate(nodes)]
            database.executemany(f"UPDATE {table} SET {column} = ? WHERE node = ?", pairs)
        database.execute("UPDATE metric_buckets SET name = ? WHERE name = 'entropy'", (METRIC,))
        for step, document in database.execute("SELECT step, document FROM steps").fetchall():
            report = json.loads(document)
            report["metrics"][METRIC] = report["metrics"].pop("entropy")
            database.execute("UPDATE steps SET document = ? WHERE step = ?", (json.dumps(report), step))
        data = json.dumps({"relay": RELAY, "operator": "0x" + "11" * 20})
        database.execute("UPDATE events SET kind = 'relay misbehaved', data = ? WHERE id % 50 = 0", (data,))
    database.close()
