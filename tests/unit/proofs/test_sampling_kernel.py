"""The compiled sampler is its portable twin, only faster: the same tokens always, the same numbers but for rounding.

Without a kernel (no compiler, or MUSTER_NATIVE=0) the twin is compared with itself.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.proofs import seeded_sampling as sampling
from muster.proofs.native import compiler, load
from muster.proofs.seeded_sampling import choose, choose_portable, measure, measure_portable, scale
from testbed.paths import ROOT
from testbed.suite.examples import up_to
from testbed.waiting import BOUND

LOGITS: dict[str, Callable[[int, int, torch.Generator], torch.Tensor]] = {
    "flat": lambda rows, vocabulary, _: torch.zeros(rows, vocabulary),
    "nearly flat": lambda rows, vocabulary, generator: 1e-3 * torch.randn(rows, vocabulary, generator=generator),
    "of a model": lambda rows, vocabulary, generator: 2.5 * torch.randn(rows, vocabulary, generator=generator),
    "confident": lambda rows, vocabulary, generator: 20 * torch.randn(rows, vocabulary, generator=generator),
    "rising": lambda rows, vocabulary, _: torch.linspace(-40, 40, vocabulary).repeat(rows, 1),
    "falling": lambda rows, vocabulary, _: torch.linspace(40, -40, vocabulary).repeat(rows, 1),
    "shifted": lambda rows, vocabulary, generator: 1e4 + torch.randn(rows, vocabulary, generator=generator),
    "huge": lambda rows, vocabulary, generator: 1e30 * torch.randn(rows, vocabulary, generator=generator),
    "lowest": lambda rows, vocabulary, _: torch.full((rows, vocabulary), torch.finfo(torch.float32).min),
    "of few values": lambda rows, vocabulary, generator: torch.randint(
        0, 3, (rows, vocabulary), generator=generator
    ).float(),
    "bfloat16": lambda rows, vocabulary, generator: (4 * torch.randn(rows, vocabulary, generator=generator)).bfloat16(),
    "masked": lambda rows, vocabulary, generator: _masked(rows, vocabulary, generator),
    "one-hot": lambda rows, vocabulary, generator: _one_hot(rows, vocabulary, generator),
}


def _masked(rows: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    """Nine of ten tokens impossible, at least one not."""
    logits = torch.randn(rows, vocabulary, generator=generator)
    logits[torch.rand(rows, vocabulary, generator=generator) < 0.9] = -torch.inf
    logits[:, vocabulary // 2] = 0
    return logits


def _one_hot(rows: int, vocabulary: int, generator: torch.Generator) -> torch.Tensor:
    logits = torch.full((rows, vocabulary), -torch.inf)
    return logits.scatter_(1, torch.randint(0, vocabulary, (rows, 1), generator=generator), 0.0)


def assert_equals_twin(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float) -> None:
    scaled = scale(logits, temperature)
    # The twin rounds the sum of the probabilities to float32, where it is as large as the logits.
    near = {"atol": 1e-5 + 3e-7 * float(scaled.nan_to_num(0, 0, 0).abs().max()), "rtol": 1e-6, "equal_nan": True}
    choice, expected = (f(logits, seeds, positions, temperature) for f in (choose, choose_portable))
    assert torch.equal(choice.tokens, expected.tokens)
    torch.testing.assert_close(choice.logprobs, expected.logprobs, **near)
    for tokens in (choice.tokens, seeds % logits.shape[1]):
        replay, twin = (f(logits, tokens, seeds, positions, temperature) for f in (measure, measure_portable))
        torch.testing.assert_close(replay.gaps, twin.gaps, **near)
        torch.testing.assert_close(replay.logprobs, twin.logprobs, **near)
        assert torch.equal(replay.sampled, twin.sampled)
        assert torch.equal(replay.sampled, choice.tokens)
    regular = scaled.amax(dim=1).isfinite()
    own = measure(logits, choice.tokens, seeds, positions, temperature).gaps
    assert torch.equal(own[regular], torch.zeros(int(regular.sum())))


@pytest.mark.skipif(compiler() is None or os.environ.get("MUSTER_NATIVE") == "0", reason="no compiled kernels here")
def test_kernel_loads_when_a_compiler_exists() -> None:
    assert load("sampler") is not None


@settings(max_examples=up_to(200), deadline=None)
@given(
    kind=st.sampled_from(sorted(LOGITS)),
    rows=st.integers(1, 5),
    vocabulary=st.integers(1, 3000),
    seed=st.integers(0, 2**63 - 8),
    position=st.integers(0, 2**31 - 2),
    temperature=st.sampled_from([1.0, 0.6, 0.07, 1.3, 7.0]),
)
@example("flat", 1, 1, 0, 0, 1.0)
@example("one-hot", 2, 256, 2**63 - 8, 2**31 - 2, 1.0)
def test_kernel_and_twin_agree(
    kind: str, rows: int, vocabulary: int, seed: int, position: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed % 2**32)
    seeds = seed + torch.arange(rows)
    positions = torch.full((rows,), position)
    assert_equals_twin(LOGITS[kind](rows, vocabulary, generator), seeds, positions, temperature)


@pytest.mark.parametrize("kind", sorted(LOGITS))
@pytest.mark.parametrize("vocabulary", [50_257, 152_064, 200_000])
def test_kernel_and_twin_agree_at_large_vocabularies(kind: str, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    seeds = torch.randint(0, 2**62, (4,), generator=generator)
    assert_equals_twin(LOGITS[kind](4, vocabulary, generator), seeds, torch.arange(4), 0.8)


def test_kernel_and_twin_agree_on_many_rows() -> None:
    """Enough that some are decided by the last bit: two of five tokens tie in one row in some 100,000."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 5, generator=generator).expand(1_000_000, 5)
    seeds, positions = torch.arange(1_000_000) * 7, torch.arange(1_000_000) % 100
    choice, expected = (f(logits, seeds, positions, 1.0) for f in (choose, choose_portable))
    assert torch.equal(choice.tokens, expected.tokens)


