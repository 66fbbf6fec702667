"""Cheats of one running engine: what a node does to sampling, weights, cache or claims between two calls.

Each takes the lab and returns the rows that such a node would claim. All log-probabilities and proofs are those that
the engine computes for the claimed tokens, so that only what the cheat changes is left to see. For models of any size:
one engine serves them all, and nothing is prefilled a second time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np
import torch

from muster.authoring.models.variants import CHEAPER, Change, save_changed
from muster.proofs.projection import PROJECTIONS
from muster.proofs.seeded_sampling import Choice, choose, chosen_logprobs, measure, scale
from muster.rollouts.schema import Rollout
from testbed.adversaries.subtle import int8_cache, penalise_repetition
from worker.engine import Engine, GenerationRequest
from worker.rollouts import bare_rows

if TYPE_CHECKING:
    from worker.sampler import SeededSampler

Pick = Callable[["SeededSampler", torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""The sampler, logits [B, V], seeds and token indices [B], and the temperature: what is chosen instead, int64 [B]."""

FORBIDDEN: Final = -1e4
"""Logit of a token that is never sampled."""

DRAFT_NOISE: Final = 0.5
"""Standard deviation of a draft model's logits around the true ones."""

LEARNING_RATE: Final = 4e-5
"""At which SmolLM2-135M learns small sums: Adam's first step moves every weight by as much."""


@dataclass
class EngineLab:
    """A running engine, what is asked of it, and what it makes of that honestly."""

    engine: Engine
    model: Path
    requests: Sequence[GenerationRequest]
    stop_token: int
    folder: Path
    """For other weights, while they are loaded."""
    honest: Sequence[Rollout] = ()

    def generate(self, requests: Sequence[GenerationRequest] | None = None, pick: Pick | None = None) -> list[Rollout]:
        """Return a row for each request, its tokens chosen by `pick`."""
        requests = self.requests if requests is None else requests
        self.engine.forget()
        if pick is None:
            return bare_rows(requests, self.engine.generate(requests))
        with choosing(pick):
            return bare_rows(requests, self.engine.generate(requests))


Cheat = Callable[[EngineLab], list[Rollout]]


@contextmanager
def choosing(pick: Pick) -> Iterator[None]:
    """Let engines choose by `pick`, and claim the true log-probabilities of what is chosen."""
    from worker.sampler import SeededSampler

    plain = SeededSampler.apply

    def apply(self: SeededSampler, logits: torch.Tensor) -> torch.Tensor:
        def choose_otherwise(given: torch.Tensor, seeds: Any, positions: Any, temperature: float) -> Choice:
            tokens = pick(self, given, seeds, positions, temperature)
            return Choice(tokens, chosen_logprobs(scale(given, temperature), tokens))

        with patch("worker.sampler.choose", choose_otherwise):
            return plain(self, logits)

    with patch.object(SeededSampler, "apply", apply):
        yield


# --- Other sampling


def sampled_from(tilt: Callable[[torch.Tensor, list[list[int]]], torch.Tensor]) -> Cheat:
    """Sample from other logits: those that `tilt` makes of a copy and of the tokens of each row so far."""

    def pick(sampler: SeededSampler, given: torch.Tensor, *rest: Any) -> torch.Tensor:
        return choose(tilt(given.float().clone(), sampler._outputs[: len(given)]), *rest).tokens

    return lambda lab: lab.generate(pick=pick)


def top_k(logits: torch.Tensor, _outputs: object, count: int = 20) -> torch.Tensor:
    least = logits.topk(count, dim=1).values[:, -1:]
    return logits.masked_fill(logits < least, FORBIDDEN)


def top_p(logits: torch.Tensor, _outputs: object, share: float = 0.95) -> torch.Tensor:
    ordered, places = logits.softmax(dim=1).sort(dim=1, descending=True)
    beyond = ordered.cumsum(dim=1) - ordered >= share
    return logits.masked_fill(torch.zeros_like(beyond).scatter(1, places, beyond), FORBIDDEN)


def favouring_the_stop_token(lab: EngineLab, by: float = 1.0) -> list[Rollout]:
    def tilt(logits: torch.Tensor, _outputs: object) -> torch.Tensor:
        logits[:, lab.stop_token] += by
        return logits

    return sampled_from(tilt)(lab)


def drafted(within: float) -> Cheat:
    """Take the tokens of a cheaper model wherever they are not more than `within` logits below the drawn ones."""

    def pick(_sampler: object, given: torch.Tensor, *rest: Any) -> torch.Tensor:
        draft = choose(given + DRAFT_NOISE * torch.randn(given.shape, generator=random), *rest).tokens
        seeds, positions, temperature = rest
        accepted = measure(given, draft, seeds, positions, temperature).gaps <= within
        return torch.where(accepted, draft, choose(given, *rest).tokens)

    random = torch.Generator().manual_seed(5)
    return lambda lab: lab.generate(pick=pick)


