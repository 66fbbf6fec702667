"""Training an adapter: the model stays, the pairs learn, and the published model equals the merge of every node."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from muster.errors import ConfigError
from muster.models.init import load_model
from muster.models.lora import Adapter
from testbed.samples.models import write_model
from testbed.samples.trainer import batch_of, learner_at, ragged
from trainer.lora import adapt, merge
from trainer.packing import collate
from trainer.policy import Policy

RANK = 3


@pytest.fixture(scope="module")
def initial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("initial"))


def published(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"{step:06d}" / "model" / "model.safetensors")


def logprobs(policy: Policy) -> torch.Tensor:
    samples = ragged(3)
    with torch.no_grad():
        return policy(collate(samples, [1.0] * 3, range(3)))[0]


def test_an_adapted_policy_is_the_same_until_it_learns(initial: Path) -> None:
    policy = Policy(load_model(initial), temperature=1.0)
    before = logprobs(policy)
    adapt(policy, RANK, 32.0)
    assert torch.equal(logprobs(policy), before)
    trained = [name for name, value in policy.named_parameters() if value.requires_grad]
    maps = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    maps += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    names = {name.removeprefix("model.model.layers.0.") for name in trained}
    assert names == {f"{name}.{part}" for name in maps for part in ("down", "up")}


def test_published_model_includes_the_adapter(initial: Path, tmp_path: Path) -> None:
    learner = learner_at(initial, tmp_path, lora_rank=RANK)
    for step in range(2):
        learner.train_step(*batch_of(step), {})
    learner.written()
    ours = logprobs(learner.replica.policy)
    theirs = logprobs(Policy(load_model(learner.checkpoints.model_dir(2)), temperature=1.0))
    start = logprobs(Policy(load_model(initial), temperature=1.0))
    assert float((ours - theirs).abs().max()) < 1e-4
    assert float((ours - start).abs().max()) > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_adapter_makes_each_step_out_of_the_first_bit_for_bit(
    initial: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    learner = learner_at(initial, tmp_path, dtype=dtype, lora_rank=RANK)
    learner.written()
    first = published(tmp_path, 0)
    assert all(
        torch.equal(value, load_file(initial / "model.safetensors")[name].to(dtype)) for name, value in first.items()
    )
    assert learner.checkpoints.published(0) == (tmp_path / "000000" / "model", None)
    for step in range(2):
        learner.train_step(*batch_of(step), {})
    learner.written()
    made = {name: value.clone() for name, value in first.items()}
    _, folder = learner.checkpoints.published(2)
    assert folder is not None
    merge(Adapter.read(folder), made)
    second = published(tmp_path, 2)
    assert made.keys() == second.keys()
    assert all(torch.equal(made[name], second[name]) for name in made)
    assert any(not torch.equal(made[name], first[name]) for name in made)


def test_a_resumed_run_ends_with_the_bits_of_one_that_never_stopped(initial: Path, tmp_path: Path) -> None:
    straight = learner_at(initial, tmp_path / "a", lora_rank=RANK)
    for step in range(3):
        straight.train_step(*batch_of(step), {})
    straight.written()
    for step in range(3):
        resumed = learner_at(initial, tmp_path / "b", lora_rank=RANK)
        assert resumed.step == step
        resumed.train_step(*batch_of(step), {})
        resumed.written()
    there, here = published(tmp_path / "a", 3), published(tmp_path / "b", 3)
    assert all(torch.equal(there[name], here[name]) for name in there)


def test_a_checkpoint_holds_the_moments_of_the_pairs_alone(initial: Path, tmp_path: Path) -> None:
    sizes = []
    for rank in (0, RANK):
        learner = learner_at(initial, tmp_path / str(rank), lora_rank=rank)
        learner.train_step(*batch_of(0), {})
        learner.written()
        sizes.append(sum(path.stat().st_size for path in learner.checkpoints.state(1).glob("*.distcp")))
    pairs = sum(value.numel() for value in learner.replica.policy.parameters() if value.requires_grad)
    assert pairs == 7 * RANK * (32 + 32)
    assert 3 * 4 * pairs < sizes[1] < sizes[0] / 2


@pytest.mark.parametrize(
    ("rank", "alpha", "says"), [(0, 32.0, "not 0 and 0"), (4, 32.0, "not 4"), (3, 64.0, "not 3 and 64")]
)
def test_going_on_with_another_adapter_is_refused(
    initial: Path, tmp_path: Path, rank: int, alpha: float, says: str
) -> None:
    learner_at(initial, tmp_path, lora_rank=RANK).written()
    with pytest.raises(ConfigError, match=f"trainer.lora_rank 3 and lora_alpha 32, {says}"):
        learner_at(initial, tmp_path, lora_rank=rank, lora_alpha=alpha)


def test_a_model_without_linear_maps_is_refused(initial: Path) -> None:
    policy = Policy(load_model(initial), temperature=1.0)
    for layer in policy.layers:
        for parent in list(layer.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(parent, name, torch.nn.Identity())
    with pytest.raises(ConfigError, match="no linear maps"):
        adapt(policy, RANK, 32.0)
