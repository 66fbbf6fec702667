"""Linear layers of the engine: vLLM's own product, or one in float32 that is rounded once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from muster.models.matmul import wide


@pytest.fixture
def prepare() -> Iterator[Callable[[], Callable[[Any, bool], None]]]:
    """Return what vLLM prepares a loaded layer by. vLLM is imported late: it takes seconds, and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from worker.linear import use_linear_layers, utils
    use_linear_layers("native")
    yield lambda: utils.dispatch_cpu_unquantized_gemm
    use_linear_layers("native")


def layer_of(dtype: torch.dtype) -> Any:
    return torch.nn.Linear(64, 32, dtype=dtype).requires_grad_(False)


def test_a_loaded_layer_multiplies_in_float32_and_holds_its_weights_once(prepare: Any) -> None:
    from worker.linear import use_linear_layers

    use_linear_layers("float32")
    layer, inputs = layer_of(torch.bfloat16), torch.randn(5, 64).bfloat16()
    weights, bias = layer.weight.clone(), layer.bias
    expected = wide(inputs, weights, bias)
    for removed in (False, True):
        prepare()(layer, removed)
        assert torch.equal(layer.cpu_linear(inputs, layer.weight, bias), expected)
        assert layer.weight.numel() == (0 if removed else weights.numel())
        assert layer.weight.dtype == torch.bfloat16
    other = layer_of(torch.float32)
    prepare()(other, False)
    assert other.cpu_linear.__module__ == "vllm.model_executor.layers.utils", "float32 needs none of it"


def test_sampler_sets_matmul_before_model_loads(prepare: Any) -> None:
    from worker.sampler import CONFIG, SeededSampler

    native = prepare()
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
    for matmul in ("float32", "native"):
        config.additional_config = {CONFIG: {"temperature": 1.0, "matmul": matmul}}
        SeededSampler(config, torch.device("cpu"), is_pin_memory=False)
        assert (prepare() is native) == (matmul == "native")
