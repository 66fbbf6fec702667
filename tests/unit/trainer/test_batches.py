"""Batches: the wait for files, the limit of staleness, the anchor, and the metrics of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster.constants import MICRO
from muster.environments.manifest import EnvironmentManifest
from muster.errors import MismatchError
from muster.models.init import make_tokenizer
from muster.rollouts.schema import Rollout
from muster.tasksets.build import NewPart, write_task_set
from testbed.samples.commitments import tokens_of
from testbed.samples.task_sets import ARITHMETIC, SOURCE, numbered, write_numbered
from testbed.samples.terms import terms_of
from testbed.samples.trainer import work_file, work_row
from trainer.advantages import AdvantageTerms
from trainer.batches import (
    Batch,
    BatchTerms,
    WorkFile,
    batch_metrics,
    check_rows,
    close_batch,
    reward_metrics,
    samples_of,
    too_stale,
    unended_thinking,
)

TERMS = BatchTerms(groups=2, max_files=3, async_level=2)


def test_a_batch_is_closed_when_enough_groups_teach_over_the_oldest_files():
    files = [
        work_file([1, 0, 1, 1], step=6, index=3),
        work_file([0, 1, 0, 0], step=5, index=2),
        work_file([0, 1, 1, 0], step=6, index=4),
    ]
    batch = close_batch(files, 6, TERMS)
    assert batch == Batch(6, (files[1].ref, files[0].ref))


def test_it_stays_open_while_too_few_groups_teach():
    files = [work_file([1, 1, 0, 0], index=0), work_file([1, 0, 1, 1], index=1)]
    assert close_batch(files, 5, TERMS) is None
    assert close_batch(files, 5, TERMS, at_last=True) == Batch(5, (files[0].ref, files[1].ref))


def test_files_that_teach_nothing_do_not_keep_the_trainer_waiting_for_ever():
    useless = [work_file([1, 1, 0, 0], index=i) for i in range(5)]
    assert close_batch(useless, 5, TERMS, at_last=True) is None
    batch = close_batch([*useless[:2], work_file([1, 0, 0, 0], index=9)], 5, TERMS)
    assert batch is not None
    assert [ref.index for ref in batch.files] == [0, 1, 9]


@pytest.mark.parametrize(("policy_step", "used"), [(2, False), (3, True), (5, True), (6, False)])
def test_only_files_within_the_async_level_are_trained_on(policy_step: int, used: bool):
    file = work_file([1, 0, 0, 1], step=policy_step)
    assert (close_batch([file], 5, TERMS) is not None) == used
    assert (too_stale([file], 5, TERMS.async_level) == [file]) == (policy_step < 3)


def test_a_closed_batch_is_read_as_it_was_written():
    files = [work_file([1, 0, 1, 0], index=i).ref for i in range(3)]
    files[1] = replace(files[1], grades="[[0,0,[0],0]]", verdicts=("0x" + "0a" * 32, "0x" + "0b" * 32))
    batch = Batch(5, tuple(files))
    assert Batch.from_json(batch.to_json()) == batch


def test_only_groups_that_teach_become_samples_and_their_advantages_are_exact():
    samples = samples_of([work_file([1, 0, 1, 1])], AdvantageTerms(length_weight=0.0))
    assert [(s.position, round(s.advantage, 4)) for s in samples] == [(0, 1.0), (1, -1.0)]


def test_metrics_are_over_all_rollouts():
    file = work_file([1, 0, 1, 1], step=4)
    metrics = batch_metrics([replace(file, rollouts=(*file.rollouts[:3], work_row(3, 1, step=4, length=8)))], 5)
    assert metrics["reward"] == 0.75
    assert metrics["reward_std"] == 0.5  # of 1, 0, 1, 1, as TRL takes it: over the whole batch, n - 1
    assert metrics["frac_reward_zero_std"] == 0.5
    assert metrics["completions/mean_length"] == 5.0
    assert metrics["completions/length_error"] == 0.25
    assert metrics["completions/mean_budget"] == 4.0
    assert metrics["batch/completion_tokens"] == 20.0
    assert metrics["staleness/mean"] == 1.0
    assert (metrics["staleness/0"], metrics["staleness/1"], "staleness/2" in metrics) == (0.0, 1.0, False)


def test_reward_is_reported_by_part_when_there_are_several(tmp_path: Path):
    """The set has two parts, and one of them scores two parts: each gets a row with its exact mean."""
    both = EnvironmentManifest("sorting", options={"thinking": "tags"}, weights={"correct": 600_000, "format": 400_000})
    parts = [
        NewPart("easy", ARITHMETIC, numbered(3, "e"), 1, [SOURCE]),
        NewPart("hard", both, numbered(3, "h"), 1, [SOURCE]),
    ]
    task_set = write_task_set(tmp_path / "two", parts, [])
    slots = {task_set.part(slot).name: slot for slot in (0, task_set.size - 1)}
    rows = [
        replace(work_row(0, 1, step=5), task=slots["easy"], task_reward=MICRO, parts=np.array([MICRO])),
        replace(work_row(1, 0, step=5), task=slots["easy"], task_reward=0, parts=np.array([0])),
        replace(work_row(2, 0, step=5), task=slots["hard"], task_reward=400_000, parts=np.array([0, MICRO])),
        replace(work_row(3, 0, step=5), task=slots["hard"], task_reward=0, parts=np.array([], np.int64)),  # not graded
        replace(work_row(3, 0, step=5), task=task_set.size, task_reward=MICRO, parts=np.array([MICRO])),
    ]
    file = replace(work_file([1, 0, 1, 1]), rollouts=tuple(rows))
    assert reward_metrics([file], task_set, UNSEALED) == {
        "rewards/easy/mean": 0.5,
        "rewards/hard/mean": 0.2,
        "rewards/correct/mean": pytest.approx(1 / 3),
        "rewards/format/mean": 1.0,
    }
    one = write_numbered(tmp_path / "one", (5,))
    alone = replace(file, rollouts=(replace(work_row(0, 1, step=5), task=1, parts=np.array([MICRO])),))
    assert reward_metrics([alone], one, UNSEALED) == {}, "it is the reward itself"


def test_completions_without_a_reward_are_looked_at_for_the_end_of_their_thinking(tmp_path: Path):
    answers = write_numbered(tmp_path / "answers", (5,))
    thinking = replace(ARITHMETIC, options={"thinking": "tags"})
    thinks = write_task_set(tmp_path / "thinks", [NewPart("tags", thinking, numbered(3, "t"), 1, [SOURCE])], [])
    tokenizer = make_tokenizer()

    def file(*rows: tuple[int, str]) -> WorkFile:
        made = [
            replace(work_row(0, reward, step=5), task=1, completion_tokens=tokens_of(text)) for reward, text in rows
        ]
        return replace(work_file([]), rollouts=tuple(made))

    mixed = file((0, "1 2 3"), (0, "1</think>2"), (1, "unread"), (0, "</think"))
    assert unended_thinking([mixed], thinks, UNSEALED, tokenizer) == {"completions/unended_thinking": 0.5}
    assert unended_thinking([mixed], answers, UNSEALED, tokenizer) == {}
    assert unended_thinking([], thinks, UNSEALED, tokenizer) == {}


UNSEALED = terms_of()


def four_rows() -> tuple[Rollout, ...]:
    return work_file([1, 0, 0, 1]).rollouts


FOUR: Any = SimpleNamespace(positions=4, group_size=2, max_prompt_tokens=3, max_completion_tokens=4)
VOCABULARY = 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position": 2}, "row 1 says it is row 2"),
        ({"step": 6}, "of step 6"),
        ({"completion_tokens": np.zeros(0, np.int32)}, "the spans end at 4, the completion at 0"),
        ({"spans": np.array([1, 4], np.int32)}, "2 spans"),
        ({"logprobs": np.zeros(3, np.float32)}, "3 logprobs"),
        ({"prompt_tokens": np.zeros(0, np.int32)}, "no prompt"),
        ({"prompt_tokens": np.zeros(4, np.int32)}, "4 and 4 tokens, more than"),
        (
            {
                "completion_tokens": np.zeros(5, np.int32),
                "spans": np.array([5], np.int32),
                "logprobs": np.zeros(5, np.float32),
            },
            "3 and 5 tokens, more",
        ),
        ({"length_reward": 1}, "length reward of 1"),
        ({"budget": 4, "length_reward": -(1 << 62)}, "length reward of -46"),
        ({"budget": 0}, "a thinking budget of 0"),
        ({"task_reward": 1_000_001}, "a task reward of 1000001"),
        ({"task_reward": -1}, "a task reward of -1"),
        ({"prompt_tokens": np.array([0, VOCABULARY], np.int32)}, "beyond the model's 4"),
        ({"completion_tokens": np.array([0, 1, -1, 2], np.int32)}, "beyond the model's 4"),
        ({"logprobs": np.array([-1, -np.inf, -1, -1], np.float32)}, "not finite"),
        ({"logprobs": np.array([-1, np.nan, -1, -1], np.float32)}, "not finite"),
    ],
)
def test_rows_that_no_update_can_be_about_are_refused(changes: dict[str, Any], says: str) -> None:
    rows, ref = four_rows(), work_file([1, 0, 0, 1]).ref
    check_rows(rows, 1, ref, FOUR, VOCABULARY)
    with pytest.raises(MismatchError, match=says):
        check_rows([rows[0], replace(rows[1], **changes), *rows[2:]], 1, ref, FOUR, VOCABULARY)


def test_a_file_of_too_few_rows_is_refused() -> None:
    with pytest.raises(MismatchError, match="3 rows; a commitment has 4"):
        check_rows(four_rows()[:3], 1, work_file([1, 0, 0, 1]).ref, FOUR, VOCABULARY)
