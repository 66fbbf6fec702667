"""Conversations in the engine: each goes on from what it has, beside others, and replays in one pass."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.inspection_looks import SEEDS, looks_of
from muster.clients.evaluation import Sampling
from muster.console.evaluate.eval import measured
from muster.environments.tools.base import ToolResult
from muster.environments.tools.calculator import Calculator
from muster.models.arithmetic import computing
from muster.protocol.draws import Draw, DrawSource
from muster.protocol.turns.conversation import Conversations, conversation_error
from muster.rollouts.parquet import read_rollouts, write_rollouts
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import one_span, sampled_length
from muster.runtime import telemetry
from muster.settings.schema import WorkerSettings
from muster.verification.checks import check_rows
from muster.verification.judging import judge
from muster.verification.model import check_row
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from muster.verification.rules import Rules
from testbed.adversaries.lab import AdversaryLab
from testbed.adversaries.turns import TURN_ADVERSARIES, open_tool_lab
from testbed.samples.tool_model import MAX_COMPLETION
from testbed.waiting import BOUND
from worker.answering import EvalSession
from worker.context import WorkerContext
from worker.engine import Engine, EngineError, GenerationRequest
from worker.journal import WorkJournal
from worker.producer import Producer
from worker.rollouts import Assignment, make_requests, make_rollouts
from worker.weights import CurrentWeights, NewestCheckpoint


@pytest.fixture(scope="module")
def tool_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdversaryLab]:
    with open_tool_lab(tmp_path_factory.mktemp("tools")) as lab:
        yield lab


@pytest.fixture(scope="module")
def tool_run(tool_lab: AdversaryLab) -> tuple[Path, Rules]:
    return tool_lab.checkpoints[0], tool_lab.rules


@pytest.fixture(scope="module")
def talking(tool_lab: AdversaryLab) -> Engine:
    return tool_lab.engine


@pytest.fixture(scope="module")
def work(tool_run: tuple[Path, Rules]) -> tuple[Assignment, list[GenerationRequest]]:
    rules = tool_run[1]
    assignment = Assignment(1, 0, rules.draw(DrawSource("0x" + "aa" * 20, bytes(32), 0), 0))
    return assignment, make_requests(assignment, rules)


@pytest.fixture(scope="module")
def rows(talking: Engine, tool_run: tuple[Path, Rules], work: tuple) -> list[Rollout]:
    return make_rollouts(work[0], tool_run[1], work[1], talking.generate(work[1]))


@pytest.fixture(scope="module")
def draw(work: tuple) -> Draw:
    return work[0].draw


def finding_of(rows: list[Rollout], folder: Path):
    return judge(Replayer(folder, CPU_FP32, 1.0).replay(rows), CPU_FP32)


def test_conversations_of_many_lengths_pass_every_check(rows: list[Rollout], tool_run: tuple, draw: Draw) -> None:
    turns = {len(row.spans) // 2 + 1 for row in rows}
    assert {1, 2, 3, 4} <= turns
    assert any(row.call_fuel.sum() for row in rows)
    again = read_rollouts(write_rollouts(rows))
    assert check_rows(again, draw, tool_run[1]) is None
    assert finding_of(again, tool_run[0]) is None
    assert all(len(row.logprobs) == sampled_length(row.spans) for row in rows)


def test_looks_at_conversations_are_of_their_sampled_tokens(rows: list[Rollout], tool_run: tuple) -> None:
    """True on another machine; false for who takes what a tool wrote for the model's own."""
    own = Replayer(tool_run[0], CPU_FP32, 1.0)
    some = [row for row in rows if len(row.spans) > 1][:8]
    with computing(own.model, "split sums"):
        looks = looks_of(own, some)
    assert {check_row(own, *one, SEEDS) for one in zip(some, looks, strict=True)} == {"true"}
    whole = [replace(row, spans=one_span(len(row.completion_tokens))) for row in some]
    assert {check_row(own, *one, SEEDS) for one in zip(some, looks_of(own, whole), strict=True)} == {"false"}


