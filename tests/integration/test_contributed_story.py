"""A stranger's environment, from an empty folder to the leaderboard. Real chain, real processes, the real sandbox.

The author makes, checks, packs and submits it by command; the owner of a run looks at it, admits it, and mixes it with
tasks of their own into the task set of the next run. Its workers are scored by it, and what they drew of it is counted
as the author's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from muster.clients.run_data import RunTasks
from muster.constants import MICRO
from muster.environments.manifest import Score
from muster.environments.scoring import Scorers
from muster.protocol.hashes import content_hash
from muster.protocol.requests import sign_request
from muster.tasksets.contribution_pack import read_pack
from muster.tasksets.taskset import TaskSet
from testbed.machine import Machine
from testbed.runs.run_fixture import Explorer, Orchestrator, RunFixture, some_hash
from testbed.samples.contributions import folder as environment_folder
from testbed.servers.s3 import Endpoint
from testbed.waiting import BOUND, until

WORKERS = ("w1", "w2")
COMMITMENTS = 3


@dataclass
class Place:
    """What the story happens in: a run with an orchestrator, the author's machine and the owner's."""

    run_fixture: RunFixture
    orchestrator: Orchestrator
    author: Machine
    owner: Machine

    @property
    def where(self) -> tuple[str, ...]:
        return ("--url", self.orchestrator.url, "--run", str(self.run_fixture.run))

    def owners(self) -> tuple[str, ...]:
        return ("--operator", str(self.owner.folder / "owner.key"), "--yes", *self.where)


@pytest.fixture(scope="module")
def place(
    deployment: Any,
    database_kind: str,
    new_database_url: Callable[[], str],
    s3: Endpoint | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("contributed")
    seed = f"contributed {database_kind}"
    run_fixture = asyncio.run(RunFixture.build(folder, deployment.settings, seed=seed, workers=()))
    run_fixture.s3 = s3
    machines = [Machine(folder / name, deployment.settings.rpc_url) for name in ("author", "owner")]
    machines[1].secret("owner.key", run_fixture.secret("owner"))
    with Orchestrator(run_fixture, folder / "orchestrator", database_url=new_database_url()) as orchestrator:
        yield Place(run_fixture, orchestrator, *machines)


def test_from_an_empty_folder_to_the_leaderboard(place: Place, tmp_path: Path) -> None:
    author, owner = place.author, place.owner

    # 1. The author makes an environment, learns what it lacks, and packs it.
    made = author.json("env", "new", "letters")
    assert made == {"path": "letters"}
    lacking = author.json("env", "check", "letters", status=3)
    assert (lacking["error"], "SPDX" in lacking["hint"]) == ("letters/environment.toml has no licence", True)
    about = author.folder / "letters" / "environment.toml"
    text = about.read_text().replace('licence = ""', 'licence = "MIT"')
    about.write_text(text.replace('credit = ""', 'credit = "Ada"'))
    report = author.json("env", "check", "letters")
    assert (report["faults"], report["tasks"]) == (0, 3)
    assert {row["check"]: row["result"] for row in report["checks"]} == {
        **dict.fromkeys(("licence", "oracle", "empty", "fuel", "purity", "duplicates"), "ok"),
        **dict.fromkeys(("tokens", "benchmarks"), "skipped"),
    }
    address = author.json("wallet", "new", "ada", "--password-file", author.password)["address"]
    key = ("--wallet", "ada", "--password-file", author.password)
    packed = author.json("env", "pack", "letters", "-o", "letters.env", *key)
    assert packed["author"] == address

    # 2. Submitting twice stores it once. Only the author may submit it.
    submitted = author.json("env", "submit", "letters.env", *place.where, *key)
    assert (submitted["hash"], submitted["new"]) == (packed["hash"], True)
    assert author.json("env", "submit", "letters.env", *place.where, *key)["new"] is False
    author.json("wallet", "new", "eve", "--password-file", author.password)
    other = environment_folder(author.folder / "others", scorer=(about.parent / "scorer.py").read_text())
    author.json("env", "pack", other, "-o", "others.env", *key)
    thief = ("--wallet", "eve", "--password-file", author.password)
    stolen = author.json("env", "submit", "others.env", *place.where, *thief, status=3)
    assert f"the environment is signed by {address}" in stolen["error"]

    # 3. The owner sees it with the author's signature, fetches and checks it, and admits it. The author cannot.
    (listed,) = owner.json("env", "list", *place.where)
    assert (listed["hash"], listed["state"], listed["author"]) == (packed["hash"], "waiting", address)
    owner.json("env", "fetch", packed["hash"], "-o", "fetched.env", *place.where)
    data = (owner.folder / "fetched.env").read_bytes()
    assert data == (author.folder / "letters.env").read_bytes()
    assert read_pack(data).claim.author == address
    alone = ("--operator", "ada", "--password-file", author.password, "--yes", *place.where)
    refused = author.json("env", "admit", packed["hash"], *alone, status=3)
    assert "is not the owner of run" in refused["error"]
    assert owner.json("env", "admit", packed["hash"], *place.owners())["state"] == "admitted"
    (listed,) = owner.json("env", "list", *place.where)
    assert (listed["state"], listed["reason"]) == ("admitted", "")

    # 4. It becomes part of the next task set, one slot in three.
    owner.json("tasks", "make", "sums", "--family", "sums", "--levels", "9", "--train", "40", "--held-out", "4")
    mixed = owner.json("tasks", "mix", "mixed", "sums:2", "fetched.env:1")
    assert [(row["part"], row["weight"], row["author"]) for row in mixed["parts"] if row["half"] == "train"] == [
        ("sums", 2, ""),
        ("letters", 1, address),
    ]
    assert owner.json("tasks", "check", "mixed")["faults"] == 0

    # 5. A run on it: what its workers draw is scored by the author's source and counted as the author's.
    asyncio.run(the_next_run(place, TaskSet.open(owner.folder / "mixed"), address, tmp_path))


async def the_next_run(place: Place, task_set: TaskSet, author: str, folder: Path) -> None:
    run_fixture = await RunFixture.build(
        folder / "run",
        place.run_fixture.settings,
        seed=f"{place.run_fixture.seed} next",
        workers=WORKERS,
        task_count=task_set.size,
        task_root=task_set.root,
        accepts_required=1,
    )
    await run_fixture.publish(0)
    with Orchestrator(run_fixture, folder / "orchestrator", run_folder=task_set.folder) as orchestrator:
        # 1. A node fetches document, component and the shards that it drew, and scores them.
        async with run_fixture.client(orchestrator.url, None) as client, run_fixture.chain("stranger") as chain:
            terms = await chain.terms(run_fixture.run)
            tasks = await RunTasks.fetch(client, terms, folder / "node")
            drawn: Counter[str] = Counter()
            for worker in WORKERS:
                for index in range(COMMITMENTS):
                    draw = await chain.draw(run_fixture.run, run_fixture.key(worker).address, index)
                    await tasks.ensure_slots((group.task for group in draw.groups), 1)
                    for group in draw.groups:
                        drawn[tasks.task_set.task(group.task).author] += terms.group_size
            slot = next(slot for slot in range(10) if tasks.task_set.part(slot).name == "letters")
            await asyncio.to_thread(score_as_a_worker_does, tasks, slot, author)

        # 2. The first worker's rows are accepted, the second worker's are not.
        for worker in WORKERS:
            await work(run_fixture, orchestrator, worker, accepted=worker == "w1")

        # 3. The leaderboard and the tasks themselves name the author.
        with Explorer(run_fixture, folder / "explorer", orchestrator.url) as explorer:

            def counted() -> dict[str, Any] | None:
                lines = {line["author"]: line for line in explorer.summary()["authors"]}
                found = [sum(line[kind] for line in lines.values()) for kind in ("rollouts", "accepted")]
                expected = [len(WORKERS) * COMMITMENTS * terms.positions, COMMITMENTS * terms.positions]
                return lines if found == expected else None

            lines = await until(counted, "everything is counted")
        others = drawn.total() - drawn[author]
        assert {name: line["rollouts"] for name, line in lines.items()} == {author: drawn[author], "": others}
        assert sum(line["accepted"] for line in lines.values()) == COMMITMENTS * terms.positions
        assert (lines[author]["parts"], lines[author]["tasks"]) == (["letters"], 3)


def score_as_a_worker_does(tasks: RunTasks, slot: int, author: str) -> None:
    """By the manifest of the run's terms, in the component that was fetched."""
    manifest, task = tasks.task_set.manifest(slot), tasks.task_set.task(slot)
    assert (manifest.name, task.author) == ("authored", author)
    with Scorers(tasks.components) as scorers:
        right = scorers.score(manifest, task, f"So many.</think>{task.reference['answer']}")
        wrong = scorers.score(manifest, task, "So many.</think>a hundred")
        again = scorers.score(manifest, task, f"So many.</think>{task.reference['answer']}")
    assert manifest.parts == ("brief", "correct")
    assert (right.parts, right.reward(manifest)) == ((MICRO, MICRO), MICRO)
    assert wrong == Score((0, 0), wrong.fuel, "not the full score")
    assert right == again


