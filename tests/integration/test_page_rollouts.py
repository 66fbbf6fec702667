"""Rollouts, steps and pictures over HTTP, from a real file with hostile completions. Real chain, real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import psutil
import pytest

from explorer.rows import MAX_TEXT
from muster.authoring.tasks.generated import make_task_set
from muster.models.files import tokenizer_hash
from muster.protocol.draws import DrawSource, draw_of
from muster.protocol.hashes import content_hash
from muster.protocol.messages import StepReport
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture
from testbed.samples.texts import HOSTILE, LONG, ids_of, save_tokenizer, text_row, text_tokenizer
from testbed.servers.s3 import Endpoint
from testbed.waiting import BOUND, until


@pytest.fixture(scope="module")
def run_fixture(
    deployment: Any, database_kind: str, s3: Endpoint | None, tmp_path_factory: pytest.TempPathFactory
) -> RunFixture:
    """A run whose folder has its tokenizer and its tasks."""
    folder = tmp_path_factory.mktemp("rollouts")
    save_tokenizer(folder / "run" / "model")
    tasks = make_task_set(1, train=16, held_out=4, folder=folder / "run" / "tasks")
    run_fixture = asyncio.run(
        RunFixture.build(
            folder,
            deployment.settings,
            seed=f"rollouts {database_kind}",
            workers=("w1",),
            tokenizer_hash=tokenizer_hash(folder / "run" / "model"),
            task_root=tasks.root,
            task_count=tasks.size,
            max_completion_tokens=2048,
            max_prompt_tokens=256,
            groups_per_commitment=6,
        )
    )
    run_fixture.s3 = s3
    asyncio.run(run_fixture.publish(0))
    return run_fixture


@pytest.fixture(scope="module")
def page(
    run_fixture: RunFixture, new_database_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    options = {"database_url": new_database_url(), "run_folder": run_fixture.folder / "run"}
    with (
        Orchestrator(run_fixture, folder / "orchestrator", **options) as orchestrator,
        Explorer(run_fixture, folder / "explorer", orchestrator.url) as explorer,
    ):
        yield Page(run_fixture, orchestrator, explorer)
    assert '"level": "error"' not in orchestrator.json_log.read_text() + explorer.json_log.read_text()


def hostile_rows(run_fixture: RunFixture) -> list[Rollout]:
    """The rows of a commitment: hostile texts, invalid token ids, and a line of a megabyte."""
    invalid = [*ids_of("before"), len(text_tokenizer()) + 7, -1, *ids_of("after")]
    completions = [ids_of(text) for text in HOSTILE]
    completions += [invalid, ids_of(LONG * 257), ids_of("plain"), ids_of("\n" * 300)]
    return [
        text_row(i, completion_tokens=tokens, stop=False, run=run_fixture.run, step=0, group=i // 2, sample=i % 2)
        for i, tokens in enumerate(completions)
    ]


class Page:
    """An orchestrator, an explorer, and a worker whose files are accepted."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator, explorer: Explorer) -> None:
        self.run_fixture, self.orchestrator, self.explorer = run_fixture, orchestrator, explorer
        self.node = run_fixture.key("w1").address

    async def work(self, index: int, rows: list[Rollout], *, accept: bool = True, step: int = 0) -> str:
        data, root = write_rollouts(rows), "0x" + rollout_tree(rows).root.hex()
        url = self.orchestrator.url
        async with self.run_fixture.client(url, "w1") as client:
            await client.put_file(data, self.run_fixture.run, index, root)
        await self.run_fixture.commit("w1", index, root, step)
        name = content_hash(data)
        called = await self.run_fixture.called(url, "w1", index) if accept else []
        for validator in called[:2]:
            async with self.run_fixture.client(url, validator) as client:
                await client.post_verdict(self.run_fixture.verdict(validator, "w1", index, root, name, step=step))
        return name

    async def get(self, path: str, **query: object) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=BOUND) as client:
            url = f"{self.explorer.url}/v1/runs/{self.explorer.run}{path}"
            return await client.get(url, params={k: str(v) for k, v in query.items()})

    async def document(self, path: str, **query: object) -> Any:
        response = await self.get(path, **query)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()


async def test_rollouts_steps_and_pictures_over_http(page: Page) -> None:
    rows = hostile_rows(page.run_fixture)
    name = await page.work(0, rows)
    pending = await page.work(1, [text_row(i, run=page.run_fixture.run) for i in range(12)], accept=False)

    async def is_listed() -> bool:
        return [file["file_hash"] for file in (await page.document("/rollouts"))["files"]] == [name]

    await until(is_listed, "the accepted file is listed, and no other")
    await _rows_are_text(page, name, rows)
    await _draws_name_the_tasks(page)
    await _only_accepted_files(page, name, pending)
    await _a_step_has_its_batch(page, name)
    await _pictures_for_other_sites(page)
    await _nothing_runs_after_the_end(page, name)


