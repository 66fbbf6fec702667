"""Layout and update: packing changes nothing, micro-batches add up, one step moves the policy the right way."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import eager_attention_forward

from muster.errors import ConfigError
from muster.models.init import ModelShape, make_model, make_tokenizer
from muster.settings.recipes import Normaliser, OldLogprobs
from trainer.learner import update_metrics
from trainer.loss import LossTerms
from trainer.packing import Sample, collate, completion_tokens, first_fit, share_out
from trainer.policy import ATTENTION, HEAD_BYTES, Policy, check_model, scaled_logits, token_logprobs
from trainer.update import UpdateTerms, make_optimizer, token_batch, update

TOKENIZER = make_tokenizer()
SHAPE = ModelShape(hidden=32, layers=2, heads=1, intermediate=32)
TERMS = UpdateTerms(learning_rate=1e-3, warmup_steps=1, loss=LossTerms(mismatch_bound=50.0))


def sample(prompt: int, completion: int, advantage: float, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    return Sample(
        prompt=rng.integers(9, 105, prompt, dtype=np.int32),
        completion=rng.integers(9, 105, completion, dtype=np.int32),
        logprobs=np.full(completion, -4.6, dtype=np.float32),
        advantage=advantage,
    )


@pytest.fixture
def samples() -> list[Sample]:
    """Ragged, a single-token completion and equal lengths among them."""
    shapes = [(5, 3), (9, 1), (2, 12), (5, 3), (1, 7), (6, 6), (3, 2)]
    return [sample(p, c, (-1.0) ** i * (1 + i / 4), seed=i) for i, (p, c) in enumerate(shapes)]


def fresh_policy() -> Policy:
    return Policy(make_model(TOKENIZER, SHAPE, seed=2), temperature=1.0)


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(lengths, st.integers(1, 100))
def test_first_fit_loses_and_doubles_nothing_and_wastes_little(lengths: list[int], width: int) -> None:
    rows = first_fit(lengths, width)
    assert sorted(place for row in rows for place in row) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in row) <= width or len(row) == 1 for row in rows)
    loads = [sum(lengths[place] for place in row) for row in rows]
    assert all(one + other > width for one, other in combinations(loads, 2))  # or both would be in one row


def test_first_fit_by_hand() -> None:
    assert first_fit([3, 7, 5, 2, 4], 10) == [[1, 0], [2, 4], [3]]
    assert first_fit([30, 5], 10) == [[0], [1]]


@given(lengths, st.integers(1, 100), st.integers(1, 5))
def test_every_rank_gets_as_many_rows_and_every_sequence_goes_to_one(
    lengths: list[int], width: int, ranks: int
) -> None:
    rows = first_fit(lengths, width)
    shares = share_out(rows, lengths, ranks)
    assert len({len(share) for share in shares}) == 1
    assert sorted(place for share in shares for row in share for place in row) == list(range(len(lengths)))
    loads = [sum(lengths[place] for row in share for place in row) for share in shares]
    assert max(loads) - min(loads) <= 2 * max(sum(lengths[place] for place in row) for row in rows)


@pytest.mark.parametrize("width", [1, 16, 40, 10_000])
def test_each_completion_token_stands_behind_the_place_that_predicts_it(samples: list[Sample], width: int) -> None:
    weights = [1.0 + place for place in range(len(samples))]
    rows = [collate(samples, weights, row) for row in first_fit([s.length for s in samples], width)]
    seen = sorted(token for m in rows for token in m.targets.tolist())
    assert seen == sorted(token for s in samples for token in s.completion.tolist())
    assert sum(len(m.targets) for m in rows) == completion_tokens(samples) == 34
    for m in rows:
        assert torch.equal(m.ids[0, m.places + 1], m.targets)
        assert m.boundaries[-1] == m.ids.shape[1] == m.positions.shape[1]
        for start, stop in pairwise(m.boundaries):
            assert m.positions[0, start:stop].tolist() == list(range(stop - start))
        members = torch.tensor(m.members)[m.rollouts]
        assert torch.equal(m.weights, 1.0 + members)
        assert m.advantages.tolist() == pytest.approx([samples[i].advantage for i in members.tolist()])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)])
def test_packed_logprobs_are_those_of_each_rollout_alone(
    samples: list[Sample], temperature: float, heads: tuple[int, int]
) -> None:
    config = make_model(TOKENIZER, replace(SHAPE, heads=heads[0]), seed=2).config
    config.num_key_value_heads = heads[1]
    model = Qwen2ForCausalLM(config)
    expected, entropies = [], []
    for s in samples:
        ids = np.concatenate([s.prompt, s.completion])
        logits = model(torch.from_numpy(ids).long()[None]).logits[0] / temperature
        start = len(s.prompt)
        table = logits[start - 1 : -1].log_softmax(-1)
        expected.append(table.gather(1, torch.from_numpy(ids[start:]).long()[:, None])[:, 0])
        entropies.append(-(table.exp() * table).sum(-1))
    policy = Policy(model, temperature=temperature)
    together = token_batch(policy, collate(samples, [1.0] * len(samples), range(len(samples))), TERMS)
    assert torch.allclose(together.logprobs, torch.cat(expected), atol=1e-5)
    assert torch.allclose(together.entropy, torch.cat(entropies), atol=1e-5)


def test_a_token_never_sees_the_sequence_before_its_own(samples: list[Sample]) -> None:
    """Or the loss of a rollout would depend on its neighbours; and what a change in one does shows in it alone."""
    policy = fresh_policy()
    (before,) = first_fit([s.length for s in samples], 10_000)
    changed = [replace(s, prompt=s.prompt[::-1].copy()) if i == before[0] else s for i, s in enumerate(samples)]
    first, second = (policy(collate(each, [1.0] * 7, before))[0] for each in (samples, changed))
    at = samples[before[0]].completion_length
    assert torch.equal(first[at:], second[at:])
    assert not torch.equal(first[:at], second[:at])


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_head_in_pieces_has_the_values_and_gradients_of_the_whole(chunk: int, entropy_gradient: bool) -> None:
    torch.manual_seed(0)
    states = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    head = torch.randn(17, 6, dtype=torch.float64, requires_grad=True)
    targets, slopes = torch.randint(17, (10,)), torch.randn(2, 10)
    table = (states @ head.t() / 0.7).log_softmax(-1)
    whole = table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)
    used = 2 if entropy_gradient else 1
    expected = torch.autograd.grad(
        sum((w * s).sum() for w, s in zip(whole[:used], slopes, strict=False)), (states, head)
    )
    pieces = token_logprobs(states, head, targets, temperature=0.7, entropy_gradient=entropy_gradient, chunk=chunk)
    actual = torch.autograd.grad(
        sum((p * s).sum() for p, s in zip(pieces[:used], slopes, strict=False)), (states, head)
    )
    assert pieces[1].requires_grad == entropy_gradient
    for one, other in zip([*pieces, *actual], [*whole, *expected], strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-5)


def test_a_model_that_bends_its_logits_is_refused() -> None:
    policy = fresh_policy()
    check_model(policy)
    head = policy.model.lm_head
    head.register_forward_hook(lambda module, inputs, output: torch.tanh(output) * 30)
    with pytest.raises(ConfigError, match="scales or caps its logits"):
        check_model(policy)


def test_a_model_that_attends_in_another_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own way is what it writes out, such as capped scores that no packed attention knows of."""
    policy = Policy(make_model(TOKENIZER, SHAPE, seed=0), temperature=1.0)
    check_model(policy)

    def sharpened(*arguments: Any, scaling: float, **words: Any) -> Any:
        return eager_attention_forward(*arguments, scaling=2 * scaling, **words)

    monkeypatch.setattr("transformers.models.qwen2.modeling_qwen2.eager_attention_forward", sharpened)
    with pytest.raises(ConfigError, match="attends in a way that cannot be packed"):
        check_model(policy)
    assert policy.model.config._attn_implementation == ATTENTION  # noqa: SLF001  (as it was before it was asked)


