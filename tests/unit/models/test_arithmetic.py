"""Other machines' arithmetic: near to a model's own, different from it, and gone when the context ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear
from transformers import PreTrainedModel

from muster.errors import ConfigError
from muster.models.arithmetic import (
    ARITHMETICS,
    HONEST,
    PERTURBATION,
    SPLITS,
    _Noise,
    backwards,
    computing,
    float16_sums,
    perturbing,
    split,
)
from muster.models.init import ModelShape, load_model, make_model, make_tokenizer, save_model
from muster.models.matmul import wide
from muster.models.numerics import pin_numerics
from muster.verification.profiles import PROFILES

SHAPE = ModelShape(hidden=128, layers=2, heads=4, intermediate=256, initializer_range=0.1)
IDS = torch.randint(10, 100, (3, 60), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def pinned() -> None:
    pin_numerics()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(make_model(make_tokenizer(), SHAPE, seed=1), make_tokenizer(), path)
    return path


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def model(folder: Path, request: pytest.FixtureRequest) -> PreTrainedModel:
    return load_model(folder, request.param)


def states(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return model.base_model(input_ids=IDS, use_cache=False).last_hidden_state


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def own_attributes(model: PreTrainedModel) -> list[set[str]]:
    return [set(vars(module)) for module in model.modules()]


@pytest.mark.parametrize("name", ARITHMETICS)
def test_results_are_near_and_different_and_the_model_is_as_before(model: PreTrainedModel, name: str) -> None:
    before, attributes, weights = states(model), own_attributes(model), [one.clone() for one in model.parameters()]
    with computing(model, name):
        found, again = states(model), states(model)
    assert torch.equal(found, again)
    assert found.dtype == before.dtype
    off = distance(found, before)
    if model.dtype == torch.bfloat16:
        assert 0 < off < 2e-2, off
    elif name == "sums in float32":
        assert off == 0, "which is what a float32 model does anyway"
    elif name == "sums in float16":
        assert 1e-5 < off < 1e-2, off
    else:
        assert 0 < off < 2e-6, off
    assert own_attributes(model) == attributes
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))
    assert torch.equal(states(model), before)


def test_an_error_inside_leaves_the_model_as_before(model: PreTrainedModel) -> None:
    before = states(model)
    for name in ("split sums", "attention written out"):
        with pytest.raises(KeyError), computing(model, name):
            raise KeyError
        assert torch.equal(states(model), before)


def test_perturbed_arithmetic_is_near_drawn_afresh_and_gone_afterwards(model: PreTrainedModel) -> None:
    before, attributes = states(model), own_attributes(model)
    with perturbing(model, seed=3):
        first, second = states(model), states(model)
    with perturbing(model, seed=3):
        again = states(model)
    with perturbing(model), perturbing(model):
        fresh = states(model)
    assert torch.equal(first, again)
    assert len({float(one.double().sum()) for one in (first, second, fresh)}) == 3, "each draws its own"
    near, far = (1e-7, 1e-5) if model.dtype == torch.float32 else (1e-3, 4e-2)
    assert all(near < distance(one, before) < far for one in (first, second, fresh))
    assert own_attributes(model) == attributes
    assert torch.equal(states(model), before)


def test_an_arithmetic_inside_another_leaves_that_in_force(model: PreTrainedModel) -> None:
    for name in ("split sums", "attention written out"):
        with computing(model, name):
            before = states(model)
            with perturbing(model):
                states(model)
            assert torch.equal(states(model), before)


@pytest.mark.parametrize(
    ("placed", "name"),
    [
        (lambda places: places < 128, "halves"),
        (lambda places: places % 2 == 0, "lanes"),
        (lambda places: places // 16 % 2 == 0, "blocks"),
        (lambda places: places == 0, "one"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_perturbed_sums_show_terms_that_cancel_wherever_they_are(
    placed: Callable[[torch.Tensor], torch.Tensor], name: str, model: PreTrainedModel
) -> None:
    """256 terms whose sum is 0: some rows see an error of the partial sums' size, not only of a term's times 16."""
    plus = placed(torch.arange(256))
    minus = torch.roll(plus, 1) if name == "one" else ~plus
    inputs = plus.float() - minus.float()
    unit = PERTURBATION[model.dtype] * torch.finfo(model.dtype).eps / 2
    noise = _Noise(model.dtype, seed=1)
    errors = torch.cat([noise.product(inputs.expand(8, 256), torch.ones(1, 256)).abs() / unit for _ in range(512)])
    terms = float(plus.sum())
    assert float(errors.max()) > (0.75 if name == "one" else 0.4) * terms, "independent terms reach 0.3"
    assert float(errors.max()) <= 2 * terms


def test_without_a_name_the_model_computes_as_ever(model: PreTrainedModel) -> None:
    before = states(model)
    with computing(model, ""):
        assert torch.equal(states(model), before)


def test_an_unknown_arithmetic_is_named(model: PreTrainedModel) -> None:
    with pytest.raises(ConfigError, match="no arithmetic 'FP4'") as at, computing(model, "FP4"):
        pass
    assert at.value.hint == f"choose one of: {', '.join(ARITHMETICS)}"


def test_every_dtype_of_a_profile_has_honest_arithmetics() -> None:
    assert set(HONEST) == {profile.dtype for profile in PROFILES.values()}
    for names in HONEST.values():
        assert set(names) <= set(ARITHMETICS)


# --- Products


def test_products_of_small_whole_numbers_are_exact_however_they_are_added() -> None:
    draw = torch.Generator().manual_seed(0)
    inputs, weights = (torch.randint(-4, 5, shape, generator=draw).float() for shape in ((2, 3, 30), (7, 30)))
    for product in (split, backwards, wide, float16_sums):
        assert torch.equal(product(inputs, weights), linear(inputs, weights)), product.__name__


def test_partial_sums_are_rounded_to_what_they_are_added_in() -> None:
    """Four parts, 256 and three times 1: bfloat16 has no 257, so that each 1 is lost; in one sum they are not."""
    parts = torch.tensor([[256.0, 1.0, 1.0, 1.0]], dtype=torch.bfloat16)
    ones = torch.ones(1, SPLITS, dtype=torch.bfloat16)
    assert split(parts, ones).tolist() == [[256.0]]
    assert wide(parts, ones).tolist() == [[260.0]], "259 is rounded once"
    assert float16_sums(parts, ones).tolist() == [[260.0]], "float16 has 259"
    large = torch.tensor([[2048.0, 1.0, 1.0, 1.0]])
    assert float16_sums(large, ones.float()).tolist() == [[2048.0]]
    assert wide(large, ones.float()).tolist() == [[2051.0]]
