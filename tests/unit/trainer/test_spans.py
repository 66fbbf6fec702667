"""What a policy was given is in the sequence that is trained on, and never in the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from muster.environments.rewards import length_reward
from muster.models.init import ModelShape, make_model, make_tokenizer
from muster.rollouts.spans import sampled_length
from testbed.samples.rollouts import make_row
from testbed.samples.trainer import work_file
from trainer.advantages import length_parts
from trainer.batches import batch_metrics
from trainer.distributed import samples_from_tensors, samples_to_tensors
from trainer.loss import LossTerms
from trainer.packing import Sample, collate, completion_tokens
from trainer.policy import Policy
from trainer.update import UpdateTerms, update

TOKENIZER = make_tokenizer()
SHAPE = ModelShape(hidden=32, layers=2, heads=1, intermediate=32)


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


def test_the_mask_has_the_rows_length_whatever_the_spans_say() -> None:
    for spans in ([], [6], [2, 4, 6], [2], [2, 4], [2, 4, 9], [9, 12]):
        sample = replace(Sample.from_rollout(turns_row(), 1.0), spans=np.array(spans, np.int32))
        assert len(sample.mask) == 6
        assert sample.completion_length + sample.given_length == 6


@pytest.mark.parametrize("budget", range(1, 50))
def test_the_length_part_is_what_the_length_reward_counted(budget: int) -> None:
    rows = [replace(turns_row(), budget=budget, length_reward=length_reward(budget, n)) for n in range(1, 400)]
    expected = [-abs(n - budget) for n in range(1, 400)]
    assert length_parts(rows, "token").tolist() == expected
    assert length_parts(rows, "budget").tolist() == pytest.approx([miss / budget for miss in expected])


def test_tool_use_is_in_the_metrics() -> None:
    file = work_file([1, 0, 1, 1])
    rows = (replace(file.rollouts[0], call_fuel=np.array([3, 1])), *file.rollouts[1:])
    assert batch_metrics([replace(file, rollouts=rows)], 5)["tools/call_frequency"] == 0.5


# Cross-entropy on given tokens


def conversations() -> list[Sample]:
    rng = np.random.default_rng(3)
    spans = [[4, 9, 12], [5], [2, 3, 5, 9, 11]]
    made = []
    for place, ends in enumerate(np.array(one, np.int32) for one in spans):
        ids = rng.integers(9, 105, 4 + int(ends[-1]), dtype=np.int32)
        logprobs = np.full(sampled_length(ends), -4.6, np.float32)
        made.append(Sample(ids[:4], ids[4:], logprobs, (-1.0) ** place, spans=ends))
    return made


def gradient_of(samples: list[Sample], coefficient: float, **terms) -> torch.Tensor:
    policy = Policy(make_model(TOKENIZER, SHAPE, seed=2), temperature=1.0)
    loss = LossTerms(**{"mismatch_bound": 50.0, "given_coefficient": coefficient} | terms)
    asked = UpdateTerms(learning_rate=1.0, warmup_steps=1, gradient_clip=1e9, micro_batch_tokens=17, loss=loss)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    before = [p.detach().clone() for p in policy.parameters()]
    report = update(policy, optimizer, samples, asked, step=1)
    assert not report.skipped
    return torch.cat([(b - p.detach()).flatten() for b, p in zip(before, policy.parameters(), strict=True)])


def cross_entropy_gradient(samples: list[Sample]) -> torch.Tensor:
    """By transformers and torch alone: the mean over given tokens of all conversations."""
    model = make_model(TOKENIZER, SHAPE, seed=2)
    total, count = torch.zeros(()), 0
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt, sample.completion]).astype(np.int64))
        labels = torch.where(torch.from_numpy(np.concatenate([np.ones(4, bool), sample.mask])), -100, ids)
        total = total + torch.nn.functional.cross_entropy(
            model(ids[None]).logits[0, :-1], labels[1:], ignore_index=-100, reduction="sum"
        )
        count += int((labels != -100).sum())
    (total / count).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_cross_entropy_on_given_tokens_adds_its_own_gradient_and_no_other() -> None:
    samples = conversations()
    added = gradient_of(samples, 0.25) - gradient_of(samples, 0.0)
    expected = 0.25 * cross_entropy_gradient(samples)
    assert float(expected.norm()) > 0.01
    assert torch.allclose(added, expected, atol=1e-5)


def test_rollouts_that_are_left_out_are_left_out_of_the_cross_entropy() -> None:
    samples = conversations()
    liar = replace(samples[0], logprobs=samples[0].logprobs - 40)
    kept = gradient_of([liar, *samples[1:]], 1.0, mismatch_bound=20.0)
    without = gradient_of([liar, *samples[1:]], 0.0, mismatch_bound=20.0)
    share = 5 / sum(sample.given_length for sample in samples)  # of the one other conversation with given tokens
    assert torch.allclose(kept - without, share * cross_entropy_gradient([samples[2]]), atol=1e-5)