def test_equal_noised_logits_go_to_the_lowest_token() -> None:
    """Where a logit is so large that noise is lost in rounding, all maxima tie."""
    logits = torch.full((3, 1000), 1e12)
    logits[1, :400] = 0
    logits[2, :-1] = 0
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])
    assert choose(logits, seeds, positions, 1.0).tokens.tolist() == [0, 400, 999]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_a_logit_that_is_not_finite_is_treated_as_the_twin_does(value: float, place: int) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, 1000, generator=generator)
    logits[1, place] = value
    logits[2] = -torch.inf
    logits[2, place] = value
    seeds, positions = torch.tensor([5, 1000 + place, place]), torch.tensor([0, 0, 0])
    choice, expected = (f(logits, seeds, positions, 1.0) for f in (choose, choose_portable))
    assert torch.equal(choice.tokens, expected.tokens)
    torch.testing.assert_close(choice.logprobs, expected.logprobs, equal_nan=True)
    replay, twin = (f(logits, positions + place, seeds, positions, 1.0) for f in (measure, measure_portable))
    torch.testing.assert_close(replay.gaps, twin.gaps, equal_nan=True)
    torch.testing.assert_close(replay.logprobs, twin.logprobs, equal_nan=True)
    if value != -math.inf:
        assert not replay.logprobs[1:].isfinite().any()


def test_rows_may_lie_anywhere_in_memory() -> None:
    logits = torch.randn(40, 90, generator=torch.Generator().manual_seed(6))
    seeds, positions = torch.arange(80)[::2], torch.arange(40, dtype=torch.int32)
    for view in (logits, logits[:, 10:60], logits.t().contiguous().t(), logits[:1].expand(40, 90)):
        assert_equals_twin(view, seeds, positions, 1.0)
    assert len(choose(logits[:0], torch.arange(0), positions[:0], 1.0).tokens) == 0


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5000, generator=torch.Generator().manual_seed(7))
    seeds, positions = torch.arange(7) + 2**50, torch.arange(7)
    alone = choose(logits, seeds, positions, 1.0)
    for threads in (2, 3, 16):
        monkeypatch.setattr(sampling.torch, "get_num_threads", lambda threads=threads: threads)
        shared = choose(logits, seeds, positions, 1.0)
        assert torch.equal(shared.tokens, alone.tokens)
        assert torch.equal(shared.logprobs, alone.logprobs)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    logits, zero = torch.zeros(2, 10), torch.zeros(2, dtype=torch.int64)
    for token in (-1, 10):
        with pytest.raises((IndexError, RuntimeError)):
            measure(logits, torch.tensor([0, token]), zero, zero, 1.0)


def test_sampling_works_without_a_kernel() -> None:
    """A loaded kernel stays loaded, so the test uses a separate process."""
    program = (
        "import torch; from muster.proofs.native import load; from muster.proofs.seeded_sampling import choose;"
        "assert load('sampler') is None;"
        "print(choose(torch.zeros(1, 1000), torch.tensor([9]), torch.tensor([2]), 1.0).tokens.item())"
    )
    environment = os.environ | {"MUSTER_NATIVE": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=BOUND
    )
    expected = choose(torch.zeros(1, 1000), torch.tensor([9]), torch.tensor([2]), 1.0).tokens.item()
    assert (done.stderr, done.stdout) == ("", f"{expected}\n")
