"""What a policy was given is in the sequence that is trained on, and never in the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.constants import MICRO
from testbed.samples.rollouts import make_row
from trainer.advantages import length_parts
from trainer.distributed import samples_from_tensors, samples_to_tensors
from trainer.packing import Sample, collate, completion_tokens


def turns_row(position: int = 0):
    row = make_row(position, length=6)
    return replace(row, spans=np.array([2, 4, 6], np.int32), logprobs=np.array([-1, -2, -3, -4], np.float32))


def test_only_sampled_tokens_are_targets_and_each_has_its_own_logprob() -> None:
    row = turns_row()
    sample = Sample.from_rollout(row, 1.0)
    assert (sample.completion_length, len(sample.mask)) == (4, 6)
    batch = collate([sample, Sample.from_rollout(make_row(1, length=3), 1.0)], [0.5, 0.25], [0, 1])
    begin, length = len(row.prompt_tokens), len(row.prompt_tokens) + 6
    assert batch.ids[0, :length].tolist() == [*row.prompt_tokens, *row.completion_tokens]
    assert batch.targets[:4].tolist() == row.completion_tokens[[0, 1, 4, 5]].tolist()
    assert batch.places[:4].tolist() == [begin - 1, begin, begin + 3, begin + 4]
    assert batch.behaviour_logprobs[:4].tolist() == [-1, -2, -3, -4]
    assert batch.ids[0][batch.places + 1].tolist() == batch.targets.tolist()
    assert len(batch.weights) == len(batch.rollouts) == len(batch.advantages) == 7


def test_ranks_get_the_spans_too() -> None:
    samples = [Sample.from_rollout(turns_row(), 1.0), Sample.from_rollout(make_row(1, length=3), -1.0)]
    back = samples_from_tensors(samples_to_tensors(samples))
    for before, after in zip(samples, back, strict=True):
        assert np.array_equal(before.mask, after.mask)
        assert np.array_equal(before.logprobs, after.logprobs)
    assert completion_tokens(back) == 7


def test_the_length_that_is_rewarded_is_what_was_sampled() -> None:
    row = replace(turns_row(), budget=4, task_reward=MICRO)
    assert length_parts([row], "tokens").tolist() == [0.0]
