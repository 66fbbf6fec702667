"""Loss and advantages on numbers worked out by hand, and what must not depend on how a batch is cut."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import AdvantageTerms, group_advantages, has_signal
from trainer.loss import LossReport, LossTerms, TokenBatch, policy_loss, token_weight

TERMS = LossTerms(epsilon=0.2, delta=4.0, mismatch_bound=10.0)


def batch(
    ratios: list[float], advantages: list[float], rollouts: list[int] | None = None, *, tokens: int = 1
) -> TokenBatch:
    """Tokens whose ratio to the sampler is given, in a global batch of so many; the sampler said -1 everywhere."""
    behaviour = torch.full((len(ratios),), -1.0)
    logprobs = (behaviour + torch.tensor(ratios).log()).requires_grad_()
    return TokenBatch(
        logprobs=logprobs,
        behaviour_logprobs=behaviour,
        advantages=torch.tensor(advantages),
        weights=torch.full((len(ratios),), 1 / tokens),
        entropy=torch.full((len(ratios),), 0.5),
        rollouts=torch.tensor(rollouts or [0] * len(ratios)),
    )


def loss_and_gradient(tokens: TokenBatch, terms: LossTerms = TERMS) -> tuple[float, list[float]]:
    report = policy_loss(tokens, terms)
    report.loss.backward()
    assert tokens.logprobs.grad is not None
    return float(report.loss.detach()), tokens.logprobs.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # the upper clip: a good token may only become so much likelier
        (0.5, 2.0, -1.0, -1.0),  # a good token that became unlikely is pulled back
        (0.5, -2.0, 1.6, 0.0),  # the lower clip
        (1.5, -2.0, 3.0, 3.0),  # a bad token that became likelier is pushed down …
        (5.0, -2.0, 8.0, 0.0),  # … but beyond δ it has no more weight: the second side of the clip
    ],
)
def test_two_sided_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    actual, slope = loss_and_gradient(batch([ratio], [advantage]))
    assert actual == pytest.approx(loss, rel=1e-5)
    assert slope[0] == pytest.approx(gradient, rel=1e-5)


def test_every_token_of_the_global_batch_weighs_the_same() -> None:
    ratios, advantages = [1.0, 1.1, 0.9, 1.5, 0.5], [1.0, -1.0, 0.5, 1.0, -2.0]
    whole, gradient = loss_and_gradient(batch(ratios, advantages, [0, 0, 1, 1, 1], tokens=5))
    first, gradient_a = loss_and_gradient(batch(ratios[:2], advantages[:2], tokens=5))
    second, gradient_b = loss_and_gradient(batch(ratios[2:], advantages[2:], tokens=5))
    assert whole == pytest.approx((-1.0 + 1.1 - 0.45 - 1.2 + 1.6) / 5, rel=1e-5)
    assert first + second == pytest.approx(whole, rel=1e-5)
    assert gradient_a + gradient_b == pytest.approx(gradient)


def test_metrics_by_hand() -> None:
    report = policy_loss(batch([1.0, 1.5, 1.5, 0.5, 5.0], [1.0, 1.0, -1.0, -1.0, -1.0]), TERMS)
    assert (report.tokens, report.dropped_rollouts) == (5, 0)
    assert report.clipped_high == 2  # 1.5 with a good advantage, 5.0 beyond δ with a bad one
    assert report.clipped_low == 1
    assert report.entropy == pytest.approx(2.5)
    k3 = [r - 1 - math.log(r) for r in (1.0, 1.5, 1.5, 0.5, 5.0)]
    assert report.mismatch_kl == pytest.approx(sum(k3), rel=1e-5)


def test_a_rollout_that_disagrees_beyond_the_bound_is_left_out_whole() -> None:
    terms = LossTerms(mismatch_bound=0.5)
    far = math.exp(1.2)
    # Rollout 1 disagrees by 1.2 and 0 nats: 0.6 in the mean. Rollout 2 by 0.4 in the mean.
    tokens = batch([1.0, far, 1.0, math.exp(0.4), math.exp(-0.4)], [1.0] * 5, [0, 1, 1, 2, 2])
    report = policy_loss(tokens, terms)
    report.loss.backward()
    assert (report.tokens, report.dropped_rollouts) == (3, 1)
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad[1:3].tolist() == [0.0, 0.0]
    assert tokens.logprobs.grad[0] != 0.0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_rollout_does_not_poison_the_batch(poison: float) -> None:
    clean = batch([1.0, 1.1], [1.0, 1.0], [0, 1], tokens=2)
    behaviour = clean.behaviour_logprobs.clone()
    behaviour[1] = poison
    tokens = replace(clean, behaviour_logprobs=behaviour)
    report = policy_loss(tokens, TERMS)
    assert float(report.loss.detach()) == pytest.approx(-0.5)
    assert (report.tokens, report.dropped_rollouts) == (1, 1)
    report.loss.backward()
    assert tokens.logprobs.grad is not None
    assert torch.isfinite(tokens.logprobs.grad).all()


def test_one_absurd_token_within_the_bound_keeps_the_gradient_finite() -> None:
    count = 100
    behaviour = torch.zeros(count)
    behaviour[7] = -300.0
    logprobs = torch.zeros(count, requires_grad=True)
    even = batch([1.0] * count, [1.0] * count, tokens=count)
    report = policy_loss(replace(even, logprobs=logprobs, behaviour_logprobs=behaviour), TERMS)
    report.loss.backward()
    assert (report.tokens, float(report.loss.detach())) == (count, pytest.approx(-(99 + 1.2) / 100))
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.01 if i != 7 else 0.0 for i in range(count)])


def test_entropy_bonus() -> None:
    terms = LossTerms(entropy_coefficient=0.1, mismatch_bound=10.0)
    assert loss_and_gradient(batch([1.0, 1.0], [0.0, 0.0], tokens=2), terms)[0] == pytest.approx(-0.05)


def test_the_upper_clip_may_be_wider_than_the_lower() -> None:
    terms = replace(TERMS, epsilon_high=0.28)
    assert loss_and_gradient(batch([1.27], [1.0]), terms) == (pytest.approx(-1.27), [pytest.approx(-1.27)])
    assert loss_and_gradient(batch([1.5], [1.0]), terms) == (pytest.approx(-1.28), [0.0])
    assert loss_and_gradient(batch([0.75], [-1.0]), terms) == (pytest.approx(0.8), [0.0])


def test_without_delta_a_bad_token_that_became_likelier_keeps_its_weight() -> None:
    loss, gradient = loss_and_gradient(batch([9.0], [-1.0]), replace(TERMS, delta=None))
    assert (loss, gradient[0]) == (pytest.approx(9.0), pytest.approx(9.0))


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens() -> None:
    # Ratios 4 and 1/4 cancel; 1.21 and 1 have mean 1.1. Each token then has its rollout's ratio, and the gradient of
    # the mean goes to all of them alike.
    terms = replace(TERMS, ratio="sequence", mismatch_bound=10.0)
    loss, gradient = loss_and_gradient(batch([4.0, 0.25, 1.21, 1.0], [1.0, 1.0, 2.0, 2.0], [0, 0, 1, 1]), terms)
    assert loss == pytest.approx(-(1 + 1 + 2.2 + 2.2))
    assert gradient == pytest.approx([-1.0, -1.0, -2.2, -2.2])


def test_the_ratio_may_be_to_the_trainers_own_old_policy() -> None:
    tokens = batch([1.5], [2.0])
    old = tokens.logprobs.detach() - math.log(1.1)
    assert loss_and_gradient(replace(tokens, old_logprobs=old))[0] == pytest.approx(-2.2)
    # Whether a rollout is left out is decided by how far the old policy was from the sampler: what this batch's own
    # optimiser steps moved since is no disagreement.
    far, near = replace(TERMS, mismatch_bound=math.log(1.5 / 1.1) - 0.01), replace(TERMS, mismatch_bound=0.35)
    for terms, dropped in ((far, 1), (near, 0)):
        report = policy_loss(replace(tokens, old_logprobs=old), terms)
        assert report.dropped_rollouts == dropped
    ratio = 1.5 / 1.1
    assert report.mismatch_kl == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-4)


def test_the_kl_term_has_a_gradient() -> None:
    """INTELLECT-2's had none. k3 = r − 1 − log r with r = reference / policy; its slope is 1 − r."""
    terms = replace(TERMS, kl_coefficient=0.5)
    tokens = batch([1.0, 1.0], [0.0, 0.0])
    reference = tokens.logprobs.detach() + torch.tensor([math.log(2.0), math.log(0.5)])
    report = policy_loss(replace(tokens, reference_logprobs=reference), terms)
    report.loss.backward()
    k3 = (2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))
    assert float(report.loss.detach()) == pytest.approx(0.5 * k3)
    assert report.reference_kl == pytest.approx(k3)
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == pytest.approx([-0.5, 0.25])