async def _rows_are_text(page: Page, name: str, rows: list[Rollout]) -> None:
    for position, text in enumerate(HOSTILE):
        response = await page.get(f"/rollouts/{name}", position=position)
        assert response.headers["content-type"] == "application/json"
        found = response.json()
        thinking, answer = found["thinking"], found["answer"]
        assert (thinking["text"], answer["text"]) == (text, ""), "the thinking has no end tag"
        assert b"\x1b" not in response.content, "JSON writes control characters as escapes"
        assert (found["node"], found["index"], found["policy_step"], found["rows"]) == (page.node, 0, 0, len(rows))
    invalid, megabyte, plain, lines = [
        (await page.document(f"/rollouts/{name}", position=position))["thinking"] for position in range(8, 12)
    ]
    assert invalid == {"text": "before\ufffd\ufffdafter", "whole": 13}
    assert megabyte == {"text": "A" * MAX_TEXT, "whole": 257 * len(LONG)}
    assert (plain["text"], lines["text"]) == ("plain", "\n" * 300)
    beyond = await page.get(f"/rollouts/{name}", position=12)
    assert (beyond.status_code, beyond.json()["detail"]) == (404, "a file of this run has 12 rows")


async def _draws_name_the_tasks(page: Page) -> None:
    """A commitment's page draws what workers and validators draw."""
    run_fixture = page.run_fixture
    async with run_fixture.chain("stranger") as chain:
        terms, entropy = await chain.terms(run_fixture.run), (await chain.checkpoint(run_fixture.run, 0)).entropy
    drawn = draw_of(
        DrawSource(page.node, entropy, 0), 0, terms,
        chain_id=run_fixture.book.chain_id, runs=run_fixture.book.runs, run=run_fixture.run,
    )  # fmt: skip
    found = await page.document(f"/nodes/{page.node}/commitments/0")
    assert [(group["task"], group["budget"]) for group in found["groups"]] == [
        (group.task, group.budget) for group in drawn.groups
    ]
    assert {group["part"] for group in found["groups"]} == {"sort"}
    assert found["why"] == "Accepted: 2 validators inspected it and found nothing wrong."
    assert (await page.get(f"/nodes/{page.node}/commitments/9")).status_code == 404


async def _only_accepted_files(page: Page, name: str, pending: str) -> None:
    refused = await page.get(f"/rollouts/{pending}")
    assert (refused.status_code, refused.json()["title"]) == (404, "Not found")
    assert (await page.get("/rollouts/0x" + "00" * 32)).status_code == 404
    compared = await page.document("/rollouts/compared")
    assert (compared["before"], compared["after"]) == (None, None)
    assert compared["why"] == "no two steps have accepted work yet"


async def _a_step_has_its_batch(page: Page, name: str) -> None:
    metrics = {"reward": 0.5, "weights/bytes": 1000.0, "weights/delta_bytes": 10.0}
    async with page.run_fixture.client(page.orchestrator.url, "trainer") as trainer:
        await trainer.post_step(StepReport(run=page.run_fixture.run, step=1, metrics=metrics, batch=[name]))
    await page.run_fixture.publish(1)

    async def is_published() -> bool:
        response = await page.get("/checkpoints/1")
        found = response.json() if response.status_code == 200 else {}
        return found.get("block") is not None and bool(found["batch"])

    await until(is_published, "the step is on chain and reported")
    found = await page.document("/checkpoints/1")
    assert [(file["file_hash"], file["node"], file["index"]) for file in found["batch"]] == [(name, page.node, 0)]
    assert (found["step"]["bytes"], found["step"]["delta_bytes"], found["step"]["files"]) == (1000, 10, 1)
    assert found["relays"] == ["http://127.0.0.1:9"]
    newest = (await page.document("/checkpoints"))["steps"]
    assert [row["step"] for row in newest] == [1, 0]
    assert (newest[1]["commitments"], newest[1]["cost"]) == (2, str(2 * 2 * 10**18))
    line = (await page.document(f"/nodes/{page.node}/commitments"))["commitments"][-1]
    assert (line["used_in"], line["status"]) == (1, "accepted")


async def _pictures_for_other_sites(page: Page) -> None:
    for path in ("/charts/reward.svg", "/charts/held_out/reward.svg"):
        response = await page.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("image/svg+xml")
        assert response.headers["cache-control"] == "public, max-age=30"
        assert response.headers["cross-origin-resource-policy"] == "cross-origin"
        assert response.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
        assert "script" not in response.text
    chart = await page.get("/charts/reward.svg")
    assert f"run {page.run_fixture.run}" in chart.text
    assert (await page.get("/charts/" + "x" * 81 + ".svg")).status_code == 422
    earnings = await page.document("/earnings")
    assert (earnings["run"], earnings["workers"]) == (page.run_fixture.run, 0)


async def _nothing_runs_after_the_end(page: Page, name: str) -> None:
    """The parser of a file ends with it. The next explorer shows the same."""
    before = await page.document(f"/rollouts/{name}")
    await until(lambda: not psutil.Process(page.explorer.pid).children(recursive=True), "no process is left")
    page.explorer.kill()
    await asyncio.to_thread(page.explorer.start)
    assert await page.document(f"/rollouts/{name}") == before