@pytest.mark.parametrize("name", TURN_ADVERSARIES)
def test_a_lie_in_a_conversation_is_caught(name: str, tool_lab: AdversaryLab) -> None:
    """Where static checks see it, in every single row; otherwise by replay, in the commitment."""
    adversary, job = TURN_ADVERSARIES[name], tool_lab.job()
    honest, rows = tool_lab.honest(job), TURN_ADVERSARIES[name].lie(tool_lab, job)
    lies = [row for row, true in zip(rows, honest, strict=True) if row is not true]
    assert lies
    static = [check_rows([row], job.draw, tool_lab.rules) for row in lies]
    if adversary.static:
        assert {finding and finding.reason for finding in static} == set(adversary.reasons)
        return
    assert static == [None] * len(lies)
    found = judge(tool_lab.measure(job, lies), tool_lab.profile)
    assert found is not None
    assert found.accuse
    assert found.reason in adversary.reasons


def test_eval_has_whole_conversations_as_a_worker_has(tool_run: tuple[Path, Rules], talking: Engine) -> None:
    """What `muster eval` sums up, against the engine's own conversations, scored here by their last number."""
    rules = tool_run[1]
    sampling = Sampling(2, (8,), MAX_COMPLETION, 1.0, 3, CPU_FP32.name)
    asking = Conversations(rules.tokenizer, rules.scorers, rules.model.stop_tokens)
    session = EvalSession(talking, asking, sampling, show=2)
    tasks = rules.task_set.train[:12]
    made = [one for task in tasks for one in talking.generate(session.requests(task))]
    assert {1, 2, 3} <= {len(one.spans) // 2 + 1 for one in made}
    found = list(session.answers(tasks))
    for one in made:
        fuel, turns = one.call_fuel.tolist(), rules.turns(0)
        assert turns is not None
        assert conversation_error(turns, one.tokens, one.spans.tolist(), fuel, MAX_COMPLETION) == ("", False)
    assert sum(one.calls for one in found) == sum(len(one.call_fuel) for one in made) > 0
    assert sum(one.tokens for one in found) == sum(len(one.logprobs) for one in made)
    shown = [one for result in found for one in result.shown]
    for one, answer in zip(made, shown, strict=True):
        assert bool(answer.pieces) == (len(one.spans) > 1)
        if answer.pieces:
            whole = str(rules.tokenizer.decode(one.tokens))
            assert "".join(text for _, text in answer.pieces) == whole.removesuffix("<|im_end|>")
            assert answer.text == answer.pieces[-1][1] or answer.pieces[-1][0] == "call"
            assert [kind for kind, _ in answer.pieces].count("result") == len(one.call_fuel)
    right = [
        one.text.strip() == str(task.reference["answer"]) for (_, task), one in zip(tasks, shown[::2], strict=True)
    ]
    assert [one.shown[0].right for one in found] == right

    result = measured(found, sampling, [1])
    assert result["mean_calls"] == round(sum(len(one.call_fuel) for one in made) / 24, 2)
    assert result["mean_tokens"] == round(sum(len(one.logprobs) for one in made) / 24, 2)
    assert result["finished"] == sum(one.finished for one in found) / 24


async def test_a_worker_counts_what_it_sampled_and_not_what_tools_gave(
    tool_run: tuple[Path, Rules], talking: Engine, tmp_path: Path
) -> None:
    """The real producer, engine and journal, on a chain of one node."""
    model, rules = tool_run
    settings = WorkerSettings(state_dir=tmp_path, measure_steps=False)

    class OneNode:
        signer = SimpleNamespace(address="0x" + "aa" * 20)

        async def draw_source(self, node: str) -> DrawSource:
            return DrawSource(node, bytes(32), 0)

    class AllTasks:
        async def ensure_slots(self, slots: Iterable[int], epoch: int) -> None:
            pass

    with WorkJournal(tmp_path, "a worker") as journal:
        of: Any = SimpleNamespace(worker=settings, bfloat16_matmul="auto", run=1)
        chain: Any = OneNode()
        unused: Any = None  # the checkpoint is here
        context = WorkerContext(of, chain, unused, rules.terms, CPU_FP32, journal)
        producer = Producer(context, NewestCheckpoint(chain, 1, unused), Engine)
        producer.weights = CurrentWeights(lambda _: talking)
        fetched: Any = SimpleNamespace(checkpoint=SimpleNamespace(step=1, anchor=bytes(32)), path=model)
        await producer.weights.load(fetched)
        before = telemetry.REGISTRY.get_sample_value("muster_worker_tokens_total") or 0.0
        tasks: Any = AllTasks()
        await producer._produce(0, fetched, tasks, rules)  # noqa: SLF001
        counted = (telemetry.REGISTRY.get_sample_value("muster_worker_tokens_total") or 0.0) - before
        entry = journal.entry(0)
        assert entry is not None
        made = read_rollouts(journal.data(entry))
    assert counted == sum(len(row.logprobs) for row in made) == sum(sampled_length(row.spans) for row in made)
    assert counted < 0.9 * sum(len(row.completion_tokens) for row in made)


def test_a_slow_tool_holds_up_its_own_conversation_only(
    talking: Engine, work: tuple, rows: list[Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as slow as all turns of the others: without them it would wait until BOUND."""
    chosen = [i for i, row in enumerate(rows) if len(row.spans) > 1][:6]
    others = sum(len(rows[i].spans) // 2 + 1 for i in chosen) - 8  # all turns but those of the one that waits
    lock, started, done, ended, waited = threading.Lock(), [], [], threading.Event(), []
    plain, step = Calculator.run, talking.llm.step

    def slow(self, arguments, fuel, earlier):
        with lock:
            started.append(1)
            first = len(started) == 1
        if first:
            waited.append(ended.wait(BOUND))
        return plain(self, arguments, fuel)

    def note():
        outputs = step()
        done.extend(outputs)
        if len(done) >= others:
            ended.set()
        return outputs

    monkeypatch.setattr(Calculator, "run", slow)
    monkeypatch.setattr(talking.llm, "step", note)
    found = talking.generate([work[1][i] for i in chosen])
    assert [one.tokens.tolist() for one in found] == [rows[i].completion_tokens.tolist() for i in chosen]
    assert waited == [True]


def test_a_tool_that_fails_here_ends_the_call_and_leaves_the_engine_whole(
    talking: Engine, work: tuple, rows: list[Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self, arguments, fuel, earlier) -> ToolResult:
        raise RuntimeError("no sandbox here")

    monkeypatch.setattr(Calculator, "run", fail)
    with pytest.raises(RuntimeError, match="no sandbox here"):
        talking.generate(work[1])
    monkeypatch.undo()
    assert not talking.llm.has_unfinished_requests()
    assert talking.generate(work[1][:8])[3].tokens.tolist() == rows[3].completion_tokens.tolist()


def test_stop_does_not_wait_for_a_tool(talking: Engine, work: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, late = threading.Event(), []

    def wait_for_ever(self, arguments, fuel, earlier) -> ToolResult:
        talking.stop()
        hold.wait(BOUND)
        late.append(1)
        return ToolResult("late", 0)

    monkeypatch.setattr(Calculator, "run", wait_for_ever)
    try:
        with pytest.raises(EngineError, match="was stopped"):
            talking.generate(work[1])
        assert late == [], "no call has ended"
    finally:
        hold.set()
        talking._stopped = False  # noqa: SLF001  (an engine that was stopped is not used again, but here)


def test_the_prefix_cache_changes_what_is_computed_and_not_what_is_sampled(
    talking: Engine, tool_run: tuple, work: tuple, rows: list[Rollout], draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, cached = talking.sampling_params, []
    step = talking.llm.step

    def uncached(*arguments: Any) -> Any:
        made = params(*arguments)
        made.skip_reading_prefix_cache = True
        return made

    def note() -> Any:
        outputs = step()
        cached.extend(one.num_cached_tokens for one in outputs)
        return outputs

    monkeypatch.setattr(talking.llm, "step", note)
    talking.generate(work[1][:8])
    assert any(cached), "the cache is read"
    cached.clear()
    monkeypatch.setattr(talking, "sampling_params", uncached)
    plain = make_rollouts(work[0], tool_run[1], work[1], talking.generate(work[1]))
    assert cached
    assert not any(cached)
    assert check_rows(plain, draw, tool_run[1]) is None
    assert finding_of(plain, tool_run[0]) is None
    same = sum(np.array_equal(a.completion_tokens, b.completion_tokens) for a, b in zip(plain, rows, strict=True))
    assert same >= len(rows) - 4  # a near-tie may fall the other way