# --- Masks

ICEPOP = replace(TERMS, mask_ratio_low=0.5, mask_ratio_high=5.0, delta=None)
DIFFERENCE = replace(TERMS, mask_probability_difference=0.25)


def masked(
    trainer: list[float], sampler: list[float], *, ratios: list[float] | None = None, advantage: float = 1.0
) -> TokenBatch:
    """Tokens with these probabilities by the old policy and the sampler, and these ratios to the old policy."""
    old = torch.tensor(trainer).log()
    tokens = batch(ratios or [1.0] * len(trainer), [advantage] * len(trainer))
    logprobs = (old + torch.tensor(ratios or [1.0] * len(trainer)).log()).requires_grad_()
    return replace(tokens, logprobs=logprobs, behaviour_logprobs=torch.tensor(sampler).log(), old_logprobs=old)


@pytest.mark.parametrize(
    ("trainer", "sampler", "weight"),
    [
        (0.5, 0.5, 1.0),
        (0.8, 0.5, 1.6),
        (0.3, 0.5, 0.6),
        (0.5, 1.0, 0.5),  # on α, which is still within
        (0.499, 1.0, 0.0),
        (1.0, 0.2, 5.0),  # on β
        (1.0, 0.199, 0.0),
        (1e-30, 1.0, 0.0),  # nothing overflows far outside
        (1.0, 1e-30, 0.0),
    ],
)
def test_icepop_weighs_a_token_by_k_within_its_bounds_and_by_nothing_outside(
    trainer: float, sampler: float, weight: float
) -> None:
    terms = replace(ICEPOP, mismatch_bound=100.0)
    loss, gradient = loss_and_gradient(masked([trainer], [sampler], ratios=[1.1], advantage=2.0), terms)
    assert loss == pytest.approx(-weight * 2.2, rel=1e-5)
    assert gradient == [pytest.approx(-weight * 2.2, rel=1e-5)]
    assert (gradient == [0.0]) == (weight == 0.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(1.5, 2.0, -2.4, 0.0), (0.5, 2.0, -1.0, -1.0), (0.5, -2.0, 1.6, 0.0), (9.0, -2.0, 18.0, 18.0)],
)
def test_icepops_weight_is_a_factor_of_the_clipped_objective(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    """k = 2 here. It is no part of the ratio, so it does not move the clip."""
    found = loss_and_gradient(masked([0.5], [0.25], ratios=[ratio], advantage=advantage), ICEPOP)
    assert found == (pytest.approx(2 * loss, rel=1e-5), [pytest.approx(2 * gradient, rel=1e-5)])


def test_without_old_log_probabilities_the_ratio_has_icepops_weight_already() -> None:
    """Ratios to the sampler of 1.1 and 0.9, within the bounds, count once; 0.4 and 6 are masked."""
    terms = replace(ICEPOP, mismatch_bound=10.0)
    tokens = batch([1.1, 0.9, 0.4, 6.0], [1.0] * 4)
    report = policy_loss(tokens, terms)
    loss, gradient = loss_and_gradient(tokens, terms)
    assert loss == pytest.approx(-2.0, rel=1e-5)
    assert gradient == [pytest.approx(-1.1, rel=1e-5), pytest.approx(-0.9, rel=1e-5), 0.0, 0.0]
    assert (report.tokens, report.masked_tokens) == (4, 2)


@pytest.mark.parametrize(
    ("trainer", "sampler", "kept"),
    [
        (0.5, 0.5, True),
        (0.7, 0.5, True),
        (0.76, 0.5, False),
        (0.3, 0.5, True),
        (0.24, 0.5, False),
        (0.25, 0.5, True),  # on the bound
        (0.5, 0.25, True),
        (0.2, 1e-6, True),  # a ratio of 200,000, but a small difference
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_token_is_masked_by_how_far_its_probabilities_differ(
    trainer: float, sampler: float, kept: bool, advantage: float
) -> None:
    terms = replace(DIFFERENCE, mismatch_bound=100.0)
    tokens = masked([trainer], [sampler], ratios=[1.1], advantage=advantage)
    loss, gradient = loss_and_gradient(tokens, terms)
    expected = -1.1 * advantage if kept else 0.0
    assert (loss, gradient) == (pytest.approx(expected, rel=1e-5), [pytest.approx(expected, rel=1e-5)])
    assert (gradient == [0.0]) != kept
    assert policy_loss(tokens, terms).masked_tokens == (not kept)


def test_a_difference_of_probability_may_be_to_the_current_policy() -> None:
    sampler = torch.tensor([0.5, 0.5])
    logprobs = torch.tensor([0.55, 0.8]).log().requires_grad_()
    tokens = replace(batch([1.0, 1.0], [1.0, 1.0]), logprobs=logprobs, behaviour_logprobs=sampler.log())
    assert loss_and_gradient(tokens, DIFFERENCE)[1] == [pytest.approx(-1.1, rel=1e-5), 0.0]


def test_a_token_stays_only_within_both_masks() -> None:
    both = replace(ICEPOP, mask_probability_difference=0.25)
    tokens = masked([0.5, 0.09, 0.8, 0.9], [0.5, 0.3, 0.5, 0.1])  # the second is below α, the third too different
    assert loss_and_gradient(tokens, both)[1] == [pytest.approx(-1.0), 0.0, 0.0, 0.0]
    assert policy_loss(tokens, both).masked_tokens == 3


def test_a_masked_token_keeps_its_kl_term_and_its_place_in_the_means() -> None:
    terms = replace(DIFFERENCE, kl_coefficient=0.5)
    tokens = masked([0.5, 0.9], [0.5, 0.1], ratios=[1.5, 1.5])
    reference = tokens.logprobs.detach() + math.log(2.0)
    loss, gradient = loss_and_gradient(replace(tokens, reference_logprobs=reference), terms)
    assert loss == pytest.approx(-1.2 + 2 * 0.5 * (1 - math.log(2)), rel=1e-5)
    assert gradient == pytest.approx(
        [-0.5, -0.5]
    )  # the clip removed the first token's policy term, the mask the second's
    report = policy_loss(replace(tokens, reference_logprobs=reference), terms)
    assert (report.tokens, report.masked_tokens, report.clipped_high) == (2, 1, 1)
    assert report.mismatch_kl == pytest.approx(9 - 1 - math.log(9), rel=1e-5)
    assert report.entropy == pytest.approx(1.0)


def test_a_masked_token_counts_as_one_in_the_ratio_of_a_sequence() -> None:
    terms = replace(DIFFERENCE, ratio="sequence")
    loss, gradient = loss_and_gradient(masked([0.5, 0.9], [0.5, 0.1], ratios=[1.21, 3.0]), terms)
    assert (loss, gradient) == (pytest.approx(-1.1, rel=1e-5), [pytest.approx(-0.55, rel=1e-5), 0.0])


@pytest.mark.parametrize("terms", [ICEPOP, DIFFERENCE])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_no_poison_reaches_the_gradient_through_a_mask(terms: LossTerms, poison: float) -> None:
    """A claim that is no number costs its own rollout; a masked token without a ratio costs itself."""
    clean = masked([0.5, 0.5, 0.5], [0.5, 0.5, 1e-30])
    sampler = clean.behaviour_logprobs.clone()
    sampler[1] = poison
    logprobs = clean.logprobs.detach().clone()
    logprobs[2] = float("nan")
    tokens = replace(
        clean, rollouts=torch.tensor([0, 1, 2]), behaviour_logprobs=sampler, logprobs=logprobs.requires_grad_()
    )
    wide = replace(terms, mismatch_bound=1000.0)
    report = policy_loss(tokens, wide)
    assert (report.tokens, report.masked_tokens, report.dropped_rollouts) == (2, 1, 1)
    assert loss_and_gradient(tokens, wide) == (pytest.approx(-1.0), [pytest.approx(-1.0), 0.0, 0.0])


@given(st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 3)), min_size=1, max_size=16))
def test_claimed_logprobs_have_a_bounded_effect_through_a_mask(tokens: list[tuple[float, float]]) -> None:
    """For every claim, a token's slope is 0 or its own times α to β. With the difference mask it is 0 or its own."""
    old = torch.tensor([logprob for logprob, _ in tokens])
    claimed = old + torch.tensor([lie for _, lie in tokens])
    clean = batch([1.0] * len(tokens), [1.0] * len(tokens))
    for terms, least, largest in ((ICEPOP, 0.5, 5.0), (DIFFERENCE, 1.0, 1.0)):
        logprobs = old.clone().requires_grad_()
        made = replace(clean, logprobs=logprobs, behaviour_logprobs=claimed, old_logprobs=old)
        slopes = [-slope for slope in loss_and_gradient(made, replace(terms, mismatch_bound=100.0))[1]]
        assert all(slope == 0.0 or least * 0.999 <= slope <= largest * 1.001 for slope in slopes)