def test_logits_of_a_large_vocabulary_never_exist_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(*arguments: Any) -> torch.Tensor:
        logits = scaled_logits(*arguments)
        sizes.append(logits.numel() * logits.element_size())
        return logits

    monkeypatch.setattr("trainer.policy.scaled_logits", counted)
    vocabulary, tokens = 152_000, 250
    states, head = torch.randn(tokens, 4, requires_grad=True), torch.randn(vocabulary, 4, requires_grad=True)
    logprobs, _ = token_logprobs(states, head, torch.arange(tokens))
    logprobs.sum().backward()
    assert max(sizes) <= HEAD_BYTES
    assert sum(sizes) == 2 * 4 * vocabulary * tokens  # forward, and once more backward


@pytest.mark.parametrize("normaliser", ["tokens", "rollouts", "constant"])
def test_micro_batches_add_up_to_the_whole_batch(samples: list[Sample], normaliser: Normaliser) -> None:
    loss = replace(TERMS.loss, normaliser=normaliser)
    found = []
    for width in (10_000, 20):
        policy = fresh_policy()
        terms = replace(TERMS, micro_batch_tokens=width, loss=loss, max_completion=12)
        report = update(policy, make_optimizer(policy, terms), samples, terms, step=1)
        found.append((report, policy.state_dict()))
    (whole, there), (cut, here) = found
    assert cut.loss == pytest.approx(whole.loss, rel=1e-4)
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert cut.tokens == whole.tokens == 34
    # Adam divides by the gradient's size, so compare what rounding of tiny gradients cannot turn around.
    moved = torch.cat([(there[n] - here[n]).flatten() for n in there])
    assert moved.abs().mean() < 1e-5


