"""Layout and update: padding changes nothing, micro-batches add up, one step moves the policy the right way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from muster.models import ModelShape, make_model, make_tokenizer
from muster.rollouts.schema import Rollout
from trainer.layout import Sample, completion_tokens, micro_batches
from trainer.loss import LossTerms
from trainer.update import UpdateTerms, make_optimizer, token_batch, update

TOKENIZER = make_tokenizer()
SHAPE = ModelShape(hidden=32, layers=2, heads=1, intermediate=32)
TERMS = UpdateTerms(learning_rate=1e-3, ramp_steps=1, loss=LossTerms(mismatch_bound=50.0))


def sample(prompt: int, completion: int, advantage: float, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    rollout = Rollout(
        run=1,
        step=0,
        position=seed,
        group=0,
        sample=seed,
        task=0,
        seed=seed,
        budget=8,
        prompt_tokens=rng.integers(9, 105, prompt, dtype=np.int32),
        completion_tokens=rng.integers(9, 105, completion, dtype=np.int32),
        logprobs=np.full(completion, -4.6, dtype=np.float32),
        task_reward=0,
        length_reward=0,
        finish_reason="stop",
        proof=b"",
    )
    return Sample(rollout, advantage)


@pytest.fixture
def samples() -> list[Sample]:
    """Ragged, a single-token completion and equal lengths among them."""
    shapes = [(5, 3), (9, 1), (2, 12), (5, 3), (1, 7), (6, 6), (3, 2)]
    return [sample(p, c, (-1.0) ** i * (1 + i / 4), seed=i) for i, (p, c) in enumerate(shapes)]


def fresh_model():
    return make_model(TOKENIZER, SHAPE, seed=2)


@pytest.mark.parametrize("area", [1, 16, 40, 10_000])
def test_no_rollout_is_lost_or_doubled_whatever_the_area(samples: list[Sample], area: int) -> None:
    micro = list(micro_batches(samples, area=area, pad=0))
    targets = sorted(token for m in micro for token in m.targets.tolist())
    assert targets == sorted(token for s in samples for token in s.rollout.completion_tokens.tolist())
    assert sum(len(m.targets) for m in micro) == completion_tokens(samples) == 34
    assert sum(len(m.ids) for m in micro) == len(samples)
    assert all(m.ids.numel() <= area or len(m.ids) == 1 for m in micro)
    for m in micro:
        # Each target stands right behind the place that predicts it, in its own row.
        flat = m.ids.flatten()
        assert torch.equal(flat[m.places + 1], m.targets)
        assert torch.equal(m.places // m.ids.shape[1], m.rollouts)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_padded_logprobs_are_those_of_each_rollout_alone(samples: list[Sample], temperature: float) -> None:
    model = fresh_model()
    (micro,) = micro_batches(samples, area=10_000, pad=0)
    together = token_batch(model, micro, replace(TERMS, temperature=temperature))
    expected, entropies = [], []
    for s in sorted(samples, key=lambda s: s.length):
        ids = np.concatenate([s.rollout.prompt_tokens, s.rollout.completion_tokens])
        logits = model(torch.from_numpy(ids).long()[None]).logits[0] / temperature
        start = len(s.rollout.prompt_tokens)
        table = logits[start - 1 : -1].log_softmax(-1)
        expected.append(table.gather(1, torch.from_numpy(ids[start:]).long()[:, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
    assert torch.allclose(together.logprobs, torch.cat(expected), atol=1e-5)
    assert torch.allclose(together.entropy, torch.cat(entropies), atol=1e-5)


def test_micro_batches_add_up_to_the_whole_batch(samples: list[Sample]) -> None:
    weights = []
    for area in (10_000, 20):
        model = fresh_model()
        report = update(
            model, make_optimizer(model, TERMS), samples, replace(TERMS, micro_batch_area=area), step=1, pad=0
        )
        weights.append((report, model.state_dict()))
    (whole, there), (cut, here) = weights
    assert cut.loss == pytest.approx(whole.loss, rel=1e-4)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert cut.tokens == whole.tokens == 34
    # Adam divides by the gradient's size, so compare what rounding of tiny gradients cannot turn around.
    moved = torch.cat([(there[n] - here[n]).flatten() for n in there])
    assert moved.abs().mean() < 1e-5


def test_padding_tokens_change_nothing(samples: list[Sample]) -> None:
    model = fresh_model()
    batches = [next(micro_batches(samples, area=10_000, pad=pad)) for pad in (0, 77)]
    first, second = (token_batch(model, micro, TERMS).logprobs for micro in batches)
    assert not torch.equal(batches[0].ids, batches[1].ids)
    assert torch.equal(first, second)


def test_a_step_makes_good_rollouts_likelier_and_bad_ones_less(samples: list[Sample]) -> None:
    model = fresh_model()
    (micro,) = micro_batches(samples, area=10_000, pad=0)
    with torch.no_grad():
        before = token_batch(model, micro, TERMS).logprobs
    order = sorted(samples, key=lambda s: s.length)
    parts = before.split([len(s.rollout.completion_tokens) for s in order])
    on_policy = [
        Sample(replace(s.rollout, logprobs=part.numpy()), s.advantage) for s, part in zip(order, parts, strict=True)
    ]
    report = update(model, make_optimizer(model, TERMS), on_policy, TERMS, step=1, pad=0)
    assert report.kl == pytest.approx(0.0, abs=1e-6)
    assert (report.clip_low, report.clip_high, report.dropped_rollouts, report.skipped) == (0, 0, 0, False)
    with torch.no_grad():
        after = token_batch(model, micro, TERMS).logprobs
    gain = ((after - before) * micro.advantages).sum()
    assert gain > 0.1


def test_the_learning_rate_ramps_and_equal_batches_give_equal_bits(samples: list[Sample]) -> None:
    terms = replace(TERMS, ramp_steps=10)
    states = []
    for _ in range(2):
        model = fresh_model()
        optimizer = make_optimizer(model, terms)
        rates = [update(model, optimizer, samples, terms, step=s, pad=0).learning_rate for s in (1, 5, 10, 11)]
        states.append(model.state_dict())
    assert rates == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_gradient_that_is_not_a_number_changes_nothing(samples: list[Sample]) -> None:
    model = fresh_model()
    optimizer = make_optimizer(model, TERMS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    poisoned = [replace(samples[0], advantage=float("nan")), *samples[1:]]
    assert update(model, optimizer, poisoned, TERMS, step=1, pad=0).skipped
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state
    assert not update(model, optimizer, samples, TERMS, step=1, pad=0).skipped


def test_vectors_are_not_decayed() -> None:
    optimizer = make_optimizer(fresh_model(), replace(TERMS, weight_decay=0.3))
    decays = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {2: 0.3, 1: 0.0}