async def work(run_fixture: RunFixture, orchestrator: Orchestrator, worker: str, *, accepted: bool) -> None:
    for index in range(COMMITMENTS):
        data, root = f"{worker} {index}".encode() * 10, some_hash(f"{worker} root {index}")
        async with run_fixture.client(orchestrator.url, worker) as client:
            await client.put_file(data, run_fixture.run, index, root)
        await run_fixture.commit(worker, index, root)
        if accepted:
            (name, *_) = await run_fixture.called(orchestrator.url, worker, index)
            async with run_fixture.client(orchestrator.url, name) as client:
                await client.post_verdict(run_fixture.verdict(name, worker, index, root, content_hash(data)))


# What strangers send


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"", 422, "this is no environment"),
        (b"muster.env.v1\n{}\n", 422, "not the environment's header: name: Field required"),
        (b"muster.env.v1\n" + b"x" * (9 << 20), 413, "the body is larger than 8388608 bytes"),
    ],
)
def test_invalid_environment_is_refused_and_service_stays_ready(
    place: Place, body: bytes, status: int, detail: str
) -> None:
    path = f"/v1/runs/{place.run_fixture.run}/environments"
    url = place.orchestrator.url + path
    stranger = place.run_fixture.key("stranger")
    headers = sign_request(stranger, place.run_fixture.domain, "POST", url, content_hash(body), now=time.time())
    with httpx2.Client(trust_env=False, timeout=BOUND) as client:
        reply = client.post(url, content=body, headers=headers)
        assert (reply.status_code, detail in reply.json()["detail"]) == (status, True), reply.text
        assert client.post(url, content=body).status_code == 401
        assert client.get(place.orchestrator.url + "/readyz").status_code == 200


def test_a_lost_database_is_filled_from_storage(place: Place, new_database_url: Callable[[], str]) -> None:
    """With the owner's decisions, and both signatures."""
    path = f"/v1/runs/{place.run_fixture.run}/log?kind="
    kinds = ("environment", "decision")
    before = [place.orchestrator.get(path + kind) for kind in kinds]
    assert [(status, body.count(b'"place"')) for status, body in before] == [(200, 1)] * 2
    listed = place.owner.json("env", "list", *place.where)
    assert [row["state"] for row in listed] == ["admitted"]
    place.orchestrator.stop()
    place.orchestrator.change({"orchestrator.database_url": new_database_url()})
    place.orchestrator.start()
    assert [place.orchestrator.get(path + kind) for kind in kinds] == before
    assert place.owner.json("env", "list", *place.where) == listed
