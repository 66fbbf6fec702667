"""muster eval with a benchmark: results, resuming and items in the training set. A fake engine answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from muster.authoring.benchmarks.catalog import BENCHMARKS
from muster.authoring.benchmarks.data import fetch_files
from muster.clients.evaluation import EvalRequest, ModelAnswer, TaskResult
from muster.console import sampling
from muster.console.evaluate import eval
from muster.console.evaluate.eval_options import EvalOptions
from muster.console.session import Options, Session
from muster.environments.registry import own_manifest
from muster.environments.task import ask
from muster.errors import CheckError, ConfigError, MusterError, UnreachableError, UsageError
from muster.tasksets.build import NewPart, write_task_set
from testbed.samples.models import write_model
from testbed.samples.published_rows import GSM8K, LIVECODEBENCH

SHORT = {"max_tokens": 64}
GOLD = [row["answer"].rpartition("#### ")[2] for row in GSM8K]


class Oracle:
    """A fake engine: every other sample is right. It records its prompts."""

    def __init__(self, breaks_after: int | None = None) -> None:
        self.breaks_after, self.asked, self.prompts = breaks_after, 0, []

    async def __call__(self, request: EvalRequest) -> AsyncGenerator[TaskResult]:
        self.request, self.prompts = request, [task.messages[-1].content for task in request.load_prompts()]
        for number in range(request.first, request.count):
            if self.asked == self.breaks_after:
                raise MusterError("the engine was killed")
            self.asked += 1
            gold = next(
                answer for row, answer in zip(GSM8K, GOLD, strict=True) if row["question"] in self.prompts[number]
            )
            texts = [f"#### {gold}" if sample % 2 else "7 apples" for sample in range(request.sampling.samples)]
            yield TaskResult(number, 0, len(texts), 5, shown=tuple(ModelAnswer(text, 5, True) for text in texts))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(tmp_path)
    return Session(Options(json=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    return path


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    found = Oracle()
    monkeypatch.setattr(sampling, "ask", found)
    return found


async def evaluate(session: Session, model: Path, tasks: str, **options: Any) -> None:
    await eval.evaluate(session, EvalOptions(model=str(model), tasks=tasks, **options))


async def test_a_result_says_what_it_depends_on(
    session: Session, model_dir: Path, file: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluate(session, model_dir, "gsm8k", data=[file], samples=4, **SHORT, out=Path("result.json"))
    document = json.loads(capsys.readouterr().out)
    written = json.loads(Path("result.json").read_text())
    assert {name: value for name, value in document.items() if name not in ("model", "out", "seconds")} == written
    figures = {(one["rule"], one["measure"]): one["value"] for one in written["figures"]}
    assert figures == {
        (rule, measure): value
        for rule in ("strict", "flexible")
        for measure, value in (("pass@1", 0.5), ("pass@4", 1.0))
    }
    assert (written["items"], written["cut_off"], written["mean_tokens"]) == (len(GSM8K), 0, 5)
    assert written["prompt"] == BENCHMARKS["gsm8k"].prompt
    assert written["sampling"] == {
        "samples": 4,
        "max_tokens": 64,
        "temperature": 0.01,
        "seed": 0,
        "profile": "cpu-fp32-projection-v3",
    }
    assert set(written["scorers"]) == {"strict", "flexible"}
    assert written["data"][0]["rows"] == len(GSM8K)
    records = [json.loads(line) for line in Path("result.items.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records[1:]] == [f"gsm8k/{i + 1}" for i in range(len(GSM8K))]
    first = records[1]["samples"][1]
    assert (first["text"], first["tokens"], first["finished"]) == (f"#### {GOLD[0]}", 5, True)
    assert first["scores"] == {"strict": 1_000_000, "flexible": 1_000_000}


async def test_an_interrupted_evaluation_ends_in_the_same_result(
    session: Session, model_dir: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def again(oracle: Oracle, **options: Any) -> None:
        monkeypatch.setattr(sampling, "ask", oracle)
        out = options.pop("out", Path("result.json"))
        await evaluate(session, model_dir, "gsm8k", data=[file], out=out, **{**SHORT, **options})

    Path("whole").mkdir()
    await again(Oracle(), out=Path("whole/result.json"))
    with pytest.raises(MusterError, match="killed"):
        await again(Oracle(breaks_after=3))
    assert "3 of 8 tasks are answered; run the same command to resume" in capsys.readouterr().err
    assert not Path("result.json").exists()
    for changed in (
        {"seed": 1},
        {"temperature": 0.5},
        {"samples": 2},
        {"prompt": "{question}?"},
        {"limit": 4},
    ):
        with pytest.raises(ConfigError, match="has records of another evaluation"):
            await again(Oracle(), **changed)
    second = Oracle()
    await again(second)
    assert (second.request.first, second.asked) == (3, 5)
    assert Path("result.json").read_bytes() == Path("whole/result.json").read_bytes()
    third = Oracle()
    await again(third)
    assert (third.asked, Path("result.json").read_bytes()) == (0, Path("whole/result.json").read_bytes())


async def test_without_out_equal_evaluations_share_their_records(
    session: Session, model_dir: Path, file: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = []
    for seed in (0, 0, 1):
        await evaluate(session, model_dir, "gsm8k", data=[file], seed=seed, **SHORT)
        outs.append(json.loads(capsys.readouterr().out)["out"])
    assert outs[0] == outs[1] != outs[2]
    assert oracle.asked == 2 * len(GSM8K)


async def test_items_in_the_training_set_are_refused_by_name(
    session: Session, model_dir: Path, file: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = own_manifest("arithmetic", {"thinking": "none"})
    training = [ask(f"Please solve this: {GSM8K[2]['question']}", answer="-7"), ask("What is 2 + 2?", answer="4")]
    held_out = [ask(GSM8K[4]["question"], answer="63000")]
    write_task_set(Path("tasks"), [NewPart("train", manifest, training)], [NewPart("held", manifest, held_out)])
    options: dict[str, Any] = {"data": [file], **SHORT, "against": [Path("tasks")]}
    with pytest.raises(CheckError, match=r"1 of 8 items of gsm8k are trained on: gsm8k/3$") as caught:
        await evaluate(session, model_dir, "gsm8k", **options)
    assert "--skip-trained" in caught.value.hint
    assert oracle.asked == 0
    await evaluate(session, model_dir, "gsm8k", skip_trained=True, **options)
    document = json.loads(capsys.readouterr().out)
    assert (document["items"], document["trained_on"]) == (7, ["gsm8k/3"])
    assert not any(GSM8K[2]["question"] in prompt for prompt in oracle.prompts)


async def test_a_length_limit_that_the_model_lacks_gives_way(
    session: Session, model_dir: Path, file: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluate(session, model_dir, "gsm8k", data=[file])
    document = json.loads(capsys.readouterr().out)
    assert 0 < document["sampling"]["max_tokens"] < 512 < BENCHMARKS["gsm8k"].max_tokens


async def test_options_that_make_no_sense_are_refused(session: Session, model_dir: Path, file: Path) -> None:
    with pytest.raises(UsageError, match="--part and --budgets are for task sets"):
        await evaluate(session, model_dir, "gsm8k", data=[file], budgets=(8,))
    with pytest.raises(UsageError, match="--data is for a benchmark"):
        await evaluate(session, model_dir, "tasks", data=[file])
    with pytest.raises(UsageError, match="gsm8k has no contests"):
        await evaluate(session, model_dir, "gsm8k", data=[file], since="2024-01-01")
    with pytest.raises(UsageError, match="a window from 2025-01-01 to 2024-01-01"):
        await evaluate(session, model_dir, "livecodebench", data=[file], since="2025-01-01", until="2024-01-01")
    with pytest.raises(UsageError, match="--since: Invalid isoformat string: 'soon'"):
        EvalOptions.read({"tasks": "livecodebench", "since": "soon"}, "muster eval")
    with pytest.raises(UsageError, match="a prompt without the question"):
        await evaluate(session, model_dir, "gsm8k", data=[file], prompt="What?")
    with pytest.raises(UsageError, match="--step names a step of a run"):
        await evaluate(session, model_dir, "gsm8k", data=[file], step=1)
    with pytest.raises(ConfigError, match="there is no file absent"):
        await evaluate(session, model_dir, "gsm8k", data=[Path("absent")])
    Path("gsm8k").mkdir()  # a path that exists is a task set
    with pytest.raises(UsageError, match="--data is for a benchmark, and gsm8k, which is none"):
        await evaluate(session, model_dir, "gsm8k", data=[file])


def test_a_hub_that_cannot_be_reached_says_which_files_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(
        UnreachableError, match="data set livecodebench/code_generation_lite cannot be fetched"
    ) as caught:
        fetch_files(BENCHMARKS["livecodebench"], tmp_path, lambda _: None, endpoint="http://127.0.0.1:9")
    assert caught.value.hint.startswith("fetch test.jsonl, test2.jsonl, ")
    assert "--data" in caught.value.hint


def test_contests_reach_the_window(tmp_path: Path) -> None:
    typed = {"tasks": "livecodebench", "since": "2024-08-01", "until": "2025-01-31"}
    window = EvalOptions.read(typed, "muster eval").contests()
    assert [row["question_id"] for row in LIVECODEBENCH if window.holds(row)] == ["rows", "pairs", "mean", "addTwo"]
    assert window.to_document() == {"since": "2024-08-01", "until": "2025-01-31"}
