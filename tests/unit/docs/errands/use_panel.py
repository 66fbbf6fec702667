"""Render the overview of a run with two cases, its state, and the page of words."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from explorer.boards import Boards
from explorer.live import read_live
from explorer.overview import RunIdentity
from explorer.site import Site
from explorer.source import PageSource
from muster.ledger.attribution import Attribution
from muster.ledger.database import Database
from muster.ledger.run_facts import ChainState
from testbed.runs.recorded_run import TERMS, TRAINER, VALIDATORS, ToldRun, html_of


async def main(folder: Path) -> dict[str, Any]:
    # 1. A run with two cases, and what answers for it.
    database = await Database.open(f"sqlite:///{folder}/explorer.db", "an errand")
    run = ToldRun(database, folder)
    run.queries.chain = ChainState(now=0, min_validators=1, free_escrow=0)
    await run.begin()
    await run.accuse(VALIDATORS[0], 0)
    await run.accuse(VALIDATORS[1], 1)
    follower: Any = SimpleNamespace(head_number=30, head_time=0, stale_since=None)
    reader: Any = SimpleNamespace(stale_since=None)
    current: Any = SimpleNamespace(relays=[])
    known = RunIdentity(1, 31337, "Sums", "Adds numbers.", TRAINER, {}, TERMS)
    source = PageSource(database, run.queries, Attribution(31337, TRAINER, 1, TERMS, None))
    boards = Boards(known, source, follower, reader, current)
    site = Site(known, "http://run.example", lambda: 0)
    service: Any = SimpleNamespace(page=SimpleNamespace(boards=boards, site=site))

    # 2. What people and their browsers get.
    page, words = await html_of(service, "/"), await html_of(service, "/explain")
    sheet = site.assets.response(Request({"type": "http", "headers": []}), "page.css")
    live = await read_live(boards)
    document = (await boards.overview()).model_dump()
    await database.close()
    assert sheet is not None
    style = bytes(sheet.body).decode()
    return {"page": page, "words": words, "style": style, "live": live.shown, "document": document}


print(json.dumps(asyncio.run(main(Path(sys.argv[1]))), default=str))
