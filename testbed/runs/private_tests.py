"""A run with private tests, from the sealed set to the last master: who learns what, and what a stranger finds.

Real are the chain, the contracts, the processes of orchestrator, trainer and origin, and the owner's and a stranger's
commands. A worker's rows are written by hand; the validators that are called accept them unseen. Epochs have a step:

    step 0   w1 commits work of the first epoch; the trainer grades it, trains on it, publishes step 1
    step 1   everything that a member can read is searched for the tests; w1 commits work of the second epoch
    step 2   the trainer ends: it shows the masters, and a stranger grades everything again
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi.routing import APIRoute

from explorer.routes import pages
from muster.authoring.tasks.generated import make_task_set
from muster.chain.client import Chain
from muster.chain.keys import write_secret
from muster.chain.masters_file import read_masters
from muster.clients.orchestrator import OrchestratorClient
from muster.clients.run_data import RunTasks, make_rules
from muster.constants import MICRO, SAMPLE_BLOCKS
from muster.contracts import runs
from muster.errors import RefusedError
from muster.protocol.hashes import hash_bytes, hex_hash
from muster.protocol.messages import SignedText, StepDocument
from muster.protocol.prompts import end_token
from muster.protocol.terms import WorkClass
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.settings.toml import to_toml
from muster.swarm.plan import PROFILE
from muster.tasksets.grades import RowGrade, parse_grades
from muster.tasksets.masters import Masters
from muster.tasksets.sealing import task_key
from muster.tasksets.taskset import TaskSet
from muster.verification.rules import Rules
from testbed.chain.anvil import Anvil
from testbed.machine import Machine
from testbed.processes import Service, ended
from testbed.runs.run_fixture import VALIDATORS, Explorer, Orchestrator, RunFixture, RunService
from testbed.runs.trainer_process import ONE, train
from testbed.runs.world import naming
from testbed.samples.models import write_model
from testbed.samples.rollouts import drawn_row
from testbed.waiting import until
from testbed.weights.servers import Server

EPOCHS: Final = 2
MASTERS: Final = "masters.secret"
LIMIT: Final = 40
TERMS: Final[dict[str, Any]] = {
    "group_size": 4,
    "groups_per_commitment": 4,
    "max_completion_tokens": LIMIT,
    "commit_phase": 600,
    "reveal_phase": 600,
    "accepts_required": 2,
    "classes": (WorkClass(10_000, (8, 12)),),
}
TRAINER: Final[dict[str, Any]] = {
    "batch_groups": 1,
    "max_files": 1,
    "max_steps": EPOCHS,
    "mismatch_bound": 100,
    "eval_every": 0,
}


@dataclass
class StoryFacts:
    """What the story measured."""

    test_bytes_found: int = 0
    """Occurrences of a sealed reference, its key or a master in data that others than owner and trainer can get while
    the epochs last."""
    searched_bytes: int = 0
    control_found: int = 0
    """The same search, over the set before it was sealed."""
    solved: list[int] = field(default_factory=list)
    """Rows that the tests call solved, by step."""
    trained: list[float] = field(default_factory=list)
    """The mean reward of each batch, as the trainer reports it."""
    masters_before: int = 0
    """Masters that are shown before the run ends."""
    report: dict[str, Any] = field(default_factory=dict)
    """What `muster grades check` prints for a stranger."""


@dataclass
class PrivateStory:
    """One run with private tests on a separate chain."""

    folder: Path
    run: RunFixture
    orchestrator: Orchestrator
    plain: TaskSet
    """The set before it was sealed."""
    masters: Masters
    facts: StoryFacts = field(default_factory=StoryFacts)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[tuple[Chain, OrchestratorClient, Rules]]:
        """Yield what w1 has of the run."""
        async with self.run.chain("w1") as chain, self.run.client(self.orchestrator.url, "w1") as client:
            terms = await chain.terms(self.run.run)
            tasks = await RunTasks.fetch(client, terms, self.folder / "w1")
            await tasks.ensure_all()  # whatever a worker could fetch lies in its folder
            rules = make_rules(chain, self.run.run, terms, tasks, self.folder / "model")
            with rules.scorers:
                yield chain, client, rules

    async def train(self) -> None:
        """Train until the last master is shown."""
        options = {**TRAINER, "grade_masters": self.folder / MASTERS}
        trainer = await asyncio.to_thread(train, self.run, self.orchestrator, self.folder / "model", ONE, **options)
        with ended(trainer):
            await self.published(0, trainer)
            await self.work_is_trained_on(0, trainer)
            self.facts.masters_before = sum([await self.is_shown(epoch) for epoch in (1, 2)])
            await self.nothing_leaks()
            await self.work_is_trained_on(1, trainer)
            await until(lambda: self.is_shown(EPOCHS), "the last master is shown")

    async def published(self, step: int, trainer: Service) -> None:
        """Wait until a step is on chain and reported."""

        async def there() -> bool:
            assert trainer.is_running, trainer.said
            try:
                async with self.run.client(self.orchestrator.url, None) as client:
                    return bool((await client.step_report(self.run.run, step)).run)
            except RefusedError:
                return False

        await until(there, lambda: f"step {step} is reported: {trainer.said[-4000:]}")

    async def is_shown(self, epoch: int) -> bool:
        async with self.run.client(self.orchestrator.url, None) as client:
            try:
                return hash_bytes((await client.shown_master(self.run.run, epoch)).master) == self.masters.of(epoch)
            except RefusedError:
                return False

    async def work_is_trained_on(self, step: int, trainer: Service) -> None:
        """Commit work of a step, let it be accepted, and wait for the step that is trained on it."""
        expected = await self.the_worker_commits(step)
        await self.published(step + 1, trainer)
        async with self.run.client(self.orchestrator.url, None) as client:
            said = await client.step_report(self.run.run, step + 1)
            grades = await self.grades_of(client, step + 1)
        assert {one.position: one.reward for one in grades} == expected
        self.facts.solved.append(sum(reward > 0 for reward in expected.values()))
        self.facts.trained.append(said.metrics["reward"] or 0.0)

    async def grades_of(self, client: OrchestratorClient, step: int) -> tuple[RowGrade, ...]:
        """Return the grades of the one file that a step was trained on."""
        page = await client.log(self.run.run, kind="step")
        texts = [SignedText.model_validate_json(one.text).text for one in page.entries]
        [said] = [one for one in map(StepDocument.model_validate_json, texts) if one.step == step]
        [file] = said.files
        assert file.grades is not None
        return parse_grades(await client.grades_text(self.run.run, file.grades))

    async def the_worker_commits(self, step: int) -> Mapping[int, int]:
        """Commit rows as drawn and have them accepted; return the reward that the tests give each row."""
        node, index = self.run.key("w1").address, step
        async with self.worker() as (chain, client, rules):
            rules = rules.at(step)
            draw = rules.draw(await chain.draw_source(node), index)
            rows, expected = [], dict[int, int]()
            nothing = {"task_reward": 0, "parts": np.array([], np.int64)}
            for position in range(rules.terms.positions):
                group, sample = divmod(position, rules.terms.group_size)
                right = sample < group
                expected[position] = MICRO * right
                text = f"</think>{self.answer(rules, draw.groups[group].task) if right else '0'}"
                tokens = rules.tokenizer(text, add_special_tokens=False)["input_ids"]
                tokens = [*tokens, end_token(rules.tokenizer)]
                rows.append(drawn_row(rules, draw, position, tokens, step=step, **nothing))
            data, root = write_rollouts(rows), hex_hash(rollout_tree(rows).root)
            name = (await client.put_file(data, self.run.run, index, root)).file_hash
        await self.run.commit("w1", index, root, step)
        await asyncio.gather(*(self.accepts(one, index, step, root, name) for one in VALIDATORS))
        return expected

    async def accepts(self, validator: str, index: int, step: int, root: str, name: str) -> None:
        """Accept work, if this validator is called to it."""
        node = self.run.key("w1").address
        async with self.run.client(self.orchestrator.url, validator) as client, self.run.chain(validator) as chain:

            async def called() -> bool | None:
                try:
                    return (await client.ask_call(self.run.run, node, index, root)).may_look
                except RefusedError:  # the block that draws is not there yet
                    return None

            if await until(lambda: _known(called), "somebody is called"):
                [event] = [one for one in await chain.all_events(runs.WorkCommitted) if one.index == index]
                drawn_by = hex_hash(await chain.block_hash(event.at.block + SAMPLE_BLOCKS))
                verdict = self.run.verdict(validator, "w1", index, root, name, step=step, drawn_by=drawn_by)
                await client.post_verdict(verdict)

    def answer(self, rules: Rules, slot: int) -> str:
        """Return the answer that a good worker finds by itself."""
        part, index = rules.task_set.locate(slot)
        [plain] = self.plain.document.parts
        return self.plain.task_of(plain, EPOCHS * index + part.sealed - 1).reference["answer"]

    async def nothing_leaks(self) -> None:
        """Search what others than owner and trainer can get for the references, their keys, and the masters."""
        needles, slots = self.needles(), range(self.plain.size)
        haystack = [*self.folder_of("w1"), *self.lines_of(self.folder / "w1")]
        with Explorer(self.run, self.folder / "explorer", self.orchestrator.url) as explorer:
            haystack += [*self.answers(self.orchestrator), *self.answers(explorer)]
        haystack += [*self.folder_of("orchestrator"), *self.folder_of("explorer")]
        self.facts.searched_bytes = sum(map(len, haystack))
        self.facts.test_bytes_found = count(needles, haystack)
        self.facts.control_found = count(needles, [self.plain.proof(slot).line for slot in slots])

    def needles(self) -> list[bytes]:
        """Return every secret as the bytes that it could lie about as."""
        [part], secrets = self.plain.document.parts, list[bytes]()
        for place, task in enumerate(self.plain.tasks_of(part)):
            epoch = place % EPOCHS + 1
            answer, key = (
                str(task.reference["answer"]),
                task_key(self.masters.of(epoch), f"{part.name}-{epoch}", task.id),
            )
            secrets += [f'"{answer}"'.encode(), answer.encode(), key, key.hex().encode()]
        masters = [self.masters.of(epoch) for epoch in range(1, EPOCHS + 1)]
        return [*secrets, *masters, *(master.hex().encode() for master in masters)]

    def folder_of(self, name: str) -> list[bytes]:
        return [path.read_bytes() for path in (self.folder / name).rglob("*") if path.is_file()]

    def lines_of(self, folder: Path) -> list[bytes]:
        """Return every task's line of a fetched set: on disk they are compressed."""
        [path] = folder.glob("tasks-*")
        task_set = TaskSet.open(path)
        parts = (*task_set.document.parts, *task_set.document.held_out)
        return [task.to_line() for part in parts for task in task_set.tasks_of(part) if task.sealed is not None]

    def answers(self, service: RunService) -> list[bytes]:
        """Return what every address of a service answers that can be read. Raises for one that is not known."""
        run = self.run.run
        described = json.loads(self.orchestrator.get(f"/v1/runs/{run}")[1])
        [first] = json.loads(self.orchestrator.get(f"/v1/runs/{run}/log?kind=step")[1])["entries"][1:2]
        trained = json.loads(json.loads(first["text"])["text"])["files"]
        [given] = json.loads(self.orchestrator.get(f"/v1/runs/{run}/log?kind=verdict")[1])["entries"][:1]
        work = json.loads(given["text"])
        files = [*described["files"].values(), *(file[name] for file in trained for name in ("file_hash", "grades"))]
        values: dict[str, Sequence[object]] = {
            "run": [run],
            "address": [self.run.key(name).address for name in ("w1", *VALIDATORS)],
            "node": [work["node"]],
            "index": [0],
            "root": [work["root"]],
            "case": [0],
            "metric": ["reward"],
            "epoch": [1, 2],
            "hour": [0],
            "step": [0, 1],
            "day": ["2026-01-01"],
            "name": files,
            "file_hash": files,
        }
        queries = {"series": ["?name=reward"], "{file_hash}": [f"?position={position}" for position in range(16)]}
        found = []
        paths = json.loads(service.get("/openapi.json")[1])["paths"]
        reads = [path for path, methods in paths.items() if "get" in methods]
        html = [route.path for route in pages.routes if isinstance(route, APIRoute) and "/static/" not in route.path]
        for path in [*reads, *html, "/metrics", "/openapi.json"]:
            names = re.findall(r"{(\w+)}", path)
            assert set(names) <= set(values), f"no example of {path}: add one, so that it is searched"
            for chosen in itertools.product(*(values[name] for name in names)):
                for query in queries.get(path.rpartition("/")[2], [""]):
                    address = path.format(**dict(zip(names, chosen, strict=True))) + query
                    found.append(service.get(address)[1])
        return found


