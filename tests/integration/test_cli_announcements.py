"""What an operator types to name a node, and a trainer or owner to publish a score: real chain, real orchestrator."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.clients.evaluation import EvalRequest, ModelAnswer, TaskResult
from muster.clients.run_data import task_set_path
from muster.console import sampling
from muster.console.evaluate.weights import fetch_run_step
from muster.console.session import Options, Session
from muster.ledger.tables import entries
from muster.models.files import model_hash
from muster.protocol.announcements import BenchmarkScore, NodeName
from muster.protocol.eip712 import recover_signer
from muster.settings.toml import to_toml
from testbed.chain.contracts import Deployment
from testbed.machine import Machine
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.runs.world import World, published

HINT = "choose up to 40 letters, digits, single spaces and . _ - + # ', with a letter or digit in it"


def documents(orchestrator: Orchestrator, kind: str) -> list[str]:
    """The documents of a kind that count, by their keys."""
    rows = asyncio.run(orchestrator.rows(entries, "kind", "key", "text"))
    return [text for _, text in sorted({key: text for one, key, text in rows if one == kind}.items())]


def machine_of(run_fixture: RunFixture, settings: dict[str, object], folder: Path) -> Machine:
    """A machine with settings for a run, and the keys of all who are in the tests."""
    machine = Machine(folder, run_fixture.settings.rpc_url)
    machine.settings(to_toml(settings | {"chain.timeout_seconds": 10}))
    for name in ("owner", "trainer", "stranger", "w1", "operator of w1", "operator of w2"):
        machine.secret(f"{name.replace(' ', '-')}.key", run_fixture.secret(name))
    return machine


# muster node name


@pytest.fixture(scope="module")
def run_fixture(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> RunFixture:
    folder = tmp_path_factory.mktemp("names")
    return asyncio.run(RunFixture.build(folder, deployment.settings, seed="cli names", workers=("w1", "w2")))


@pytest.fixture
def orchestrator(run_fixture: RunFixture, tmp_path: Path) -> Iterator[Orchestrator]:
    with Orchestrator(run_fixture, tmp_path / "orchestrator") as running:
        yield running


def test_an_operator_names_a_node_and_takes_the_name_back(
    run_fixture: RunFixture, orchestrator: Orchestrator, tmp_path: Path
) -> None:
    machine, node = (
        machine_of(
            run_fixture, run_fixture.settings_file | {"orchestrator.url": orchestrator.url}, tmp_path / "machine"
        ),
        run_fixture.key("w1").address,
    )
    words = ("node", "name", "Zoë's box #1", "--node", node, "--operator", "./operator-of-w1.key")
    expected = {"run": run_fixture.run, "node": node, "name": "Zoë's box #1"}

    dry = machine.type(*words, "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "nothing was sent\n")
    assert dry.stderr.splitlines() == [
        f"Name a node of run {run_fixture.run}",
        f"  node         {node}",
        "  name         Zoë's box #1",
        "  seen by      everybody who opens the run's page",
    ]
    assert machine.json(*words, "--dry-run") == {"dry_run": True, **expected}
    unasked = machine.json(*words, status=2)
    assert (unasked["error"], unasked["hint"]) == (
        "this needs a confirmation, and there is no terminal to ask on",
        "add --yes",
    )
    assert documents(orchestrator, "name") == []

    decomposed = ("node", "name", " Zoe\u0308's box #1 ", *words[3:])
    assert machine.json(*decomposed, "--yes") == expected
    [document] = documents(orchestrator, "name")
    kept = NodeName.model_validate_json(document)
    assert (kept.node, kept.name) == (node, "Zoë's box #1")
    assert recover_signer(run_fixture.domain, kept) == run_fixture.key("operator of w1").address

    while int(time.time()) <= kept.named:
        time.sleep(0.05)
    again = machine.json("node", "name", "another", *words[3:], "--yes", status=3)
    assert again["error"] == f"Conflict: {node} was named less than a minute ago"
    assert again["hint"].startswith("try again in ")
    orchestrator.stop()
    asyncio.run(orchestrator.rewrite(update(entries).values(received=0)))  # long ago
    orchestrator.start()
    own = ("node", "name", "", "--operator", "./operator-of-w1.key", "--yes")
    removed = machine.json(*own, "--node", "./w1.key")
    assert removed == {**expected, "name": ""}
    [document] = documents(orchestrator, "name")
    assert NodeName.model_validate_json(document).name == ""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x" * 41, f"the name '{'x' * 41}' has 41 characters; at most 40"),
        ("a\u202eb", "the name 'a\\u202eb' may have letters, digits, spaces and . _ - + # ' only"),
        ("\x1b[2J", "the name '\\x1b[2J' may have letters, digits, spaces and . _ - + # ' only"),
        ("a  b", "the name 'a  b' begins or ends with a space, or has two in a row"),
        ("...", "the name '...' has no letter and no digit"),
        ("0xabc", "the name '0xabc' looks like an address"),
    ],
)
def test_invalid_names_are_refused_before_anything_is_sent(machine: Machine, name: str, problem: str) -> None:
    refused = machine.json("node", "name", name, "--operator", "./operator.key", "--yes", status=2)
    assert (refused["error"], refused["hint"]) == (problem, HINT)


def test_the_nodes_of_others_cannot_be_named(
    run_fixture: RunFixture, orchestrator: Orchestrator, tmp_path: Path
) -> None:
    machine, node = (
        machine_of(
            run_fixture, run_fixture.settings_file | {"orchestrator.url": orchestrator.url}, tmp_path / "machine"
        ),
        run_fixture.key("w1").address,
    )
    operator, other = run_fixture.key("operator of w1").address, run_fixture.key("operator of w2").address
    words = ("node", "name", "mine", "--yes", "--operator")
    refused = machine.json(*words, "./operator-of-w2.key", "--node", node, status=2)
    assert refused["error"] == f"{node} was registered by {operator}, and this is the key of {other}"
    assert refused["hint"] == "name the operator's wallet: --operator WALLET"
    stranger = run_fixture.key("stranger").address
    refused = machine.json(*words, "./operator-of-w1.key", "--node", stranger, status=78)
    assert refused["error"] == f"{stranger} has joined no run"
    refused = machine.type(*words, "./operator-of-w1.key", "--node", node, MUSTER_RUN=str(run_fixture.run + 1))
    assert (refused.returncode, refused.stderr) == (
        2,
        f"error: {node} is a node of run {run_fixture.run}, and the settings are for run {run_fixture.run + 1}\n"
        f"  next: set run = {run_fixture.run}, and orchestrator.url to that run's\n",
    )
    assert documents(orchestrator, "name") == []


# muster eval --publish


class Oracle:
    """Stands for the engine: every second item is answered right. Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[EvalRequest] = []

    async def __call__(self, request: EvalRequest) -> AsyncGenerator[TaskResult]:
        self.asked.append(request)
        for number in range(request.first, request.count):
            text = f"#### {number}" if number % 2 else "7 apples"
            yield TaskResult(number, 0, 1, 5, shown=(ModelAnswer(text, 5, True),) * request.sampling.samples)