def another_seed(lab: EngineLab) -> list[Rollout]:
    def pick(_sampler: object, given: torch.Tensor, seeds: torch.Tensor, *rest: Any) -> torch.Tensor:
        return choose(given, seeds ^ (1 << 33), *rest).tokens

    return lab.generate(pick=pick)


def best_of_two(lab: EngineLab) -> list[Rollout]:
    """Claim the surer one of two completions."""
    pairs = zip(lab.honest, another_seed(lab), strict=True)
    return [max(pair, key=lambda row: float(row.logprobs.mean())) for pair in pairs]


def edited_last(lab: EngineLab) -> list[Rollout]:
    """Replace the last token before the end by the most probable other one."""
    tokens = [row.completion_tokens for row in lab.honest]
    places = [edited_place(row, lab.stop_token) for row in lab.honest]

    def pick(
        sampler: SeededSampler, given: torch.Tensor, _seeds: Any, positions: torch.Tensor, _t: Any
    ) -> torch.Tensor:
        found = []
        for row, (slot, place) in enumerate(zip(sampler._slots[: len(given)], positions.tolist(), strict=True)):
            true = int(tokens[slot][min(place, len(tokens[slot]) - 1)])
            if place == places[slot]:
                best = given[row].topk(2).indices.tolist()
                true = best[0] if best[0] != true else best[1]
            found.append(true)
        return torch.tensor(found)

    asked = [replace(request, max_tokens=len(one)) for request, one in zip(lab.requests, tokens, strict=True)]
    return lab.generate(asked, pick)


def edited_place(row: Rollout, stop_token: int) -> int:
    """Return the index of a completion's last token that does not end it."""
    last = len(row.completion_tokens) - 1
    return max(0, last - int(row.completion_tokens[last] == stop_token))


# --- Other claims


def claiming(claim: Callable[[Rollout], Rollout]) -> Cheat:
    """Say one false thing of honest rows."""
    return lambda lab: [claim(row) for row in lab.honest]


def lowered(row: Rollout, by: float) -> Rollout:
    return replace(row, logprobs=row.logprobs - np.float32(by))


def spoiled_at(row: Rollout, places: slice, distance: float) -> Rollout:
    """Move these tokens' part of a `projection` proof by this relative distance."""
    numbers = np.frombuffer(row.proof, "<f2").astype(np.float32).reshape(-1, PROJECTIONS).copy()
    numbers[places] += distance * np.sqrt(np.square(numbers[places]).mean(axis=1, keepdims=True))
    return replace(row, proof=numbers.astype("<f2").tobytes())


# --- Other weights, and another cache


def running(make: Callable[[], Change]) -> Cheat:
    """Run changed weights, and be honest about everything else."""

    def cheat(lab: EngineLab) -> list[Rollout]:
        changed = save_changed(lab.model, lab.folder / "changed", make())
        try:
            lab.engine.load_weights(changed)
            return lab.generate()
        finally:
            lab.engine.load_weights(lab.model)
            shutil.rmtree(changed)

    return cheat


def one_step_back(tensor: torch.Tensor) -> torch.Tensor:
    """Return published weights of the step before: each moved by LEARNING_RATE, and rounded as it was published.

    Published bfloat16 weights are a trainer's float32 ones, rounded: these are anywhere within half a unit of them.
    """
    random = torch.Generator().manual_seed(9)
    moved = LEARNING_RATE * (2 * torch.randint(2, tensor.shape, generator=random) - 1)
    if tensor.dtype != torch.bfloat16:
        return tensor + moved
    unit = torch.exp2(tensor.float().abs().clamp_min(1e-30).log2().floor() - 7)
    return (tensor.float() + unit * (torch.rand(tensor.shape, generator=random) - 0.5) + moved).to(tensor.dtype)


def with_int8_cache(lab: EngineLab) -> list[Rollout]:
    with int8_cache():
        return lab.generate()


CHEATS: Final[dict[str, Cheat]] = {
    "temperature 0.97": sampled_from(lambda logits, _: logits / 0.97),
    "temperature 0.9": sampled_from(lambda logits, _: logits / 0.9),
    "top-p 0.95": sampled_from(top_p),
    "top-k 20": sampled_from(top_k),
    "a repetition penalty of 1.02": sampled_from(penalise_repetition),
    "a stop token favoured by 1.0": favouring_the_stop_token,
    "drafts accepted within half a logit": drafted(0.5),
    "drafts accepted within a tenth of a logit": drafted(0.1),
    "another seed": another_seed,
    "best of two": best_of_two,
    "an edited last token": edited_last,
    "log-probabilities lower by 0.0002": claiming(partial(lowered, by=0.0002)),
    "log-probabilities lower by 0.01": claiming(partial(lowered, by=0.01)),
    **{name: running(make) for name, make in CHEAPER.items()},
    "weights one step old, at 4e-5": running(lambda: one_step_back),
    "int8 key-value cache": with_int8_cache,
}
"""By name."""