def on_policy(policy: Policy, samples: list[Sample]) -> list[Sample]:
    """Return the same rollouts as if this policy had sampled them."""
    with torch.no_grad():
        logprobs = policy(collate(samples, [1.0] * len(samples), range(len(samples))))[0]
    parts = logprobs.split([s.completion_length for s in samples])
    return [replace(s, logprobs=p.numpy()) for s, p in zip(samples, parts, strict=True)]


def test_a_step_makes_good_rollouts_likelier_and_bad_ones_less(samples: list[Sample]) -> None:
    policy = fresh_policy()
    sampled = on_policy(policy, samples)
    report = update(policy, make_optimizer(policy, TERMS), sampled, TERMS, step=1)
    assert report.mismatch_kl == pytest.approx(0.0, abs=1e-6)
    assert (report.clip_low, report.clip_high, report.dropped_rollouts, report.skipped) == (0, 0, 0, False)
    gains = [
        after.advantage * float((after.logprobs - before.logprobs).sum())
        for before, after in zip(sampled, on_policy(policy, samples), strict=True)
    ]
    assert sum(gains) > 0.1


def test_a_batch_in_several_steps_is_each_part_in_turn(samples: list[Sample]) -> None:
    """With the ratio to the samplers, two steps on halves are two updates on the halves."""
    both, apart = fresh_policy(), fresh_policy()
    terms = replace(TERMS, optimiser_steps=2)
    report = update(both, make_optimizer(both, terms), samples, terms, step=1)
    optimizer = make_optimizer(apart, TERMS)
    first, second = (update(apart, optimizer, part, TERMS, step=1) for part in (samples[:3], samples[3:]))
    assert report.tokens == first.tokens + second.tokens == 34
    assert report.loss == pytest.approx((first.loss + second.loss) / 2)
    assert report.grad_norm == max(first.grad_norm, second.grad_norm)
    assert all(torch.equal(value, apart.state_dict()[name]) for name, value in both.state_dict().items())


def test_old_logprobs_are_those_before_the_first_step_not_before_each(samples: list[Sample]) -> None:
    """INTELLECT-2's way: stale rollouts have ratio 1 in the first optimiser step, and not in the second."""
    policy = fresh_policy()
    terms = replace(TERMS, optimiser_steps=2, old_logprobs="recomputed", learning_rate=0.05, gradient_clip=1e9)
    stale = [replace(s, logprobs=s.logprobs - 0.5) for s in on_policy(policy, samples)]
    one = update(fresh_policy(), make_optimizer(policy, terms), stale[:3], replace(terms, optimiser_steps=1), step=1)
    assert (one.clip_low, one.clip_high) == (0, 0)
    assert one.mismatch_kl == pytest.approx(np.expm1(0.5) - 0.5, rel=1e-4)
    two = update(policy, make_optimizer(policy, terms), stale, terms, step=1)
    assert two.clip_low + two.clip_high > 0


