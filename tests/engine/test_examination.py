"""muster eval and muster tasks filter as a person types them: real processes, a real engine, a half-trained model.

What they find is compared with what the session's own engine finds, asked in this process.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from muster.authoring.evaluation.pass_at_k import mean_pass_at_k
from muster.clients.answering import ask
from muster.clients.evaluation import EvalRequest, Sampling, TaskResult
from muster.environments.answers import exact_answer
from muster.environments.scoring import Scorers
from muster.errors import ConfigError, MusterError
from muster.models.greedy import greedy_completions
from muster.models.init import load_model
from muster.protocol.prompts import completion_text, prompt_tokens
from muster.protocol.turns.conversation import Conversations
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.taskset import Scored, TaskSet
from testbed.adversaries.lab import tempered
from testbed.suite import forks
from testbed.waiting import BOUND, wait_until
from worker.answering import EvalSession
from worker.engine import Engine

SAMPLING = Sampling(
    samples=4, budgets=(8, 12, 16), max_tokens=32, temperature=1.0, seed=3, profile="cpu-fp32-projection-v3"
)
OPTIONS = ("--samples", "4", "--seed", "3")
TRAIN = 320
HELD_OUT = 48


@pytest.fixture(scope="module")
def some_tasks(task_set: TaskSet, tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    """Part of the demo's tasks: five rounds of the engine's for a filter, so that it can be interrupted."""
    (part,), (held_out,) = task_set.document.parts, task_set.document.held_out
    return write_task_set(
        tmp_path_factory.mktemp("some") / "tasks",
        [NewPart(part.name, part.environment, [task for _, task in task_set.train[:TRAIN]])],
        [NewPart(held_out.name, held_out.environment, [task for _, task in task_set.held_out[:HELD_OUT]])],
    )


@pytest.fixture
def tasks_folder(some_tasks: TaskSet, tmp_path: Path) -> Path:
    return shutil.copytree(some_tasks.folder, tmp_path / "tasks")


Examine = Callable[[Sequence[Scored]], list[TaskResult]]


@pytest.fixture(scope="module")
def examine(engine: Engine, tokenizer: PreTrainedTokenizerBase, model_dir: Path) -> Examine:
    """The answers of the model, by an engine in this process."""

    def examine(tasks: Sequence[Scored]) -> list[TaskResult]:
        engine.load_weights(model_dir)
        asking = Conversations(tokenizer, Scorers(), frozenset(engine.stop_tokens))
        return list(EvalSession(engine, asking, SAMPLING).answers(tasks))

    return examine


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """Type `muster` in a folder."""
    command = [sys.executable, "-m", "muster", *map(str, words), "--json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def typed(folder: Path, *words: object, status: int = 0) -> Any:
    """What a command printed."""
    process = start(folder, *words)
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == status, out + err
    return json.loads(out)


def test_with_hardly_any_noise_the_answers_are_the_greedy_ones(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, model_dir: Path, some_tasks: TaskSet
) -> None:
    """What transformers makes of the same prompts, without this engine: a near-tie apart, and no more."""
    engine.load_weights(model_dir)
    examination = EvalSession(engine, Conversations(tokenizer, Scorers(), frozenset(engine.stop_tokens)), SAMPLING)
    with tempered(engine, 1e-4):
        answers = list(examination.answers(some_tasks.held_out))
    asked = [(task, SAMPLING.draw(task, sample)[1]) for _, task in some_tasks.held_out for sample in range(4)]
    prompts = [torch.from_numpy(prompt_tokens(tokenizer, task, budget)).long() for task, budget in asked]
    greedy = greedy_completions(load_model(model_dir), tokenizer, prompts, max_tokens=32)
    scores = [
        exact_answer(completion_text(tokenizer, tokens), "tags") == task.reference["answer"]
        for (task, _), tokens in zip(asked, greedy, strict=True)
    ]
    differ = sum(
        (one.right, one.tokens) != (sum(scores[i : i + 4]), sum(map(len, greedy[i : i + 4])))
        for one, i in zip(answers, range(0, len(asked), 4), strict=True)
    )
    assert differ <= 1
    assert HELD_OUT < sum(one.right for one in answers) < 3 * HELD_OUT, "the model is half-trained"


@pytest.mark.slow
def test_eval_finds_what_the_engine_finds(
    tasks_folder: Path, some_tasks: TaskSet, model_dir: Path, examine: Examine
) -> None:
    """In a folder with files that a careless process would import."""
    for name in ("random.py", "worker.py", "torch.py"):
        (tasks_folder.parent / name).write_text("raise SystemExit('imported from where somebody stands')\n")
    hostile = tasks_folder.with_name("-t asks;$(touch x)")
    tasks_folder.rename(hostile)
    command = [Path(sys.executable).with_name("muster"), "eval", *OPTIONS, "--k", "1,2,4", "--out", "result.json"]
    done = subprocess.run(
        [*command, "--json", "--", model_dir, hostile.name],
        cwd=hostile.parent,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    answers = examine(some_tasks.held_out)
    right = [one.right for one in answers]
    assert json.loads((tasks_folder.parent / "result.json").read_text()) == result | {"right": right}
    expected = [mean_pass_at_k(right, 4, k) for k in (1, 2, 4)]
    assert [(row["k"], row["value"], row["low"], row["high"]) for row in result["pass_at_k"]] == [
        (k, of.value, of.low, of.high) for k, of in zip((1, 2, 4), expected, strict=True)
    ]
    assert result["pass_at_k"][0]["value"] == sum(right) / (4 * HELD_OUT)
    assert 0.05 < result["pass_at_k"][0]["value"] < 0.95, "the model is half-trained"
    assert result["mean_tokens"] == round(sum(one.tokens for one in answers) / (4 * HELD_OUT), 2)
    assert all(one.finished + one.unended >= 4 for one in answers), "what was not cut off ended its thinking"
    assert 0 < sum(one.unended for one in answers) < 4 * HELD_OUT
    assert result["finished"] == sum(one.finished for one in answers) / (4 * HELD_OUT)
    assert result["task_root"] == "0x" + some_tasks.root.hex()


def test_resumed_filter_keeps_same_tasks_as_uninterrupted_one(
    tasks_folder: Path, some_tasks: TaskSet, model_dir: Path, examine: Examine
) -> None:
    folder, journal = tasks_folder.parent, tasks_folder.parent / "kept.answers"
    words = ("tasks", "filter", tasks_folder, model_dir, "kept", *OPTIONS)
    process = start(folder, *words)

    def is_under_way() -> bool:
        assert process.poll() is None, process.communicate()
        return 0 < answered(journal) < TRAIN

    wait_until(is_under_way, "some tasks are answered")
    engines = engines_of(psutil.Process(process.pid))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 130, out + err
    assert "run the same command to resume" in err
    assert len(engines) == 1
    assert not any(one.is_running() for one in engines)
    assert not (folder / "kept").exists()
    before = answered(journal)
    assert 0 < before < TRAIN

    report = typed(folder, *words)
    right = [one.right for one in examine(some_tasks.train)]
    wanted = [one for one, count in zip(some_tasks.train, right, strict=True) if 0.1 <= count / 4 <= 0.8]
    kept = TaskSet.open(folder / "kept", bytes.fromhex(report["root"][2:]))
    assert (list(kept.train), list(kept.held_out)) == (wanted, list(some_tasks.held_out))
    assert report["histogram"] == [
        {"pass_rate": count / 4, "tasks": right.count(count), "kept": count in (1, 2, 3)} for count in range(5)
    ]
    assert (report["too_hard"], report["too_easy"]) == (right.count(0), right.count(4))
    assert min(report["train"], report["too_hard"], report["too_easy"]) > 0, "the model is half-trained"

    # The terms of a run name the filtered set, and workers and validators load it by them.
    zero = "0x" + "00" * 20
    places = ("--tasks", "kept", "--model", model_dir, "--trainer", zero, "--storage-key", zero)
    terms = typed(folder, "run", "template", *places)["terms"]
    assert f"task_count = {len(wanted)}\n" in terms
    assert report["root"] in terms

    refused = typed(folder, *words, "--temperature", "0.5", status=78)
    assert "records of another evaluation: temperature differ" in refused["error"]


def answered(journal: Path) -> int:
    """Tasks in a file of records that another process writes."""
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def engines_of(process: psutil.Process) -> list[psutil.Process]:
    """The answering processes that it started."""
    return [child for child in process.children() if forks.runs(child, "worker.answering")]


async def test_an_engine_that_is_killed_is_an_error_and_nothing_it_said_is_lost(
    tasks_folder: Path, some_tasks: TaskSet, model_dir: Path, examine: Examine
) -> None:
    questions = EvalRequest(model_dir, tasks_folder, some_tasks.root, "train", TRAIN, SAMPLING)
    heard: list[TaskResult] = []

    async def listen() -> None:
        async with aclosing(ask(questions)) as answers:
            async for one in answers:
                if not heard:
                    (engine,) = engines_of(psutil.Process())
                    engine.kill()
                heard.append(one)

    with pytest.raises(MusterError, match=rf"killed by SIGKILL after \d+ of {TRAIN} tasks"):
        await listen()
    assert 0 < len(heard) < TRAIN
    assert heard == examine(some_tasks.train[: len(heard)])


def test_the_engine_that_answers_is_as_the_settings_have_it(tasks_folder: Path, model_dir: Path) -> None:
    (tasks_folder.parent / "muster.toml").write_text("[worker]\ncache_bytes = 4096\n")
    refused = typed(tasks_folder.parent, "eval", model_dir, tasks_folder, *OPTIONS, status=ConfigError.exit_code)
    assert "No available memory for the cache blocks" in refused["error"]
    assert refused["hint"] == "raise worker.cache_bytes"


async def test_oversized_budget_is_refused_before_engine_starts(
    tasks_folder: Path, some_tasks: TaskSet, model_dir: Path
) -> None:
    sampling = replace(SAMPLING, budgets=(600,), max_tokens=600)
    questions = EvalRequest(model_dir, tasks_folder, some_tasks.root, "train", TRAIN, sampling)
    with pytest.raises(ConfigError, match="do not fit the model's context of 512") as caught:
        await anext(ask(questions))
    assert "lower --max-tokens" in caught.value.hint
