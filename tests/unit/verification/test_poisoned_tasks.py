"""Unsolvable tasks, and completions that break the scorer: each scores zero with a reason, and no process stops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from muster.constants import MICRO
from muster.environments.scoring import Scorers
from muster.errors import UnreachableError
from muster.models.init import make_tokenizer
from muster.protocol.draws import Draw
from muster.protocol.kinds import kind_of
from muster.protocol.prompts import end_token
from muster.sandbox.component import local_component
from muster.tasksets.build import NewPart, write_task_set
from muster.tasksets.sealing import seal_task
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet
from muster.verification.bundles import Inspection, make_bundle
from muster.verification.checks import ROW_CHECKS, CheckedRow, Finding, check_rows
from muster.verification.rules import CommittedWork, Rules
from testbed.runs.mixture import manifest_of, poisoned_parts, task
from testbed.samples.commitments import ACCUSER, committed, drawn, honest_rows, rules, tokens_of
from testbed.samples.verification_context import Context
from validator.evidence import verify_evidence


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rules]:
    """A run's rules whose tasks are all poisoned."""
    folder = tmp_path_factory.mktemp("poisoned") / "tasks"
    task_set = write_task_set(folder, poisoned_parts(local_component().hash))
    with Scorers(folder / COMPONENTS_NAME) as scorers:
        yield replace(rules(), task_set=task_set, scorers=scorers)


def slot_of(task_set: TaskSet, name: str) -> int:
    return next(slot for slot in range(task_set.size) if task_set.part(slot).name == name)


SAID = tokens_of("```\nprint(1)\n```")
USED = {"endless": 10**8, "no-fuel": 1000}
REASONS = {
    "no-answer": "the task is of no use: task 'no answer' has 'wrong' in its reference",
    "no-task": "the task is of no use: a line that is no task",
    "too-long": "no answer",
    "endless": "test 0: stopped: fuel",
    "no-fuel": "stopped: fuel",
    "no-memory": "stopped: trap",
}


@pytest.mark.parametrize("name", REASONS)
def test_unsolvable_task_scores_zero_with_a_reason(poisoned: Rules, name: str) -> None:
    slot = slot_of(poisoned.task_set, name)
    score = poisoned.score(slot, SAID)
    assert score.parts == (0,)
    assert score.reason.startswith(REASONS[name])
    assert score.fuel == USED.get(name, score.fuel)
    assert poisoned.score(slot, SAID) == score, "the same each time"


@pytest.mark.parametrize("name", REASONS)
def test_it_has_a_prompt_that_an_engine_takes(poisoned: Rules, name: str) -> None:
    prompt = poisoned.prompt(slot_of(poisoned.task_set, name), 8)
    assert 1 <= len(prompt) <= poisoned.terms.max_prompt_tokens
    assert prompt.dtype == np.int32
    if name == "no-task":
        assert prompt.tolist() == [end_token(poisoned.tokenizer)]


def test_long_prompt_keeps_its_end(poisoned: Rules) -> None:
    text = str(poisoned.tokenizer.decode(poisoned.prompt(slot_of(poisoned.task_set, "too-long"), 8)))
    assert text.endswith("2121<|budget|>8<|assistant|><think>")


@pytest.mark.parametrize("name", REASONS)
def test_honest_rows_of_it_pass_and_a_claimed_reward_does_not(poisoned: Rules, name: str) -> None:
    slot = slot_of(poisoned.task_set, name)
    score, prompt = poisoned.score(slot, SAID), poisoned.prompt(slot, drawn().groups[0].budget)
    [first, *_] = honest_rows()
    row = replace(
        first,
        task=slot,
        prompt_tokens=prompt,
        completion_tokens=SAID,
        task_reward=0,
        parts=np.array(score.parts, np.int64),
        fuel=score.fuel,
    )
    draw = replace(drawn(), groups=tuple(replace(group, task=slot) for group in drawn().groups))
    checks = [ROW_CHECKS[reason] for reason in ("wrong_draw", "wrong_prompt")]
    assert [check(CheckedRow(row, draw, poisoned)) for check in checks] == [None, None]
    for claim in ({"task_reward": MICRO}, {"parts": np.array([MICRO], np.int64)}, {"fuel": score.fuel + 1}):
        finding = ROW_CHECKS["wrong_reward"](CheckedRow(replace(row, **claim), draw, poisoned))  # type: ignore[arg-type]
        assert finding is not None
        assert finding.reason == "wrong_reward"


def test_task_that_the_template_refuses_scores_zero(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}" + str(tokenizer.chat_template)
    task_set = write_task_set(
        tmp_path / "tasks", [NewPart("sort", rules().task_set.manifest(0), [task("a", "sort 21", answer="12")])]
    )
    strict = replace(rules(), task_set=task_set, tokenizer=tokenizer)
    assert strict.prompt(0, 8).tolist() == [end_token(tokenizer)]
    score = strict.score(0, tokens_of("</think>12"))
    assert (score.parts, score.reason) == (
        (0,),
        "the task is of no use: the chat template refuses task 'a': roles must alternate",
    )


