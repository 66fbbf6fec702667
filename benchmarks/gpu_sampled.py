"""Rows for a machine without vLLM: transformers samples them as a worker's engine would, by its noise and with proofs.

Model, cache and attention are transformers' own. Noise, choice, log-probabilities and proofs are the functions that
worker and validator share, on the device's logits and states. So these rows show whether what a GPU computes passes a
replay on the processor. They say nothing about vLLM's kernels, nor about the speed of a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.report import alternate
from muster.models.init import load_model
from muster.models.matmul import choose_matmul
from muster.models.numerics import device_kind, pin_numerics
from muster.proofs.projection import make_proofs
from muster.proofs.seeded_sampling import choose, scale
from muster.rollouts.spans import one_span
from muster.verification.profiles import Profile
from muster.verification.rules import ModelFacts
from worker.engine import Generation, GenerationRequest


class PlainSampler:
    """transformers on this machine's device, in a profile's dtype; it generates as `worker.engine.Engine` does."""

    def __init__(self, model_dir: Path, profile: Profile, temperature: float = 1.0) -> None:
        pin_numerics()
        self.device = torch.device(device_kind())
        matmul = choose_matmul("auto", self.device.type)
        self.model = load_model(model_dir, getattr(torch, profile.dtype), matmul).to(self.device).eval()
        self.temperature = temperature
        self.stop_tokens = sorted(ModelFacts.read(model_dir).stop_tokens)

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Complete all requests, in order: those with prompts of one length side by side, without padding."""
        lengths: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            lengths.setdefault(len(request.prompt_tokens), []).append(place)
        found: dict[int, Generation] = {}
        for places in lengths.values():
            found.update(zip(places, self._generate([requests[place] for place in places]), strict=True))
        return [found[place] for place in range(len(requests))]

    def _generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        # 1. Pass by pass until every row has stopped.
        seeds = [request.seed for request in requests]
        keys = torch.tensor(seeds, device=self.device)
        stops = torch.tensor(self.stop_tokens, dtype=torch.int64, device=self.device)
        ids = torch.from_numpy(np.stack([request.prompt_tokens for request in requests])).long().to(self.device)
        running, cache, passes = torch.ones_like(keys, dtype=torch.bool), None, []
        for position in range(max(request.max_tokens for request in requests)):
            output = self.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, states = output.past_key_values, output.last_hidden_state[:, -1]  # [B, H]
            logits = self.model.get_output_embeddings()(states)
            choice = choose(logits, keys, torch.full_like(keys, position), self.temperature)
            passes.append((states, choice.tokens, choice.logprobs))
            running &= ~torch.isin(choice.tokens, stops)
            if not running.any():
                break
            ids = choice.tokens[:, None]
        states, tokens, logprobs = (torch.stack(column, 1).cpu() for column in zip(*passes, strict=True))  # [B, T, …]

        # 2. Each row up to its end, with the proof of its states.
        ends = torch.isin(tokens, stops.cpu())
        stopped = [int(row.nonzero()[0]) + 1 if row.any() else len(row) + 1 for row in ends]
        counts = [min(stop, request.max_tokens) for stop, request in zip(stopped, requests, strict=True)]
        proofs = make_proofs([row[:count] for row, count in zip(states, counts, strict=True)], seeds)
        return [
            Generation(
                tokens[row, :count].numpy().astype(np.int32),
                logprobs[row, :count].numpy(),
                "stop" if stopped[row] <= count else "length",
                proofs[row],
                one_span(count),
            )
            for row, count in enumerate(counts)
        ]

    @torch.inference_mode()
    def choosing_speeds(self, rows: int, runs: int) -> tuple[list[float], list[float]]:
        """Return tokens per second that are chosen by seeded noise, and drawn by torch from the logits' softmax."""
        logits = torch.randn(rows, self.model.config.vocab_size, device=self.device, dtype=self.model.dtype)
        keys = torch.arange(rows, device=self.device)

        def drawn() -> torch.Tensor:
            logprobs = scale(logits, self.temperature).log_softmax(1)
            return logprobs.gather(1, logprobs.exp().multinomial(1))

        def speed(way: Callable[[], torch.Tensor]) -> float:
            begun = time.perf_counter()
            way().cpu()  # which waits for the device
            return rows / (time.perf_counter() - begun)

        ways = (lambda: choose(logits, keys, keys, self.temperature).logprobs, drawn)
        chosen, peer = alternate(runs + 1, *(partial(speed, way) for way in ways))
        return chosen[1:], peer[1:]
