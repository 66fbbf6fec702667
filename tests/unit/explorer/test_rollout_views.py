"""Rollouts on the page: only those of accepted commitments, with the drawn task, as plain text."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.files import RunFiles
from explorer.reading import RowReader
from explorer.rollouts import RolloutFiles, Rollouts, accepted_files
from explorer.rows import ShownText
from muster.contracts.registry import Role
from muster.environments.registry import default_manifest
from muster.environments.task import ask
from muster.errors import NotFoundError, RefusedError
from muster.ledger.database import Database
from muster.protocol.draws import DrawSource, draw_of
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import FileLimits, write_rollouts
from muster.rollouts.schema import Rollout
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.document import TaskSetDocument, TaskSource
from muster.tasksets.taskset import SHARDS_NAME, TaskSet
from testbed.runs.recorded_run import CHAIN, RUN, RUNS, SampleRun, address, hash_of
from testbed.samples.texts import HOSTILE, save_tokenizer, text_row

LIMITS = FileLimits(8, 1 << 24)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    """One part with thinking and one without; few tasks, so that files share some."""
    source = TaskSource("MIT", "here")
    thinks = default_manifest("sorting")
    plain = type(thinks)(thinks.name, thinks.version, {**thinks.options, "thinking": "none"}, thinks.weights)
    parts = [
        NewPart(name, manifest, [ask(f"{name} {i}", answer=f"{name} is {i}") for i in range(3)], 1, [source])
        for name, manifest in (("thinks", thinks), ("plain", plain))
    ]
    return write_task_set(tmp_path_factory.mktemp("tasks") / "set", parts)


@pytest.fixture(scope="module")
def document(tasks: TaskSet) -> TaskSetDocument:
    return tasks.document


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Served(dict[str, bytes]):
    """The files of an orchestrator, as its client."""

    async def get_file(self, name: str, _most: int) -> bytes:
        if name not in self:
            raise NotFoundError(f"no file {name} is kept here", status=404, title="Not found")
        return self[name]

    def put(self, data: bytes) -> str:
        self[content_hash(data)] = data
        return content_hash(data)


class Files:
    """A run whose accepted files have rows."""

    def __init__(self, run: SampleRun, served: Served, fetched: RunFiles, tokenizer: Path) -> None:
        self.run, self.served, self.fetched = run, served, fetched
        self.reader = RowReader(fetched, LIMITS, tokenizer)
        self.rollouts = self.new_rollouts()

    def new_rollouts(self, clock: Callable[[], float] = time.monotonic) -> Rollouts:
        return Rollouts(self.run.source, self.reader, clock)

    def tasks(self, name: str, index: int) -> list[int]:
        source = DrawSource(address(name), hash_bytes(hash_of("entropy 0")), 0)
        drawn = draw_of(source, index, self.run.terms, chain_id=CHAIN, runs=RUNS, run=RUN)
        return [group.task for group in drawn.groups]

    async def work(
        self, name: str, step: int, change: Callable[[int], dict] | None = None, *, accept: bool = True
    ) -> str:
        """Commit to a file of rows, upload it, have it accepted, and return its hash."""
        index = self.run.made.get(name, -1) + 1
        tasks = self.tasks(name, index)
        rows = [
            text_row(i, f"step {step}", f"{name} {index}.{i}", task=tasks[i // 2], **(change(i) if change else {}))
            for i in range(8)
        ]
        return await self.keep(name, step, rows, accept=accept)

    async def keep(self, name: str, step: int, rows: list[Rollout], *, accept: bool = True) -> str:
        file_hash = self.served.put(write_rollouts(rows))
        self.run.roots[name, self.run.made.get(name, -1) + 1] = hex_hash(rollout_tree(rows).root)
        index = await self.run.commit(name, step=step)
        await self.run.upload(name, index, file_hash)
        if accept:
            await self.run.accept(name, index)
        return file_hash

    async def listed(self, **how: object) -> RolloutFiles:
        given: dict = {"step": None, "node": None, "before": None, "limit": 50} | how
        return await self.run.database.read(lambda connection: accepted_files(connection, self.run.source, **given))


@pytest.fixture
async def files(database_url: str, tmp_path: Path, document: TaskSetDocument, tokenizer: Path) -> AsyncIterator[Files]:
    database = await Database.open(database_url, "a test")
    run = SampleRun(database, tmp_path, document)
    for worker in ("wanda", "willi"):
        await run.join(worker)
    for validator in ("vera", "viktor"):
        await run.join(validator, Role.VALIDATOR)
    await run.publish(0, 1, 2, 3)
    await run.name("wanda", "Wanda")
    served: Any = Served()
    fetched = RunFiles(served, tmp_path / "explorer")
    yield Files(run, served, fetched, tokenizer)
    await database.close()


# One row


async def test_row_has_its_draw_text_and_score(files: Files, document: TaskSetDocument) -> None:
    half = {"task_reward": 500_000, "parts": np.array([500_000], np.int64)}
    name = await files.work("wanda", 1, lambda position: half if position == 3 else {})
    found = await files.rollouts.row(name, 3)
    task = files.tasks("wanda", 0)[1]
    part = document.parts[document.locate(task)[0]]
    assert (found.file_hash, found.node, found.name, found.index) == (name, address("wanda"), "Wanda", 0)
    assert (found.policy_step, found.position, found.rows, found.group, found.sample) == (1, 3, 8, 1, 1)
    assert (found.task, found.part, found.environment) == (task, part.name, "sorting")
    assert found.prompt.text == "<|user|>What is 6 times 7?<|assistant|><think>"
    if part.name == "thinks":
        assert (found.thinking and found.thinking.text, found.answer.text) == ("step 1", "wanda 0.3")
    else:
        assert (found.thinking, found.answer.text) == (None, "step 1</think>wanda 0.3")
    assert (found.graded, found.reward, found.length_reward) == (True, 0.5, -0.0125)
    (only,) = part.environment.parts
    assert [score.model_dump() for score in found.parts] == [{"name": only, "value": 0.5, "weight": 1.0}]
    assert (found.budget, found.finish) == (16, "stop")


async def test_the_reference_of_a_public_task_is_shown_once_storage_has_it(files: Files, tasks: TaskSet) -> None:
    name = await files.work("wanda", 1)
    assert (await files.rollouts.row(name, 3)).reference is None
    for shard in (tasks.folder / SHARDS_NAME).iterdir():
        files.served.put(shard.read_bytes())
    found = await files.rollouts.row(name, 3)
    part, index = tasks.locate(found.task)
    assert found.reference == ShownText(text=f"{part.name} is {index}", whole=len(f"{part.name} is {index}"))
    assert found.special == ["<|assistant|>", "<|user|>"]


async def test_each_part_of_the_task_set_says_whether_it_thinks(files: Files, document: TaskSetDocument) -> None:
    names = [await files.work("wanda", 1) for _ in range(3)]
    shown = {}
    for index, name in enumerate(names):
        for group, task in enumerate(files.tasks("wanda", index)):
            row = await files.rollouts.row(name, 2 * group)
            shown.setdefault(document.parts[document.locate(task)[0]].name, set()).add(row.thinking is None)
    assert shown == {"thinks": {False}, "plain": {True}}


async def test_row_of_private_tests_has_no_score(files: Files) -> None:
    sealed = {"task_reward": 0, "parts": np.zeros(0, np.int64), "fuel": 0}
    found = await files.rollouts.row(await files.work("wanda", 1, lambda _: sealed), 0)
    assert (found.graded, found.reward, found.parts) == (False, 0.0, [])


async def test_hostile_text_is_kept_as_it_is(files: Files) -> None:
    assert len(HOSTILE) <= 8
    texts = [*HOSTILE, *["fine"] * (8 - len(HOSTILE))]
    name = await files.keep("wanda", 1, [text_row(i, "", text) for i, text in enumerate(texts)])
    for position, text in enumerate(texts):
        assert (await files.rollouts.row(name, position)).answer.text.endswith(text)


async def test_only_accepted_files_are_read(files: Files) -> None:
    pending = await files.work("wanda", 1, accept=False)
    await files.work("willi", 1)
    rejected = await files.work("wanda", 1, accept=False)
    await files.run.judge("vera", "wanda", 1, "wrong_reward", step=1)
    for name in (pending, rejected, hash_of("unknown")):
        with pytest.raises(RefusedError, match="is not the file of an accepted commitment") as caught:
            await files.rollouts.row(name, 0)
        assert caught.value.status == 404
    await files.run.accept("wanda", 0)
    assert (await files.rollouts.row(pending, 0)).index == 0
    with pytest.raises(RefusedError, match="a file of this run has 8 rows"):
        await files.rollouts.row(pending, 8)


async def test_a_file_that_is_gone_is_not_found(files: Files) -> None:
    index = await files.run.commit("wanda", step=1)
    gone = await files.run.upload("wanda", index)
    await files.run.accept("wanda", index)
    with pytest.raises(RefusedError, match=f"{gone} cannot be shown: no file {gone} is kept here") as caught:
        await files.rollouts.row(gone, 0)
    assert caught.value.status == 404


async def test_rows_that_were_not_committed_to_are_not_shown(files: Files) -> None:
    index = await files.run.commit("wanda", step=1)
    other = files.served.put(write_rollouts([text_row(i, "", "fine") for i in range(8)]))
    await files.run.upload("wanda", index, other)
    await files.run.accept("wanda", index)
    with pytest.raises(
        RefusedError, match=f"{other} cannot be shown: its rows are not what was committed to"
    ) as caught:
        await files.rollouts.row(other, 0)
    assert caught.value.status == 404


async def test_missing_tokenizer_is_refused_with_a_hint(files: Files) -> None:
    name = await files.work("wanda", 1)
    reader = RowReader(files.fetched, LIMITS, None)
    with pytest.raises(RefusedError, match="no tokenizer with the hash") as caught:
        await Rollouts(files.run.source, reader).row(name, 0)
    assert "orchestrator.run_folder" in caught.value.hint


# Lists


async def test_files_come_newest_step_first(files: Files) -> None:
    names = {step: await files.work("wanda" if step % 2 else "willi", step) for step in (1, 2, 3)}
    await files.work("wanda", 3, accept=False)
    found = await files.listed()
    assert [(file.policy_step, file.file_hash) for file in found.files] == [(step, names[step]) for step in (3, 2, 1)]
    assert (found.first_step, found.last_step, found.rows, found.before) == (1, 3, 8, None)
    assert found.files[0].name == "Wanda"
    assert [file.policy_step for file in (await files.listed(step=2)).files] == [2]
    assert [file.policy_step for file in (await files.listed(node=address("wanda"))).files] == [3, 1]
    first = await files.listed(limit=2)
    assert ([file.policy_step for file in first.files], first.before) == ([3, 2], 2)
    assert [file.policy_step for file in (await files.listed(before=first.before)).files] == [1]


async def test_files_of_a_step_are_not_divided(files: Files) -> None:
    for step, name in ((1, "wanda"), (1, "willi"), (2, "wanda"), (2, "willi")):
        await files.work(name, step)
    found = await files.listed(limit=3)
    assert ([file.policy_step for file in found.files], found.before) == ([2, 2], 2)
    rest = await files.listed(before=2, limit=3)
    assert ([file.policy_step for file in rest.files], rest.before) == ([1, 1], None)
    alone = await files.listed(limit=1)
    assert ([file.policy_step for file in alone.files], alone.before) == ([2], 2)


async def test_without_files_there_are_no_steps(files: Files) -> None:
    found = await files.listed()
    assert (found.files, found.first_step, found.last_step, found.before) == ([], None, None, None)


# Before and after


async def test_an_early_and_a_late_answer_to_the_same_task(files: Files, document: TaskSetDocument) -> None:
    for step in (0, 1, 2, 3):
        await files.work("wanda" if step % 2 else "willi", step)
    found = await files.rollouts.compared()
    assert found.same_task
    assert found.before is not None
    assert found.after is not None
    assert document.locate(found.before.task) == document.locate(found.after.task)
    assert found.before.policy_step < found.after.policy_step == 3
    assert (found.before.sample, found.after.sample) == (0, 0)
    assert "step 3" in ((found.after.thinking and found.after.thinking.text) or found.after.answer.text)


async def test_a_file_is_not_compared_with_itself(files: Files, document: TaskSetDocument) -> None:
    """The latest file begins with a task that only it has, before one that it shares with the earliest."""
    await files.work("willi", 0)
    early = {document.locate(task) for task in files.tasks("willi", 0)}

    def fits(index: int) -> bool:
        first, *rest = (document.locate(task) for task in files.tasks("wanda", index))
        return first not in early and bool(early & set(rest))

    chosen = next(index for index in range(500) if fits(index))
    for _ in range(chosen):
        await files.run.commit("wanda", step=1)
    await files.work("wanda", 3)
    found = await files.rollouts.compared()
    assert found.before is not None
    assert found.after is not None
    assert (found.before.policy_step, found.after.policy_step, found.after.index) == (0, 3, chosen)
    assert document.locate(found.before.task) == document.locate(found.after.task)


async def test_a_pair_with_unlike_rewards_is_shown_before_others(files: Files) -> None:
    """Pairs are the first answers to each common task; if all rewards are equal the newest pair is shown."""
    for step, name in ((0, "willi"), (1, "wanda")):
        await files.work(name, step, lambda _: {"task_reward": 0})
    equal = await files.rollouts.compared()
    assert equal.after is not None
    assert (equal.after.policy_step, equal.after.reward) == (1, 0)
    for step in (2, 3):
        await files.work("willi", step, lambda position: {"task_reward": 250_000 if position == 6 else 0})
    found = await files.new_rollouts().compared()
    assert found.before is not None
    assert found.after is not None
    assert (found.same_task, found.after.position, found.before.reward, found.after.reward) == (True, 6, 0, 0.25)


async def test_with_one_step_there_is_nothing_to_compare(files: Files) -> None:
    await files.work("wanda", 1)
    await files.work("willi", 1)
    found = await files.rollouts.compared()
    assert (found.before, found.after, found.same_task) == (None, None, False)
    assert found.why == "no two steps have accepted work yet"


async def test_a_pair_is_shown_for_a_while_and_a_failure_is_not(files: Files) -> None:
    now = 0.0
    rollouts = files.new_rollouts(lambda: now)
    await files.work("willi", 0)
    index = await files.run.commit("wanda", step=1)
    await files.run.upload("wanda", index)
    await files.run.accept("wanda", index)
    failed = await rollouts.compared()
    assert failed.after is None
    assert failed.why.endswith("is kept here")
    await files.work("wanda", 2)
    first = await rollouts.compared()
    assert first.after is not None
    assert first.after.policy_step == 2
    await files.work("wanda", 3)
    now = 599.0
    assert await rollouts.compared() == first
    now = 600.0
    later = await rollouts.compared()
    assert later.after is not None
    assert later.after.policy_step == 3
