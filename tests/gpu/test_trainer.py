"""The trainer on a GPU: its packed attention is one flash call there, which no processor has.

Reference is the model's own attention in float32 on the processor. In bfloat16 the trainer may be off by no more than
twice what the model's own forward and backward pass is off by on the same GPU, row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from muster.models.init import ModelShape, make_model, make_tokenizer
from muster.models.numerics import pin_numerics
from testbed.suite.gpu import needs_gpu
from trainer.distributed import Ranks
from trainer.loss import LossTerms
from trainer.packing import Sample, collate
from trainer.policy import SAME_NATS, Policy, packed_attention
from trainer.update import UpdateTerms, make_optimizer, update

pytestmark = needs_gpu

GPU = "cuda"
SHAPE = ModelShape(256, 3, 8, 512, initializer_range=0.08, key_value_heads=2)
"""Fresh weights large enough that attention and answers are uneven."""
LENGTHS = [(5, 3), (1, 1), (90, 210), (2, 64), (33, 31), (1, 127), (17, 300)]
BOUNDARIES = (0, 1, 8, 200, 201, 456)

Result = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""Log-probabilities of all completion tokens, and the gradient by parameter of their weighted sum."""


@pytest.fixture
def samples() -> list[Sample]:
    random = np.random.default_rng(0)
    rows = [(random.integers(9, 105, p), random.integers(9, 105, c)) for p, c in LENGTHS]
    return [
        Sample(p.astype(np.int32), c.astype(np.int32), np.full(len(c), -4.6, np.float32), (-1.0) ** i)
        for i, (p, c) in enumerate(rows)
    ]


def model_on(device: str, dtype: torch.dtype, rounded: torch.dtype) -> PreTrainedModel:
    """The model of all these tests, its weights rounded first."""
    pin_numerics()
    return make_model(make_tokenizer(), SHAPE, seed=3).to(rounded).to(device, dtype).train()


def own_pass(model: PreTrainedModel, samples: list[Sample]) -> torch.Tensor:
    """Return log-probabilities by the model's own forward pass of one row after the other."""
    found = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt, sample.completion])).long().to(model.device)
        table = model(ids[None], use_cache=False).logits[0, len(sample.prompt) - 1 : -1].float().log_softmax(-1)
        found.append(table.gather(1, ids[len(sample.prompt) :, None])[:, 0])
    return torch.cat(found)


def packed_pass(model: PreTrainedModel, samples: list[Sample]) -> torch.Tensor:
    policy = Policy(model, temperature=1.0)
    return policy(collate(samples, [1.0] * len(samples), range(len(samples))).to(policy.device))[0]


def result(
    run: Callable[[PreTrainedModel, list[Sample]], torch.Tensor], model: PreTrainedModel, samples: list[Sample]
) -> Result:
    logprobs = run(model, samples)
    slopes = torch.linspace(-1, 1, len(logprobs), device=logprobs.device)
    (logprobs * slopes).sum().backward()
    gradients = {name: value.grad.float().cpu() for name, value in model.named_parameters() if value.grad is not None}
    return logprobs.detach().cpu(), gradients


def off(found: Result, reference: Result) -> tuple[float, float]:
    """Return the largest error of a log-probability in nats, and the largest relative one of a parameter's gradient."""
    assert found[1].keys() == reference[1].keys()
    gradients = [float((found[1][name] - right).norm() / right.norm()) for name, right in reference[1].items()]
    return float((found[0] - reference[0]).abs().max()), max(gradients)


def test_packed_rows_in_float32_have_the_log_probabilities_and_gradients_of_the_models_own_pass(
    samples: list[Sample],
) -> None:
    reference = model_on("cpu", torch.float32, torch.float32)
    reference.set_attn_implementation("eager")
    right = result(own_pass, reference, samples)
    nats, gradient = off(result(packed_pass, model_on(GPU, torch.float32, torch.float32), samples), right)
    assert nats < SAME_NATS
    assert gradient < 5e-3


def test_packed_rows_in_bfloat16_are_as_near_as_the_models_own_pass(samples: list[Sample]) -> None:
    reference = model_on("cpu", torch.float32, torch.bfloat16)
    reference.set_attn_implementation("eager")
    right = result(own_pass, reference, samples)
    own = off(result(own_pass, model_on(GPU, torch.bfloat16, torch.bfloat16), samples), right)
    ours = off(result(packed_pass, model_on(GPU, torch.bfloat16, torch.bfloat16), samples), right)
    assert ours[0] < 2 * own[0]
    assert ours[1] < 2 * own[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 2, 5, 64])
@pytest.mark.parametrize(("heads", "dim"), [((4, 4), 32), ((14, 2), 64), ((8, 1), 128)])
def test_the_flash_kernel_attends_as_is_written_out(
    dtype: torch.dtype, window: int | None, heads: tuple[int, int], dim: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, count, BOUNDARIES[-1], dim) for count in (heads[0], heads[1], heads[1])]
    drawn = [(2 * torch.randn(shape, generator=draw)).to(dtype) for shape in shapes]
    slope = torch.randn(1, BOUNDARIES[-1], heads[0], dim, generator=draw).to(dtype)
    found = []
    for device, kind in ((GPU, dtype), ("cpu", torch.float32)):
        inputs = [values.to(device, kind, copy=True).requires_grad_() for values in drawn]
        attended, _ = packed_attention(nn.Identity(), *inputs, None, boundaries=BOUNDARIES, sliding_window=window)
        gradients = torch.autograd.grad(attended, inputs, slope.to(device, kind))
        found.append([values.detach().float().cpu() for values in (attended, *gradients)])
    for there, here in zip(*found, strict=True):
        assert there.shape == here.shape
        assert float((there - here).norm() / here.norm()) < 2.0**-6
        assert float((there - here).abs().max()) < 2.0**-4 * float(here.abs().max())


def test_an_update_on_the_gpu_reports_what_one_on_the_processor_does(samples: list[Sample]) -> None:
    reports = []
    for device in (GPU, "cpu"):
        policy = Policy(model_on(device, torch.float32, torch.float32), temperature=1.0)
        loss = LossTerms(mismatch_bound=50.0)
        terms = UpdateTerms(learning_rate=1e-3, warmup_steps=1, micro_batch_tokens=400, loss=loss)
        ranks = Ranks(torch.device(device))
        reports.append(update(policy, make_optimizer(policy, terms), samples, terms, step=1, ranks=ranks))
    there, here = reports
    assert there.tokens == here.tokens == sum(completion for _, completion in LENGTHS)
    for name in ("loss", "grad_norm", "entropy", "mismatch_kl"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=5e-3)
