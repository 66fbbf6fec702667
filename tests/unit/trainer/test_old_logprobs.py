"""Which log-probabilities the ratio is taken against, and that false claims do not reach the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from muster.errors import ConfigError
from muster.models.init import ModelShape, init_model, load_model, make_model, make_tokenizer
from muster.protocol.terms import Terms
from muster.settings.recipes import RECIPES
from muster.settings.schema import TrainerSettings
from muster.swarm import plan
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, profile_hash
from muster.verification.tolerance import ModelSizes, ToleratedError, tolerated_error
from testbed.samples.models import write_model
from testbed.samples.task_sets import generated
from testbed.samples.terms import terms_of as sample_terms
from testbed.samples.trainer import ragged, terms_of
from trainer.distributed import Ranks
from trainer.learner import Recipe
from trainer.loss import LossTerms
from trainer.model_replica import Replica
from trainer.old_logprobs import CLIP_SHARE, clip_room, model_sizes, recomputes, steering_error
from trainer.packing import Sample
from trainer.policy import Policy, gain_offset
from trainer.update import UpdateTerms, make_optimizer, update

SHAPE = ModelShape(hidden=32, layers=1, heads=1, intermediate=32)
TOKENIZER = make_tokenizer()
TERMS = UpdateTerms(learning_rate=1e-2, warmup_steps=1, gradient_clip=1e9, micro_batch_tokens=64)


def tiny_policy() -> Policy:
    return Policy(make_model(TOKENIZER, SHAPE, seed=2), temperature=1.0)


def terms_under(profile: str) -> Terms:
    """Return the demo's terms with another profile."""
    return sample_terms(**{**plan.LOCAL_TERMS, "profile": profile_hash(profile)})


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "model"
    init_model(folder, generated(0), seed=0)
    return folder


@pytest.fixture
def demo_policy(demo: Path) -> Policy:
    return Policy(load_model(demo), temperature=terms_under(CPU_FP32.name).temperature)


# --- What is chosen


def test_the_demo_uses_the_samplers_log_probabilities(demo_policy: Policy) -> None:
    """It computes in float32, so nothing is recomputed, also after its weights have grown by half."""
    profile = PROFILES[plan.PROFILE]
    assert not recomputes(demo_policy, "auto", profile.name, LossTerms())
    sizes = model_sizes(demo_policy)
    assert sizes is not None
    assert tolerated_error(profile, sizes).worst < CLIP_SHARE * clip_room(LossTerms()) / 1.5


def test_the_same_model_in_bfloat16_is_recomputed(demo_policy: Policy) -> None:
    assert recomputes(demo_policy, "auto", BF16.name, LossTerms())


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_lets_a_lie_have_more_than_its_share_of_the_clip(
    demo_policy: Policy, recipe: str, profile: str
) -> None:
    settings = TrainerSettings.model_validate({"recipe": recipe})
    terms = Recipe.from_settings(settings, terms_under(profile)).update
    sizes = model_sizes(demo_policy)
    assert sizes is not None
    off = steering_error(tolerated_error(PROFILES[profile], sizes), terms.loss)
    chosen = recomputes(demo_policy, terms.old_logprobs, terms.profile, terms.loss)
    assert chosen or off <= CLIP_SHARE * clip_room(terms.loss)
    assert chosen == (profile == BF16.name or recipe in ("intellect2", "gspo", *MASKED))


def test_the_clips_nearer_side_counts() -> None:
    assert clip_room(LossTerms(epsilon=0.2)) == pytest.approx(np.log(1.2))
    assert clip_room(LossTerms(epsilon=0.2, epsilon_high=0.28)) == pytest.approx(-np.log(0.8))


def test_a_sequences_mean_counts_sure_tokens_as_well() -> None:
    tolerated = ToleratedError(worst=0.01, sure=1.0)
    assert steering_error(tolerated, LossTerms()) == 0.01
    assert steering_error(tolerated, LossTerms(ratio="sequence")) == 1.0


def test_behaviour_that_tolerates_too_much_is_refused_at_the_start(tmp_path: Path) -> None:
    initial = write_model(tmp_path / "model")
    terms = replace(terms_of(initial), profile=profile_hash(BF16.name))
    recipe = Recipe.from_settings(TrainerSettings(old_logprobs="behaviour"), terms)
    with pytest.raises(ConfigError, match=r"under bf16-projection-v3 a worker may claim .* nats off") as caught:
        Replica(initial, recipe.update, Ranks())
    assert caught.value.hint == "set trainer.old_logprobs to auto or recomputed"
    Replica(initial, replace(recipe.update, old_logprobs="auto"), Ranks())
    Replica(initial, replace(recipe.update, profile=CPU_FP32.name), Ranks())