def test_token_weight_matches_values_computed_by_hand() -> None:
    batch_of = {"tokens": 100, "rollouts": 4, "limit": 50}
    assert token_weight("tokens", length=10, **batch_of) == 0.01
    assert token_weight("rollouts", length=10, **batch_of) == 0.025
    assert token_weight("constant", length=10, **batch_of) == 0.005


def test_no_tokens_is_no_loss() -> None:
    empty = torch.zeros(0)
    report: LossReport = policy_loss(TokenBatch(empty, empty, empty, empty, empty, empty.long()), TERMS)
    assert (float(report.loss), report.tokens) == (0.0, 0)


# --- Advantages

MICRO_REWARDS = np.asarray([1_000_000, 0, 0, 0], dtype=np.int64)
NO_LENGTH = np.zeros(4)


def test_advantages_of_one_right_answer_in_four() -> None:
    # mean 1/4, standard deviation √3/4
    scaled = group_advantages(MICRO_REWARDS, NO_LENGTH, AdvantageTerms(std_floor=0.0))
    assert scaled.tolist() == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3])
    plain = group_advantages(MICRO_REWARDS, NO_LENGTH, AdvantageTerms(scale_by_std=False))
    assert plain.tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_the_length_part_is_centred_but_never_scaled_up() -> None:
    terms = AdvantageTerms(length_weight=0.5, scale_by_std=False)
    lengths = np.asarray([0.0, -1.0, 0.0, -1.0])
    assert group_advantages(MICRO_REWARDS, lengths, terms).tolist() == pytest.approx([1.0, -0.5, 0.0, -0.5])
    # A hundredth of that noise stays a hundredth, whatever the spread of the lengths is.
    tiny = group_advantages(MICRO_REWARDS, lengths / 100, terms) - group_advantages(MICRO_REWARDS, NO_LENGTH, terms)
    assert tiny.tolist() == pytest.approx([0.0025, -0.0025, 0.0025, -0.0025], abs=1e-7)


