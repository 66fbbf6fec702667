"""A run with private tests, from the sealed set to the reveal: who learns what, who is believed, who is punished.

Real are the chain, the contracts, the orchestrator's process, the validators with their journals and loops, the court,
and the trainer's intake. No model is run: a worker's rows are written by hand, and validators check everything of them
but the replay. The actors:

    v1, v2   honest validators; they grade, compare, accuse and vote
    v3       grades everything as solved, and says so under its signature
    v4       copies v1's commitment without grading, and judges as an honest one does
    w1       an honest worker, who solves some of its tasks
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from fastapi.routing import APIRoute

from muster.authoring.tasks.generated import make_task_set
from muster.authoring.tasks.sealing import seal_set
from muster.chain.masters_file import write_masters
from muster.clients.node_session import NodeSession
from muster.clients.run_data import RunTasks, make_rules
from muster.constants import MICRO
from muster.contracts import masters, registry
from muster.contracts.court import CaseOpened, CaseResolved, Outcome
from muster.contracts.registry import Status
from muster.contracts.run_terms import Series
from muster.errors import RefusedError
from muster.grading.grades import RowGrade
from muster.grading.masters import Masters
from muster.grading.sealing import task_key
from muster.protocol.eip712 import UNSIGNED, sign_message
from muster.protocol.hashes import hex_hash
from muster.protocol.kinds import reason_of
from muster.protocol.messages import Grade, ShownGrades
from muster.protocol.prompts import end_token
from muster.protocol.terms import WorkClass
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.reader import RolloutReader
from muster.rollouts.schema import Rollout
from muster.settings.schema import Settings
from muster.tasksets.taskset import TaskSet
from muster.verification.bundles import Inspection, ReplayedRow
from muster.verification.profiles import CPU_FP32
from muster.verification.rules import CommittedWork, Rules
from muster.verification.statistics import RowSums
from orchestrator.page.routes import pages
from testbed.chain.anvil import Anvil
from testbed.runs.run_fixture import Orchestrator, RunFixture
from testbed.samples.models import write_model
from testbed.samples.rollouts import drawn_row
from testbed.waiting import until
from trainer.accepted_work import AcceptedWork
from validator.context import RunMasters, RunVerificationContext
from validator.grade_check import GradeReport, grade_again
from validator.inspector import Inspector
from validator.service import OutOfServiceError, Validator

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


@dataclass
class StoryFacts:
    """What the story measured."""

    test_bytes_found: int = 0
    """Occurrences of a sealed reference, its key or the master in data that a worker can get before the reveal."""
    searched_bytes: int = 0
    control_found: int = 0
    """The same search, over the set before it was sealed."""
    refused: dict[str, int] = field(default_factory=dict)
    """HTTP status by name: of each non-validator that asked for the master, and of the copier."""
    graded: int = 0
    """Rows whose rewards reached the trainer."""
    solved: int = 0
    right_rewards: bool = False
    """Whether the rewards equal those that the tests give."""
    signal: bool = False
    """Whether the rewards of at least one group differ."""
    wrong_grader_punished: bool = False
    lock_lost: int = 0
    convicted: dict[str, str] = field(default_factory=dict)
    honest_free: bool = False
    report: GradeReport = field(default_factory=GradeReport)


class BelievingModel:
    """A model that believes every row instead of replaying it."""

    profile = CPU_FP32

    async def replay(self, step: int, rollouts: Sequence[Rollout]) -> list[ReplayedRow]:
        return [ReplayedRow(None, RowSums(len(row.completion_tokens), 0.0, 0.0, 0.0, 0.0)) for row in rollouts]


class WrongInspector(Inspector):
    """Grades everything as solved."""

    async def grade(self, commitment: CommittedWork, inspection: Inspection, master: bytes) -> Sequence[RowGrade]:
        grades = await super().grade(commitment, inspection, master)
        return [grade._replace(reward=MICRO, parts=(MICRO,)) for grade in grades]


class WrongValidator(Validator):
    inspector_class = WrongInspector


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

    # Shared by all nodes

    @asynccontextmanager
    async def context(self, name: str, *, validates: bool) -> AsyncIterator[RunVerificationContext]:
        """Yield a verification context. Before the reveal only a validator gets the masters."""
        async with (
            self.run.chain(name) as chain,
            self.run.client(self.orchestrator.url, name, timeout=60) as client,
            RolloutReader() as reader,
        ):
            terms = await chain.terms(self.run.run)
            tasks = await RunTasks.fetch(client, terms, self.folder / name)
            rules = make_rules(chain, self.run.run, terms, tasks, self.folder / "model")
            masters = RunMasters(chain, client, self.run.run, terms, self.run.key(name) if validates else None)
            model: Any = BelievingModel()
            with rules.scorers:
                yield RunVerificationContext(chain, client, reader, model, rules, tasks, masters)

    @asynccontextmanager
    async def validator(self, name: str, kind: type[Validator]) -> AsyncIterator[None]:
        """Run a validator's loops until left. Raises what ended them, unless it was its conviction."""
        section = {"state_dir": self.folder / name / "state", "stagger_seconds": 1}
        values = {"run": self.run.run, "validator": section, "chain": self.run.settings.model_dump()}
        settings = Settings.model_validate(values)
        async with self.context(name, validates=True) as context:
            session = NodeSession(context.chain, context.client)  # pyright: ignore[reportArgumentType]
            validator = kind(settings, session, context.reader, self.run.links(name)[0])
            await validator.check_registration()
            loops = asyncio.create_task(validator.serve_run(context), name=name)
            try:
                yield
                if loops.done() and not isinstance(loops.exception(), OutOfServiceError):
                    loops.result()
            finally:
                loops.cancel()
                await asyncio.gather(loops, return_exceptions=True)
                validator.journal.close()

    # The acts

    async def tell(self) -> StoryFacts:
        """Play the whole story and return what it measured."""
        await self.run.publish(0)
        await self.masters_are_refused()
        work, expected = await self.the_worker_commits()
        async with AsyncExitStack() as stack:
            for name, kind in {"v1": Validator, "v2": Validator, "v3": WrongValidator}.items():
                await stack.enter_async_context(self.validator(name, kind))
            await self.the_trainer_gets_rewards(work, expected)
            await self.a_copier_cannot_open(work)
            await self.nothing_leaks(work)
            await stack.enter_async_context(self.validator("v4", Validator))
            await self.the_wrong_grader_is_convicted()
        await self.a_stranger_checks_after_the_reveal()
        return self.facts

    async def masters_are_refused(self) -> None:
        """Only an active validator is given the master."""
        for who in ("w1", "trainer", "stranger"):
            async with self.run.client(self.orchestrator.url, who) as client:
                self.facts.refused[who] = await status_of(client.master(self.run.run, 1, self.run.key(who)))

    async def the_worker_commits(self) -> tuple[CommittedWork, dict[int, int]]:
        """Commit rows as drawn; return the work, and the reward that the tests give each row."""
        name, node = "w1", self.run.key("w1").address
        async with self.context(name, validates=False) as context:
            await context.tasks.ensure_all()  # whatever a worker could fetch lies in its folder
            rules = context.rules
            draw = rules.draw(await context.chain.draw_source(node), 0)
            rows, expected = [], dict[int, int]()
            for position in range(rules.terms.positions):
                group, sample = divmod(position, rules.terms.group_size)
                drawn = draw.groups[group]
                text = f"</think>{self.answer(rules, drawn.task) if sample < group else '0'}"
                tokens = rules.tokenizer(text, add_special_tokens=False)["input_ids"]
                reward = expected[position] = MICRO if sample < group else 0
                scores = {"task_reward": reward, "parts": np.array([reward], np.int64)}
                if rules.is_sealed(drawn.task):
                    scores = {"task_reward": 0, "parts": np.array([], np.int64)}
                rows.append(drawn_row(rules, draw, position, [*tokens, end_token(rules.tokenizer)], step=0, **scores))
            data, root = write_rollouts(rows), rollout_tree(rows).root
            await context.client.put_file(data, self.run.run, 0, root)
        await self.run.commit(name, 0, hex_hash(root))
        return CommittedWork(self.run.run, 0, node, 0, root, 0, 0), expected

    def answer(self, rules: Rules, slot: int) -> str:
        """Return the answer that a good worker finds by itself."""
        part, index = rules.task_set.locate(slot)
        plain = next(one for one in self.plain.document.parts if one.name == part.name)
        return self.plain.task_of(plain, index).reference["answer"]

    async def the_trainer_gets_rewards(self, work: CommittedWork, expected: dict[int, int]) -> None:
        """Poll as the trainer does, until the work is there with the rewards that validators agree on."""
        async with self.context("trainer", validates=False) as context:
            rules, talks = context.rules, (context.chain, context.client, context.reader)
            vocabulary = rules.model.vocabulary
            accepted = AcceptedWork(*talks, self.run.run, rules.terms, vocabulary, rules.task_set)

            async def arrived() -> bool:
                await accepted.poll(0, ())
                return bool(accepted.files)

            await until(arrived, "the trainer has graded work")
        [file] = accepted.files
        rewards = {row.position: row.task_reward for row in file.rollouts}
        self.facts.graded = len(json.loads(file.ref.grades))
        self.facts.solved = sum(reward == MICRO for reward in rewards.values())
        self.facts.right_rewards = rewards == expected
        self.facts.signal = any(len({row.task_reward for row in group}) > 1 for group in file.groups())

    async def a_copier_cannot_open(self, work: CommittedWork) -> None:
        """v4 repeats v1's commitment in its own verdict, and then shows what v1 has shown."""
        async with self.run.client(self.orchestrator.url, "v4") as client:
            verdicts, _ = await client.verdicts(self.run.run)
            theirs = next(one for one in verdicts if one.validator == self.run.key("v1").address)
            same = {"grades": theirs.grades, "inspected": theirs.inspected}
            copied = self.run.verdict("v4", "w1", 0, theirs.root, theirs.file_hash, **same)
            await client.post_verdict(copied)
            shown, _ = await client.grades(self.run.run)
            text = next(one for one in shown if one.statement.validator == theirs.validator)
            statement = Grade(**(text.statement.model_dump() | {"validator": copied.validator, "signature": UNSIGNED}))
            mine = ShownGrades(statement=sign_message(self.run.key("v4"), self.run.domain, statement), text=text.text)
            self.facts.refused["copier"] = await status_of(client.show_grades(mine))

    async def nothing_leaks(self, work: CommittedWork) -> None:
        """Search what a worker can get for the references, their keys, and the master."""
        needles, slots = self.needles(), range(self.plain.size)
        haystack = [*self.folder_of("w1"), *self.lines_of(self.folder / "w1"), *await self.answers_of(work)]
        haystack += self.folder_of("orchestrator/storage")
        self.facts.searched_bytes = sum(map(len, haystack))
        self.facts.test_bytes_found = count(needles, haystack)
        self.facts.control_found = count(needles, [self.plain.proof(slot).line for slot in slots])

    def needles(self) -> list[bytes]:
        """Return every secret as the bytes that it could lie about as."""
        master, secrets = self.masters.of(1), []
        for part in self.plain.document.parts:
            for task in self.plain.tasks_of(part):
                answer, key = str(task.reference["answer"]), task_key(master, part.name, task.id)
                secrets += [f'"{answer}"'.encode(), answer.encode(), key, key.hex().encode()]
        return [*secrets, master, master.hex().encode()]

    def folder_of(self, name: str) -> list[bytes]:
        return [path.read_bytes() for path in (self.folder / name).rglob("*") if path.is_file()]

    def lines_of(self, folder: Path) -> list[bytes]:
        """Return every task's line of a fetched set: on disk they are compressed."""
        [path] = folder.glob("tasks-*")
        task_set = TaskSet.open(path)
        parts = (*task_set.document.parts, *task_set.document.held_out)
        return [task.to_line() for part in parts for task in task_set.tasks_of(part) if task.sealed is not None]

    async def answers_of(self, work: CommittedWork) -> list[bytes]:
        """Return what every address of the orchestrator answers that can be read. Raises for one that is not known."""
        run = self.run.run
        described = json.loads(self.orchestrator.get(f"/v1/runs/{run}")[1])
        accepted = json.loads(self.orchestrator.get(f"/v1/runs/{run}/accepted")[1])
        files = [*described["files"].values(), *(one["file_hash"] for one in accepted)]
        values: dict[str, Sequence[object]] = {
            "run": [run],
            "address": [self.run.key(name).address for name in ("w1", "v1", "v2", "v3", "v4")],
            "node": [work.node],
            "index": [0],
            "root": [hex_hash(work.root)],
            "case": [0],
            "metric": ["reward"],
            "epoch": [1],
            "step": [0, 1],
            "day": ["2026-01-01"],
            "name": files,
            "file_hash": files,
        }
        queries = {"series": ["?name=reward"], "{file_hash}": [f"?position={position}" for position in range(16)]}
        found = []
        paths = json.loads(self.orchestrator.get("/openapi.json")[1])["paths"]
        reads = {path: methods["get"] for path, methods in paths.items() if "get" in methods}
        html = [route.path for route in pages.routes if isinstance(route, APIRoute) and "/static/" not in route.path]
        for path in [*reads, *html, "/metrics", "/openapi.json"]:
            endless = "text/event-stream" in reads.get(path, {}).get("responses", {}).get("200", {}).get("content", {})
            names = re.findall(r"{(\w+)}", path)
            assert set(names) <= set(values), f"no example of {path}: add one, so that it is searched"
            for chosen in itertools.product(*(values[name] for name in names)):
                for query in queries.get(path.rpartition("/")[2], [""]):
                    address = path.format(**dict(zip(names, chosen, strict=True))) + query
                    ask = self.orchestrator.first_event if endless else lambda url: self.orchestrator.get(url)[1]
                    found.append(ask(address))
        return found

    async def the_wrong_grader_is_convicted(self) -> None:
        address = self.run.key("v3").address
        async with self.run.chain("stranger") as chain:
            before = (await chain.call(registry.node(address))).lock

            async def jailed() -> bool:
                return (await chain.call(registry.node(address))).status == Status.JAILED

            await until(jailed, "the wrong grader is convicted")
            head = (await chain.head()).number
            events = await chain.events([CaseOpened, CaseResolved], chain.addresses.from_block, head)
            opened = {event.case_id: event for event in events if isinstance(event, CaseOpened)}
            for event in events:
                if isinstance(event, CaseResolved) and event.outcome == Outcome.GUILTY:
                    self.facts.convicted[opened[event.case_id].node] = reason_of(opened[event.case_id].kind)
            self.facts.lock_lost = before - (await chain.call(registry.node(address))).lock
            others = [self.run.key(name).address for name in ("v1", "v2", "v4", "w1")]
            self.facts.honest_free = all(node.status == Status.ACTIVE for node in await chain.nodes(others))
        self.facts.wrong_grader_punished = self.facts.convicted == {address: "wrong_grade"}

    async def a_stranger_checks_after_the_reveal(self) -> None:
        """Reveal the master, and reproduce every grade as a stranger without a key that counts."""
        async with self.run.chain("owner") as chain:
            await chain.send(masters.reveal_master(self.run.run, Series.GRADES, self.masters.of(1)))
        async with self.context("stranger", validates=False) as context:
            self.facts.report = await grade_again(context, self.run.run, {1})