def questions(path: Path, count: int) -> Path:
    """A file in GSM8K's schema with so many items; the answer of each is its number from 0."""
    rows = (
        {"question": f"What is number {number} of the list?", "answer": f"#### {number}"} for number in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    found = Oracle()
    monkeypatch.setattr(sampling, "ask", found)
    return found


@pytest.fixture(scope="module")
def world(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with published(deployment, tmp_path_factory.mktemp("run"), "published score") as running:
        yield running


async def test_a_step_to_serve_of_a_run_without_tools_comes_without_its_tasks(world: World, tmp_path: Path) -> None:
    """Whoever evaluates gets them all."""
    run, session = world.run_fixture.run, Session(Options(config=world.run_fixture.folder / "muster.toml"))
    served = await fetch_run_step(session, run, 0, tmp_path / "served", whole=False)
    assert (served.number, served.task_set) == (0, None)
    assert model_hash(served.path) == model_hash(world.run_fixture.checkpoint(0))
    assert not task_set_path(served.terms, tmp_path / "served").exists()
    measured = await fetch_run_step(session, run, 0, tmp_path / "measured", whole=True)
    assert measured.task_set is not None
    assert (measured.task_set.root, measured.task_set.missing()) == (served.terms.task_root, [])


def test_a_score_of_a_step_is_published(world: World, oracle: Oracle, tmp_path: Path) -> None:
    machine, run = machine_of(world.run_fixture, world.settings_file, tmp_path / "machine"), world.run_fixture.run
    size = BENCHMARKS["gsm8k"].size
    whole, part = questions(machine.folder / "gsm8k.jsonl", size), questions(machine.folder / "part.jsonl", size - 1)
    trainer, owner = (world.run_fixture.key(name).address for name in ("trainer", "owner"))
    words = ("eval", "--run", run, "gsm8k", "--publish", "--yes")

    def scored() -> list[BenchmarkScore]:
        found = documents(world.orchestrator, "score")
        return [BenchmarkScore.model_validate_json(document) for document in found]

    # 1. Refused before anything is asked: another's key, no step, no whole benchmark, a dry run.
    stranger = world.run_fixture.key("stranger").address
    refused = machine.json(*words, "--data", whole, "--operator", "./stranger.key", status=2)
    assert refused["error"] == f"{stranger} is neither the trainer of run {run}, {trainer}, nor its owner, {owner}"
    assert refused["hint"] == "name the trainer's or the owner's wallet: --operator WALLET"
    by = ("--operator", "./trainer.key")
    refused = machine.json(*words, *by, "--data", whole, "--step", 2, status=3)
    assert refused["error"] == f"run {run} has not published step 2"
    refused = machine.json(*words, *by, "--data", part, status=3)
    assert refused["error"] == f"part.jsonl has {size - 1} rows of gsm8k, and the whole benchmark has {size}"
    refused = machine.json(*words, *by, "--data", whole, "--data", part, status=3)
    assert refused["error"].endswith(f"has {2 * size - 1} rows of gsm8k, and the whole benchmark has {size}")
    dry = machine.type(*words, *by, "--data", whole, "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "nothing was evaluated or sent\n")
    assert dry.stderr.splitlines() == [
        "Evaluate, and publish the score",
        "  benchmark    gsm8k",
        f"  run          {run}",
        "  step         1",
        f"  signed by    {trainer}, the run's trainer",
        "  seen by      everybody who opens the run's page",
    ]
    assert (oracle.asked, scored()) == ([], [])

    # 2. The trainer publishes the newest step, the owner another one.
    result = machine.json(*words, *by, "--data", whole)
    right = size // 2
    assert result["published"] == {"step": 1, "score": right / size, "by": trainer, "at": world.orchestrator.url}
    [score] = scored()
    assert (score.step, score.benchmark, score.score, score.tasks, score.samples) == (
        (1, "gsm8k", right / size, size, 1)
    )
    [figure] = [one for one in result["figures"] if (one["rule"], one["measure"]) == ("strict", "pass@1")]
    assert (score.low, score.high) == (figure["low"], figure["high"])
    assert recover_signer(world.run_fixture.domain, score) == trainer
    shown = machine.type(*words, "--operator", "./owner.key", "--data", whole, "--step", 0)
    assert shown.returncode == 0, shown.stderr
    assert f"published as the score of step 0, by {owner}\n" in shown.stdout
    assert [one.step for one in scored()] == [0, 1]
    assert [request.count for request in oracle.asked] == [size, size]

    # 3. What could not be sent is sent by the same command, without asking again.
    world.orchestrator.stop()
    lost = machine.json(*words, *by, "--data", whole, "--step", 1, status=5)
    assert lost["error"].startswith(f"POST {world.orchestrator.url}/v1/runs/{run}/scores: ")
    world.orchestrator.start()
    again = machine.json(*words, *by, "--data", whole, "--step", 1)
    assert again["published"]["score"] == right / size
    assert oracle.asked[-1].first == size, "every item was answered before"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("--run", 1, "gsm8k", "--limit", 5),
            "--publish is for a whole benchmark as it is published, and not with --limit",
        ),
        (
            ("--run", 1, "gsm8k", "--prompt", "{question}", "--temperature", "0.5", "--max-tokens", 9),
            "--publish is for a whole benchmark as it is published, and not with --prompt, --temperature, --max-tokens",
        ),
        (
            ("--run", 1, "livecodebench", "--since", "2025-01-01"),
            "--publish is for a whole benchmark as it is published, and not with --since",
        ),
        (("--run", 1, "math500", "--k", "4"), "--publish publishes pass@1, and --k leaves it out"),
        (("model", "gsm8k"), "--publish is for a step of a run"),
        (("model", "tasks"), "--publish is for a published benchmark"),
        (("--run", 1), "--publish is for a published benchmark"),
    ],
)
def test_publish_refuses_partial_or_local_evaluations(machine: Machine, words: tuple, error: str) -> None:
    refused = machine.json("eval", *words, "--publish", "--yes", "--operator", "./owner.key", status=2)
    assert refused["error"] == error


def test_key_options_without_publish_are_refused(machine: Machine) -> None:
    refused = machine.json("eval", "model", "gsm8k", "--operator", "./owner.key", "--dry-run", status=2)
    assert (refused["error"], refused["hint"]) == (
        "--operator, --dry-run is for --publish",
        "leave it out, or add --publish",
    )