def test_lengths_alone_teach_nothing() -> None:
    assert not has_signal(np.full(4, 1_000_000))
    assert not has_signal(np.zeros(4, dtype=np.int64))
    assert has_signal(MICRO_REWARDS)


@given(st.lists(st.tuples(st.sampled_from([0, 1_000_000]), st.floats(-5, 0)), min_size=2, max_size=32))
def test_advantages_are_finite_and_sum_to_nothing(rewards: list[tuple[int, float]]) -> None:
    task, length = np.asarray([r for r, _ in rewards]), np.asarray([missed for _, missed in rewards])
    values = group_advantages(task, length, AdvantageTerms())
    assert np.isfinite(values).all()
    assert abs(values.sum()) < 1e-3


def test_added_first_the_lengths_of_an_all_but_solved_group_drown_the_task() -> None:
    """Compute by hand what INTELLECT-2 did: r + w·l = (1, 1 − 0.3, 1, 1).

    One answer that is a little long is worth −√3, as if it were wrong. Kept apart, it is worth what its length costs.
    """
    right, lengths = np.full(4, 1_000_000), np.asarray([0.0, -1000.0, 0.0, 0.0])
    together = AdvantageTerms(length_weight=3e-4, length_unit="token", add_rewards_first=True, std_floor=0.0)
    third = 1 / math.sqrt(3)
    assert group_advantages(right, lengths, together).tolist() == pytest.approx([third, -math.sqrt(3), third, third])
    apart = replace(together, add_rewards_first=False)
    assert group_advantages(MICRO_REWARDS, lengths, apart).tolist() == pytest.approx(
        [math.sqrt(3) + 0.075, -third - 0.225, -third + 0.075, -third + 0.075]
    )


def test_the_spread_of_a_sample_is_a_little_larger_than_that_of_a_population() -> None:
    terms = AdvantageTerms(sample_std=True, std_floor=0.0)
    assert group_advantages(MICRO_REWARDS, NO_LENGTH, terms).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