async def status_of(asking: Awaitable[object]) -> int:
    """Return the status with which a request is answered."""
    try:
        await asking
    except RefusedError as error:
        return error.status
    return 200


def count(needles: Iterable[bytes], haystack: Sequence[bytes]) -> int:
    """Return how often any of the needles stands in the haystack."""
    whole = b"\n".join(haystack)
    return sum(whole.count(needle) for needle in set(needles))


def seal(folder: Path) -> tuple[TaskSet, TaskSet, Masters]:
    """Make a set and seal it; return it before and after, and the masters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run").mkdir()
    plain = make_task_set(3, levels=(12,), train=48, held_out=8, folder=folder / "plain")
    masters = Masters.make(1)
    write_masters(folder / "secret" / "masters.json", masters)
    sealed = seal_set(plain, [part.name for part in plain.document.parts], folder / "run" / "tasks", masters)
    return plain, sealed, masters


async def prepare(folder: Path, anvil: Anvil) -> PrivateStory:
    """Seal a set, and create the run whose terms name it."""
    plain, sealed, masters = await asyncio.to_thread(seal, folder)
    write_model(folder / "model")
    private = {"grade_tip": masters.tip, "grade_epochs": 1, "grade_epoch_steps": 1}
    terms = {**TERMS, **private, "task_count": sealed.size, "task_root": sealed.root}
    run = await RunFixture.build_on(anvil, folder, seed="private", workers=("w1",), **terms)
    run.mine_every(1, anvil)
    files = {"run_folder": folder / "run", "masters": folder / "secret" / "masters.json"}
    return PrivateStory(folder, run, Orchestrator(run, folder / "orchestrator", **files), plain, masters)


def play(folder: Path) -> StoryFacts:
    """Play the story in a folder, on a separate chain, with a block a second once every node has joined."""
    with Anvil() as anvil:
        story = asyncio.run(prepare(folder, anvil))
        with story.orchestrator:
            return asyncio.run(story.tell())