def test_it_follows_the_weights_as_they_grow() -> None:
    policy, samples = tiny_policy(), ragged(4)
    optimizer, terms = make_optimizer(policy, TERMS), replace(TERMS, profile=CPU_FP32.name)
    assert not recomputes(policy, "auto", CPU_FP32.name, terms.loss)
    with torch.no_grad():
        policy.model.get_parameter("model.norm.weight").mul_(100)
    assert recomputes(policy, "auto", CPU_FP32.name, terms.loss)
    with pytest.raises(ConfigError, match="such lies steer the gradient"):
        update(policy, optimizer, samples, replace(terms, old_logprobs="behaviour"), step=1)


def test_sizes_are_those_of_the_last_norm_and_the_head(demo_policy: Policy) -> None:
    """And bound what the model really does: states and logits of random tokens."""
    sizes = model_sizes(demo_policy)
    assert sizes is not None
    weight = demo_policy.model.get_parameter("model.norm.weight").detach()
    head = demo_policy.model.get_parameter("model.embed_tokens.weight").detach()
    gain, row_norm = float(weight.abs().max()), float(head.norm(dim=1).max())
    assert sizes == ModelSizes.bounded_by(gain=gain, row_norm=row_norm, hidden=128, temperature=1.0)
    ids = torch.randint(105, (8, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = demo_policy.model(ids, output_hidden_states=True, use_cache=False)
    states = found.hidden_states[-1]
    assert float(states.norm(dim=-1).max()) * row_norm / 128**0.5 <= sizes.state_scale
    assert float(found.logits.abs().max()) <= sizes.magnitude


def test_norms_of_other_forms() -> None:
    gain = torch.linspace(0.5, 2.0, 8)
    plain, plus_one, centred = LlamaRMSNorm(8), GemmaRMSNorm(8), nn.LayerNorm(8)
    with torch.no_grad():
        plain.weight.copy_(gain)
        plus_one.weight.copy_(gain)
    assert [gain_offset(norm) for norm in (plain, plus_one, centred, None)] == [0.0, 1.0, None, None]


def test_a_model_whose_sizes_are_not_known_is_recomputed() -> None:
    policy = tiny_policy()
    policy.gain_offset = None
    assert recomputes(policy, "auto", CPU_FP32.name, LossTerms())
    with pytest.raises(ConfigError, match="inf nats off"):
        recomputes(policy, "behaviour", CPU_FP32.name, LossTerms())


# --- What claims can do


def trained(samples: Sequence[Sample], terms: UpdateTerms) -> dict[str, torch.Tensor]:
    policy = tiny_policy()
    update(policy, make_optimizer(policy, terms), samples, terms, step=1)
    return {name: value.detach().clone() for name, value in policy.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def claims(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """Other claims, none so far off that its rollout is left out."""
    random = np.random.default_rng(seed)
    lies = [random.uniform(-0.5, 0.5, sample.completion_length).astype(np.float32) for sample in samples]
    return [replace(sample, logprobs=sample.logprobs + lie) for sample, lie in zip(samples, lies, strict=True)]


MASKED = ("icepop", "prob_mask")
"""Recipes whose masks read claims also where the old log-probabilities are recomputed."""
LARGE_STEPS = {"old_logprobs": "recomputed", "gradient_clip": 1e9, "warmup_steps": 1, "learning_rate": 1e-2}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in MASKED])
@pytest.mark.parametrize("steps", [1, 3])
def test_recomputed_the_update_has_the_same_bits_whatever_is_claimed(recipe: str, steps: int) -> None:
    settings = TrainerSettings.model_validate(LARGE_STEPS | {"recipe": recipe, "optimiser_steps": steps})
    terms = Recipe.from_settings(settings, terms_under(BF16.name)).update
    samples = ragged(9)
    honest = trained(samples, terms)
    assert not same(honest, dict(tiny_policy().named_parameters()))
    for seed in range(3):
        assert same(honest, trained(claims(samples, seed), terms))
    by_claims = replace(terms, old_logprobs="behaviour", profile="")
    assert not same(trained(samples, by_claims), trained(claims(samples, 0), by_claims))


@pytest.mark.parametrize("claim", [50.0, float("nan"), float("inf")])
def test_recomputed_a_claim_can_leave_out_its_own_rollout_and_nothing_else(claim: float) -> None:
    terms = replace(TERMS, old_logprobs="recomputed")
    samples = ragged(9)
    lie = [replace(s, logprobs=s.logprobs - claim) if i == 4 else s for i, s in enumerate(samples)]
    without = [replace(s, advantage=0.0) if i == 4 else s for i, s in enumerate(samples)]
    found, expected = trained(lie, terms), trained(without, terms)
    assert same(found, expected)
    assert not same(found, trained(samples, terms))
