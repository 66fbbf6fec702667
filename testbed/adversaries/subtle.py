"""Subtle cheats: what moves every row a little and no single one enough. Each is a change of a worker's engine.

All generate by vLLM, and all claim proofs and log-probabilities as their engine computes them. Those that change
sampling alone claim the true log-probabilities of the tokens they chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch

import worker.engine
from muster.authoring.models.variants import CHEAPER, Change, save_changed
from muster.proofs.seeded_sampling import choose, chosen_logprobs, scale

FAVOUR: Final = 0.1
"""Added to a stop token's logit."""

PENALTY: Final = 1.02
"""Of repeated tokens, as engines define it: positive logits are divided by it, negative ones multiplied."""

Tilt = Callable[[torch.Tensor, list[list[int]]], torch.Tensor]
"""logits [B, V] and the tokens of each row so far: the logits that are sampled from."""


@dataclass(frozen=True)
class SubtleCheat:
    name: str
    change: Callable[[], Change] | None = None
    """What is done to the weights."""
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What is done to the engine, from its start on."""

    def weights(self, honest: Path, folder: Path) -> Path:
        """Return the checkpoint that it really runs."""
        return honest if self.change is None else save_changed(honest, folder / self.name, self.change())


@contextmanager
def fp8_cache() -> Iterator[None]:
    """Keep keys and values in float8, as vLLM does with that option."""
    plain = worker.engine.plain_arguments
    with patch.object(worker.engine, "plain_arguments", lambda *given: plain(*given) | {"kv_cache_dtype": "fp8"}):
        yield


def int8(values: torch.Tensor) -> torch.Tensor:
    """Round to 8 bits with a scale for each token and head."""
    scale = values.float().abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
    return ((values.float() / scale).round() * scale).to(values.dtype)


@contextmanager
def int8_cache() -> Iterator[None]:
    """Keep keys and values in int8. vLLM has no such cache on processors: they are rounded on their way in."""
    from vllm.model_executor.layers.attention.attention import Attention

    plain = Attention.forward

    def forward(self: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **more: Any) -> Any:
        heads = (-1, self.num_kv_heads, self.head_size)
        rounded = [int8(one.view(heads)).view(one.shape) for one in (key, value)]
        return plain(self, query, rounded[0], rounded[1], *rest, **more)

    with patch.object(Attention, "forward", forward):
        yield


@contextmanager
def tilted(tilt: Tilt) -> Iterator[None]:
    """Sample from other logits, and claim the true log-probabilities of what is chosen."""
    from worker.sampler import SeededSampler

    plain = SeededSampler.apply

    def apply(self: Any, logits: torch.Tensor) -> torch.Tensor:
        outputs = self._outputs[: logits.shape[0]]

        def choose_tilted(given: torch.Tensor, *rest: Any) -> Any:
            choice = choose(tilt(given.clone(), outputs), *rest)
            true = chosen_logprobs(scale(given, self.temperature), choice.tokens)
            return type(choice)(choice.tokens, true)

        with patch("worker.sampler.choose", choose_tilted):
            return plain(self, logits)

    unchecked = patch.object(worker.engine.Engine, "check_sampler", lambda _engine: None)
    with unchecked, patch.object(SeededSampler, "apply", apply):
        yield


def favour(token: int) -> Tilt:
    """Add FAVOUR to one token's logit."""

    def tilt(logits: torch.Tensor, _outputs: list[list[int]]) -> torch.Tensor:
        logits[:, token] += FAVOUR
        return logits

    return tilt


def penalise_repetition(logits: torch.Tensor, outputs: list[list[int]]) -> torch.Tensor:
    """Penalise what the completion already has."""
    for row, tokens in enumerate(outputs):
        if tokens:
            seen = torch.tensor(sorted(set(tokens)))
            values = logits[row, seen]
            logits[row, seen] = torch.where(values > 0, values / PENALTY, values * PENALTY)
    return logits


def cheats(stop_token: int) -> dict[str, SubtleCheat]:
    """Return them by name."""
    weights = ("int8 weights", "fp8 weights", "a low-rank change of 1 %")
    found = [SubtleCheat(name, change=CHEAPER[name]) for name in weights]
    found += [
        SubtleCheat("fp8 key-value cache", inside=fp8_cache),
        SubtleCheat("int8 key-value cache", inside=int8_cache),
        SubtleCheat("a stop token favoured by 0.1", inside=lambda: tilted(favour(stop_token))),
        SubtleCheat("a repetition penalty of 1.02", inside=lambda: tilted(penalise_repetition)),
    ]
    return {one.name: one for one in found}