def test_prompt_beyond_the_embedding_becomes_the_end_token(poisoned: Rules) -> None:
    slot = slot_of(poisoned.task_set, "endless")
    whole = poisoned.prompt(slot, 8)
    small = replace(poisoned, model=replace(poisoned.model, vocabulary=int(whole.max())))
    fits = replace(poisoned, model=replace(poisoned.model, vocabulary=int(whole.max()) + 1))
    assert len(whole) > 1
    assert fits.prompt(slot, 8).tolist() == whole.tolist()
    assert small.prompt(slot, 8).tolist() == [end_token(poisoned.tokenizer)]


# --- Evidence


def unusable_parts() -> dict[str, NewPart]:
    """Return one part for each reason that makes a task unusable, with one such task."""
    manifest = rules().task_set.manifest(0)
    asked = task("a", "sort 21", answer="12")
    return {
        "no task": NewPart("bad", manifest, [b'{"id":"no task"}']),
        "not sealed": NewPart("bad", manifest, [asked.to_line()], sealed=1),
        "sealed": NewPart("bad", manifest, [seal_task(asked, bytes(32), "bad").to_line()]),
    }


@pytest.mark.parametrize("kind", unusable_parts())
async def test_juror_without_the_shard_reaches_the_same_verdict(tmp_path: Path, kind: str) -> None:
    """An honest row never convicts, and a wrong prompt does."""
    made = rules()
    task_set = write_task_set(tmp_path / "tasks", [unusable_parts()[kind]])
    poisoned = replace(made, task_set=task_set)
    prompt = poisoned.prompt(0, drawn().groups[0].budget)
    assert prompt.tolist() == [end_token(made.tokenizer)]
    empty = np.array([] if poisoned.is_sealed(0) else [0], np.int64)
    said = {"task": 0, "prompt_tokens": prompt, "task_reward": 0, "parts": empty, "fuel": 0}
    honest = [replace(row, **said) for row in honest_rows()]  # type: ignore[arg-type]
    wrong = [replace(row, prompt_tokens=SAID) for row in honest]
    draw = replace(drawn(), groups=tuple(replace(group, task=0) for group in drawn().groups))
    for rows, guilty in ((honest, False), (wrong, True)):
        assert (check_rows(rows, draw, poisoned) is not None) is guilty
        work = committed(rows)
        found = Inspection(Finding("wrong_prompt", 4), rollouts=rows, rows=(4,))
        bundle = make_bundle(poisoned, work, found, accuser=ACCUSER)
        context = JurorWithout(TaskSet(tmp_path / "nothing here", task_set.document), draw)
        inspection = await verify_evidence(bundle.to_bytes(), kind_of("wrong_prompt"), work, context)
        assert inspection.guilty is guilty, inspection.why


@dataclass
class JurorWithout(Context):
    """A juror with the document of a task set, and none of its shards."""

    task_set: TaskSet | None = None
    drawn: Draw | None = None
    rules = property(lambda self: replace(rules(), task_set=self.task_set))

    def __init__(self, task_set: TaskSet, draw: Draw) -> None:
        super().__init__()
        self.task_set, self.drawn = task_set, draw

    async def draw(self, commitment: CommittedWork) -> Draw:
        assert self.drawn is not None
        return self.drawn


# --- Completions


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rules]:
    """A run's rules with one sound task: a program that prints 1."""
    folder = tmp_path_factory.mktemp("code") / "tasks"
    manifest = manifest_of("code", {"thinking": "none"}, local_component().hash)
    one = task("one", "say 1", kind="stdin", tests=[{"input": "", "output": "1"}])
    with Scorers() as scorers:
        yield replace(rules(), task_set=write_task_set(folder, [NewPart("code", manifest, [one])]), scorers=scorers)


BAD_PROGRAMS = {
    "import os\nos.abort()": "test 0: stopped: trap",
    "while True: pass": "test 0: stopped: fuel",
    "print('1' * (1 << 24))": "test 0: ",
    "x = bytearray(1 << 30)": "test 0: MemoryError",
    "#" + "1" * (1 << 18): "no block of Python",
}


@pytest.mark.parametrize("program", BAD_PROGRAMS, ids=lambda program: program[:20])
def test_a_completion_that_breaks_its_call_is_worth_nothing_and_the_next_is_scored(code: Rules, program: str) -> None:
    score = code.score(0, tokens_of(f"```\n{program}\n```"))
    assert score.parts == (0,)
    assert score.reason.startswith(BAD_PROGRAMS[program]), score.reason
    assert code.score(0, SAID).parts == (MICRO,)


def test_a_machine_that_cannot_score_abstains(code: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns neither a zero nor a verdict: the caller tries again later."""
    monkeypatch.setattr("muster.sandbox.client.ATTEMPTS", 1)
    monkeypatch.setattr("sys.executable", "/bin/false")
    monkeypatch.setattr("muster.sandbox.client.in_namespaces", lambda command, readable: list(command))
    with Scorers() as scorers, pytest.raises(UnreachableError, match="did not answer"):
        replace(code, scorers=scorers).score(0, SAID)
