"""No read grows with the history of a run: every GET route, over a synthetic run, within a bound for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sqlalchemy import Connection

import explorer.app
import explorer.service
import orchestrator.app
import orchestrator.service
from explorer.routes import pages
from muster.chain.keys import load_signer
from muster.ledger.database import Database
from muster.ledger.tables import metadata
from muster.settings.sources import load_settings
from testbed.big_run.process import BigRun, big_run
from testbed.big_run.shape import Shape
from testbed.sql_costs import CountedDatabase, Reads, reads_of
from testbed.waiting import BOUND, until

SMALL = Shape(steps=2_000, nodes=200, commitments=20_000, at_work=40, moot=20_000)
FULL = Shape(moot=100_000)
STATEMENTS = 60
"""Of one answer."""
HUNDREDS, OF_A_NODE = 1_500, 4
"""Steps of SQLite's machine for one answer, in hundreds, and besides for each node of the run."""
MEMBERS = ("meta", "nodes", "node_names", "machines", "counts")
"""Tables that do not grow with a run's history."""
PARTIAL = [
    index.name
    for table in metadata.tables.values()
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None
]
SCAN = re.compile(
    rf"SCAN ({'|'.join(sorted(metadata.tables.keys() - set(MEMBERS)))})\b(?!.* INDEX ({'|'.join(map(str, PARTIAL))})\b)"
)


@pytest.fixture(scope="module", params=[SMALL, pytest.param(FULL, marks=pytest.mark.slow)], ids=["small", "full"])
def big(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigRun]:
    with big_run(tmp_path_factory.mktemp("bounds"), request.param) as made:
        yield made


def paths_of(big: BigRun, routes: list[str]) -> list[str]:
    """Return the paths of routes, several of those whose cost depends on what is asked for."""
    members, work = big.rows.members, big.rows.work
    convicted = members.workers[int(big.rows.convicted()[0])]
    worker, validator = busiest(big), members.validators[0]
    newest = big.shape.steps
    values: dict[str, list[Any]] = {
        "run": [big.run_fixture.run],
        "node": [worker],
        "address": [worker, convicted, validator, members.operators[worker], members.trainer],
        "index": [int(np.bincount(work.worker).max()) - 1],
        "root": [work.root[-1]],
        "name": big.written[-1:],
        "file_hash": big.written[-1:],
        "step": [0, newest],
        "number": [1, newest],
        "case": [1],
        "day": ["2026-01-01"],
        "metric": ["reward"],
        "epoch": [1],
        "hour": [1],
        "metric:path": ["reward"],
        "version": ["1"],
        "path:path": ["page.css"],
    }
    return [path for route in routes for path in _filled(route, values)]


def asked_of_explorer(big: BigRun) -> list[str]:
    """Return further paths with their queries."""
    run, newest, worker = f"/v1/runs/{big.run_fixture.run}", big.shape.steps, busiest(big)
    return [
        *(f"{run}/{name}?before={before}" for name in ("cases", "feed", "checkpoints") for before in (1, 100)),
        *(f"{run}/rollouts?{query}" for query in (f"node={worker}", f"before={newest // 2}", f"step={newest // 2}")),
        *(f"{run}/workers?offset={offset}&order=name&search=a" for offset in (0, 1 << 30)),
        *(f"{run}/events?after={after}" for after in (0, 1 << 50)),
        f"{run}/series?name=reward&first=0&points=2000",
        f"{run}/nodes/{worker}/commitments?limit=200",
        f"{run}/feed?kind=joined",
        f"/events?kind=joined&before={1 << 50}",
        f"/rollouts?step={newest // 2}",
        f"/nodes/{worker}?before=200",
        "/leaderboard?list=validators",
        "/leaderboard?list=others",
    ]


def busiest(big: BigRun) -> str:
    """Return the worker with the most commitments."""
    return big.rows.members.workers[int(np.bincount(big.rows.work.worker).argmax())]


def _filled(route: str, values: dict[str, list[Any]]) -> list[str]:
    found = re.search("{([^}]+)}", route)
    if found is None:
        return [route]
    return [path for value in values[found[1]] for path in _filled(route.replace(found[0], str(value), 1), values)]


def scans(connection: Connection, reads: Reads) -> list[str]:
    """Return what statements without a limit scan of tables that grow with the run."""
    found = []
    for statement, parameters in reads.statements:
        if " LIMIT " in statement:
            continue
        for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all():
            scan = SCAN.match(row.detail)
            if scan:
                found.append(f"{row.detail}: {statement}")
    return found


async def test_no_read_of_the_orchestrator_grows_with_the_run(big: BigRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrator.service, "Database", CountedDatabase)
    settings = load_settings(big.orchestrator.config)
    signer = load_signer(settings.keys, settings.chain.chain_id)
    async with orchestrator.service.serving(settings, signer) as service:
        app = orchestrator.app.create_app(service)
        routes = documents_of(app)
        assert len(routes) > 20
        assert await unbounded(big, app, service.database, paths_of(big, routes)) == []


async def test_no_read_of_the_explorer_grows_with_the_run(big: BigRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer.service, "Database", CountedDatabase)
    with big.orchestrator:
        async with explorer.service.serving(load_settings(big.explorer.config)) as service:
            app = explorer.app.create_app(service)
            routes = documents_of(app) + [route.path for route in pages.routes if isinstance(route, APIRoute)]
            assert len(routes) > 40
            asked = [*paths_of(big, routes), *asked_of_explorer(big)]
            await until(lambda: not service.unready(), "chain and log are read")
            assert await unbounded(big, app, service.database, asked) == []


def documents_of(app: FastAPI) -> list[str]:
    """Return the paths of all GET routes that answer with documents."""
    return ["/metrics", *(path for path, methods in app.openapi()["paths"].items() if "get" in methods)]


async def unbounded(big: BigRun, app: FastAPI, database: Database, paths: list[str]) -> list[str]:
    """Ask for each path; return what reads more than may be."""
    found, most = list[str](), HUNDREDS + OF_A_NODE * big.shape.nodes
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url=big.orchestrator.url, timeout=BOUND) as client:
        for path in paths:
            reads = await reads_of(lambda path=path: expect_answer(client, path))
            if len(reads.statements) > STATEMENTS or reads.hundreds > most:
                found.append(f"{path}: {len(reads.statements)} statements, {reads.hundreds} hundred steps")
            scanned = await database.read(lambda connection, reads=reads: scans(connection, reads))
            found += [f"{path}: {scan}" for scan in scanned]
    return found


async def expect_answer(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code in (200, 404, 422, 425), path