async def _known(called: Any) -> tuple[bool] | None:
    said = await called()
    return None if said is None else (said,)


def count(needles: Iterable[bytes], haystack: Sequence[bytes]) -> int:
    """Return how often any of the needles stands in the haystack."""
    whole = b"\n".join(haystack)
    return sum(whole.count(needle) for needle in set(needles))


def seal(machine: Machine) -> tuple[TaskSet, dict[str, Any]]:
    """Make a set and seal it; return it, and the terms that the command prints."""
    plain = make_task_set(3, levels=(12,), train=48, held_out=8, folder=machine.folder / "plain")
    [part] = plain.document.parts
    (machine.folder / "run").mkdir()
    sealing = ("--part", part.name, "--out", "run/tasks", "--masters", MASTERS, "--epochs", EPOCHS, "--epoch-steps", 1)
    made = machine.json("tasks", "seal", "plain", *sealing)
    return plain, {name: made[name] for name in ("grade_tip", "grade_epochs", "grade_epoch_steps")}


def play(folder: Path) -> StoryFacts:
    """Play the story in a folder, on a separate chain, with a block a second once every node has joined."""
    with Anvil() as anvil:
        # 1. The owner seals a set, and creates the run whose terms name it.
        machine, model = Machine(folder, anvil.url), write_model(folder / "model")
        plain, private = seal(machine)
        private["grade_tip"] = hash_bytes(private["grade_tip"])
        terms = {**TERMS, **private, **naming(model, TaskSet.open(folder / "run" / "tasks"), PROFILE)}
        run = asyncio.run(RunFixture.build_on(anvil, folder, seed="private", workers=("w1",), **terms))
        write_secret(folder / "trainer.key", run.secret("trainer"))
        run.mine_every(1, anvil)

        # 2. The run, and a stranger who comes later.
        with Server(folder / "origin", run=run.run, role="origin", dir=folder / "published") as origin:
            offered = {"run_folder": folder / "run", "shardcast.relays": [origin.url]}
            with Orchestrator(run, folder / "orchestrator", **offered) as orchestrator:
                story = PrivateStory(folder, run, orchestrator, plain, read_masters(folder / MASTERS))
                asyncio.run(story.train())
                machine.settings(to_toml({**run.settings_file, "orchestrator.url": orchestrator.url}))
                story.facts.report = machine.json("grades", "check")
        return story.facts