def test_the_reference_pulls_the_policy_back(samples: list[Sample]) -> None:
    flat = [replace(s, advantage=0.0) for s in samples]
    terms = replace(TERMS, loss=replace(TERMS.loss, kl_coefficient=1.0), learning_rate=1e-2)
    policy, reference = fresh_policy(), Policy(make_model(TOKENIZER, SHAPE, seed=3), temperature=1.0)
    optimizer = make_optimizer(policy, terms)
    reports = [update(policy, optimizer, flat, terms, step=s, reference=reference) for s in range(1, 20)]
    assert reports[0].reference_kl > 0
    assert reports[-1].reference_kl < reports[0].reference_kl / 2


def test_the_learning_rate_ramps_and_equal_batches_give_equal_bits(samples: list[Sample]) -> None:
    terms = replace(TERMS, warmup_steps=10)
    states = []
    for _ in range(2):
        policy = fresh_policy()
        optimizer = make_optimizer(policy, terms)
        rates = [update(policy, optimizer, samples, terms, step=s).learning_rate for s in (1, 5, 10, 11)]
        states.append(policy.state_dict())
    assert rates == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_gradient_that_is_not_a_number_changes_nothing_and_names_who_may_be_to_blame(samples: list[Sample]) -> None:
    policy = fresh_policy()
    terms = replace(TERMS, micro_batch_tokens=16)
    optimizer = make_optimizer(policy, terms)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    poisoned = [*samples[:2], replace(samples[2], advantage=float("nan")), *samples[3:]]
    report = update(policy, optimizer, poisoned, terms, step=1)
    assert report.skipped
    assert 2 in report.suspects
    assert len(report.suspects) < len(samples)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())
    assert not optimizer.state
    assert not update(policy, optimizer, samples, terms, step=1).skipped


def test_without_a_rollout_to_learn_from_no_weight_moves(samples: list[Sample]) -> None:
    """Not even by momentum or decay: an optimiser step on nothing would be one."""
    policy = fresh_policy()
    optimizer = make_optimizer(policy, TERMS)
    assert not update(policy, optimizer, samples, TERMS, step=1).skipped
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    far = [replace(s, logprobs=s.logprobs - 100) for s in samples]
    report = update(policy, optimizer, far, TERMS, step=2)
    assert (report.tokens, report.dropped_rollouts, report.skipped) == (0, len(samples), False)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


@pytest.mark.parametrize(
    "loss",
    [
        LossTerms(mismatch_bound=50.0, mask_ratio_low=0.5, mask_ratio_high=5.0),
        LossTerms(mismatch_bound=50.0, mask_probability_difference=0.3),
    ],
)
@pytest.mark.parametrize("old_logprobs", ["behaviour", "recomputed"])
def test_masked_tokens_are_counted_and_without_others_no_weight_moves(
    samples: list[Sample], loss: LossTerms, old_logprobs: OldLogprobs
) -> None:
    policy, terms = fresh_policy(), replace(TERMS, loss=loss, old_logprobs=old_logprobs)
    optimizer = make_optimizer(policy, terms)
    first = update(policy, optimizer, samples, terms, step=1)
    assert (first.tokens, first.masked_tokens, first.skipped) == (34, 0, False)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    sure = [replace(s, logprobs=np.zeros_like(s.logprobs)) for s in samples]  # the policy gives each about 1 %
    report = update(policy, optimizer, sure, terms, step=2)
    assert (report.tokens, report.masked_tokens, report.dropped_rollouts, report.skipped) == (34, 34, 0, False)
    assert report.mismatch_kl > 1.0
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())
    assert update_metrics(report)["masked_tokens"] == 34


def test_vectors_are_not_decayed() -> None:
    optimizer = make_optimizer(fresh_policy(), replace(TERMS, weight_decay=0.3))
    decays = {p.ndim: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {2: 0.3, 1: 0.0}
