"""Products of bfloat16 in float32: rounded once, forwards and backwards, and chosen by setting and processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from muster.models import matmul as room
from muster.models.init import load_model
from muster.models.matmul import WideLinear, choose_matmul, measure_matmul, wide, widen
from muster.models.numerics import pin_numerics
from testbed.samples.models import write_model

NARROW = torch.bfloat16


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw).to(NARROW) for shape in shapes]


def test_sum_and_bias_are_rounded_once() -> None:
    """bfloat16 has 256 and 260 and nothing odd between: each 1 that is added by itself is lost."""
    ones = torch.ones(1, 4, dtype=NARROW)
    parts = torch.tensor([[256.0, 1.0, 1.0, 1.0]], dtype=NARROW)
    assert wide(parts, ones).tolist() == [[260.0]]
    assert wide(parts[:, :2], ones[:, :2], torch.ones(1, dtype=NARROW)).tolist() == [[258.0]]
    assert wide(parts.float(), ones.float()).tolist() == [[259.0]]


def test_gradients_are_those_of_the_float32_product() -> None:
    pin_numerics()
    tensors = drawn((2, 3, 40), (7, 40), (7,))
    ours, plain = ([tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2))
    slope = drawn((2, 3, 7))[0]
    found, expected = wide(*ours), linear(*(tensor.float() for tensor in plain)).to(NARROW)
    assert torch.equal(found, expected)
    found.backward(slope)
    expected.backward(slope)
    for one, other in zip(ours, plain, strict=True):
        assert one.grad is not None
        assert one.grad.dtype == NARROW
        assert torch.equal(one.grad, other.grad)


def test_no_gradient_is_made_of_what_is_frozen() -> None:
    inputs, weights = drawn((3, 40), (7, 40))
    wide(inputs.requires_grad_(), weights).sum().backward()
    assert inputs.grad is not None
    assert weights.grad is None


def test_a_model_keeps_its_weights_and_multiplies_every_linear_layer_in_float32(tmp_path: Path) -> None:
    folder = write_model(tmp_path, layers=2)
    native, model = load_model(folder, NARROW), load_model(folder, NARROW, "float32")
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 2 * 7 + 1
    assert all(type(layer) is WideLinear for layer in layers)
    assert widen(model) == [], "all are"
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    weights, expected = model.state_dict(), native.state_dict()
    assert all(weights[name].dtype == NARROW and torch.equal(weights[name], value) for name, value in expected.items())
    with torch.inference_mode():
        ids = torch.arange(9, 40)[None]
        found, near = (one(ids).logits.float() for one in (model, native))
    assert float((found - near).norm() / near.norm()) < 2e-2
    assert not any(isinstance(module, WideLinear) for module in load_model(folder, matmul="float32").modules())


@pytest.mark.parametrize("old", [False, True], ids=["instructions", "none"])
def test_a_setting_wins_and_auto_asks_torch(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "lacks_bfloat16", lambda: old)
    assert choose_matmul("auto") == ("float32" if old else "native")
    assert choose_matmul("auto", "cuda") == "native"
    assert [choose_matmul("native", device) for device in ("cpu", "cuda")] == ["native", "native"]
    assert [choose_matmul("float32", device) for device in ("cpu", "cuda")] == ["float32", "native"]


def test_both_ways_can_be_measured_on_one_thread() -> None:
    threads = torch.get_num_threads()
    assert measure_matmul("native") > 0.01
    assert measure_matmul("float32") > 0.01
    assert torch.get_num_threads() == threads
