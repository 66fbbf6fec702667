"""Seeded sampling inside vLLM: a V1 logits processor that makes greedy decoding a replayable draw.

Requests run at vLLM's temperature 0. This processor adds the noise of `muster.proofs.seeded_sampling`, takes the argmax
itself, notes the token's behaviour log-probability, and leaves vLLM no other choice than that token. vLLM's own
log-probability machinery stays off: it sorts and ranks the whole vocabulary for every token.

Each request brings `extra_args = {SEED: seed, SLOT: slot, OFFSET: offset}`; the slot is its place in the engine's
current call, and the offset is how many tokens of its completion came before: each turn is a request. The rows of
`logits` are vLLM's persistent batch, whose moves `update_state` follows. A row may be meaningless: a prompt
that is prefilled in several chunks, or recomputed after preemption, also gets a row for every chunk but the last. It is
recorded under the token index that is still to come, and the true row overwrites it later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from muster.proofs.seeded_sampling import choose
from worker.linear import use_linear_layers

SEED = "muster_seed"
SLOT = "muster_slot"
OFFSET = "muster_offset"
CONFIG = "muster"
"""Key of vLLM's `additional_config`: {"temperature": float, "matmul": how linear layers multiply bfloat16}."""

_NOT_REPLAYED: Final = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "temperature",
    "n",
)
"""What else of vLLM's sampling decides a token. A validator does not know it: it would compute another
token, and accuse. At temperature 0 vLLM itself drops top_p, top_k and min_p, and the draw is the run's."""


@dataclass
class Capture:
    """Everything recorded since the last call began: one entry per forward pass, rows aligned."""

    slots: list[np.ndarray] = field(default_factory=list)
    """int64 [B]"""
    positions: list[np.ndarray] = field(default_factory=list)
    """int64 [B]: token index in the completion"""
    states: list[torch.Tensor] = field(default_factory=list)
    """[B, H], on the host: beside a GPU's key-value cache there is no room for those of a whole commitment. Copies may
    still be under way until something later is read from the device."""
    logprobs: list[torch.Tensor] = field(default_factory=list)
    """float32 [B]"""
    pending: torch.Tensor | None = None
    """The states of the pass whose logits are about to be sampled from."""

    def take_states(self, rows: int) -> torch.Tensor:
        """Return the pending states, which must be those of `rows` logits."""
        states, self.pending = self.pending, None
        if states is None or states.shape[0] != rows:
            seen = None if states is None else states.shape[0]
            raise RuntimeError(f"captured the states of {seen} rows, but {rows} are sampled")
        return states


class SeededSampler(LogitsProcessor):
    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        extra = sampling_params.extra_args or {}
        if not {SEED, SLOT, OFFSET} <= extra.keys():
            raise ValueError(f"a request without {SEED}, {SLOT} and {OFFSET} cannot be replayed")
        greedy = SamplingParams(temperature=0.0)
        for name in _NOT_REPLAYED:
            value, plain = getattr(sampling_params, name), getattr(greedy, name)
            if value != plain:
                raise ValueError(f"{name} = {value} cannot be replayed: seeded sampling needs {name} = {plain}")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        rows = vllm_config.scheduler_config.max_num_seqs
        settings = cast("dict[str, Any]", vllm_config.additional_config)[CONFIG]
        self.temperature = float(settings["temperature"])
        use_linear_layers(settings["matmul"])  # here: each of the engine's processes makes this before its model
        self.device = device
        self.capture = Capture()
        self._seeds = np.zeros(rows, dtype=np.int64)
        self._slots = np.full(rows, -1, dtype=np.int64)
        self._offsets = np.zeros(rows, dtype=np.int64)
        self._outputs: list[list[int]] = [[] for _ in range(rows)]
        self._seeds_on_device = torch.zeros(0, dtype=torch.int64)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row, params, _, output in batch_update.added:
            extra = params.extra_args or {}
            self._seeds[row], self._slots[row], self._outputs[row] = extra[SEED], extra[SLOT], output
            self._offsets[row] = extra[OFFSET]
        for source, target, _ in batch_update.moved:
            self._exchange(source, target)
        self._seeds_on_device = torch.from_numpy(self._seeds[: batch_update.batch_size].copy()).to(self.device)

    def _exchange(self, source: int, target: int) -> None:
        """Swap two rows. That serves a one-way move too: the row it leaves behind is never read."""
        for values in (self._seeds, self._slots, self._offsets):
            values[source], values[target] = values[target], values[source]
        self._outputs[source], self._outputs[target] = self._outputs[target], self._outputs[source]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = logits.shape[0]
        positions = np.fromiter(map(len, self._outputs[:rows]), dtype=np.int64, count=rows) + self._offsets[:rows]
        places = torch.from_numpy(positions).to(self.device)
        choice = choose(logits, self._seeds_on_device, places, self.temperature)
        self.capture.slots.append(self._slots[:rows].copy())
        self.capture.positions.append(positions)
        self.capture.states.append(self.capture.take_states(rows).to("cpu", non_blocking=True))
        self.capture.logprobs.append(choice.logprobs)
        return logits.scatter_(1, choice.tokens[:, None], torch.inf)
