"""What Muster adds to vLLM's worker process: the states behind the sampled tokens, turned into proofs.

vLLM mixes this class into its worker (`worker_extension_cls`), and `worker.engine` calls its methods by
`collective_rpc`, so that only proofs and log-probabilities cross a process border. The states are those that enter the
model's `logits_processor`: a pre-hook on it sees one row per running request, in the order of the persistent batch,
eager and compiled alike. Calls with another number of rows (profiling, prompt log-probabilities) are something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS

from muster.models.numerics import pin_numerics
from muster.models.weights import read_weights
from muster.proofs.projection import make_proofs
from muster.proofs.seeded_sampling import choose_portable
from muster.rollouts.spans import sampled_mask
from muster.shardcast.delta.contents import Fingerprint, fingerprints
from worker.sampler import Capture, SeededSampler

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

_LAYER: Final = re.compile(r"(.+?\.\d+)\.")
_ALONE: Final = ("embed_tokens", "norm", "lm_head")
"""Modules outside the layers that vLLM fuses with nothing."""


@register_model_loader("muster")
class CheckpointLoader(DefaultModelLoader):
    """Reads the weights that an engine starts with, by the function that reads all later ones (`muster_load`)."""

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and tensor of everything in the checkpoint. Raises MalformedError as `read_weights`."""
        return read_weights(Path(model_config.model))


class CaptureExtension:
    """Mixed into vLLM's worker; every name is prefixed because vLLM refuses clashes."""

    if TYPE_CHECKING:
        model_runner: GPUModelRunner

    def muster_begin(self, keep_logits: bool = False) -> None:
        """Drop what was recorded and record from now on, with numerics pinned in each of the engine's processes.

        On request the logits are recorded too, as the model computes them: for `muster_expect`.
        """
        pin_numerics()
        sampler = self._muster_sampler()
        sampler.capture = Capture()
        head = cast(torch.nn.Module, self.model_runner.get_model().logits_processor)
        if not hasattr(self, "_muster_hook"):
            self._muster_hook = head.register_forward_pre_hook(self._muster_note_states)
        if keep_logits:
            self._muster_logits: list[torch.Tensor] = []
            self._muster_kept = head.register_forward_hook(lambda *call: self._muster_logits.append(call[-1].clone()))

    def muster_collect(self, seeds: list[int], spans: list[list[int]]) -> tuple[list[bytes], list[bytes]]:
        """Return proofs and float32 log-probabilities (as bytes) of what was sampled in the finished call.

        spans: of the completion in each slot, by their ends.
        """
        sampler = self._muster_sampler()
        capture, sampler.capture = sampler.capture, Capture()
        masks = [sampled_mask(np.array(ends)) for ends in spans]
        rows = torch.from_numpy(rows_of_tokens(capture, [len(mask) for mask in masks], np.concatenate(masks)))
        ends = np.cumsum([mask.sum() for mask in masks])[:-1].tolist()
        logprobs = torch.cat(capture.logprobs).cpu()[rows].numpy()  # first: by then the states are on the host
        states = torch.cat(capture.states)[rows].tensor_split(ends)
        proofs = make_proofs(states, seeds)
        return proofs, [part.astype("<f4").tobytes() for part in np.split(logprobs, ends)]

    def muster_expect(self, seeds: list[int], lengths: list[int]) -> list[list[int]]:
        """Return the tokens that the definition of seeded sampling gives in the finished call, by slot."""
        self._muster_kept.remove()
        sampler, logits = self._muster_sampler(), torch.cat(self._muster_logits)
        capture, sampler.capture, self._muster_logits = sampler.capture, Capture(), []
        rows = rows_of_tokens(capture, lengths)
        positions = np.concatenate([np.arange(length) for length in lengths])
        places = [torch.from_numpy(one).to(logits.device) for one in (rows, np.repeat(seeds, lengths), positions)]
        tokens = choose_portable(logits[places[0]], places[1], places[2], sampler.temperature).tokens.cpu()
        return [part.tolist() for part in tokens.split(lengths)]

    def muster_load(self, folder: str) -> int:
        """Put a checkpoint's weights into the model. Return how many tensors were read.

        What the manifests of this version and of the one before say is the same is not read again: layer by layer,
        since vLLM fuses tensors (q, k and v; all experts) and takes what it fuses together or not at all.
        """
        path, before = Path(folder), getattr(self, "_muster_weights", {})
        self._muster_weights: dict[str, Fingerprint] = {}  # unknown, should this fail half-way
        now = fingerprints(path)
        changed = {_layer(name) for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
        names = {name for name in now if _layer(name) in changed} if now else None
        read: list[str] = []

        def weights() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in read_weights(path, names):
                read.append(name)
                yield name, tensor

        if names is None or names:
            self.model_runner.reload_weights(weights_iterator=weights())
            self._muster_refresh_head()
        self._muster_weights = now
        return len(read)

    def _muster_refresh_head(self) -> None:
        """Finish `reload_weights` for a model whose head is tied to its embedding.

        The head gets no separate weights there, so vLLM 0.32 leaves it alone; but on CPU it computes with a packed
        copy, which would stay that of the old weights.
        """
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(model.config, "tie_word_embeddings", False):
            head.quant_method.process_weights_after_loading(head)

    def _muster_sampler(self) -> SeededSampler:
        """Return our logits processor. Raises RuntimeError unless it is the only one besides vLLM's own."""
        found = self.model_runner.input_batch.logitsprocs.all
        ours = [one for one in found if type(one) not in BUILTIN_LOGITS_PROCESSORS]
        if len(ours) != 1 or not isinstance(ours[0], SeededSampler):
            names = ", ".join(type(one).__name__ for one in ours) or "none"
            raise RuntimeError(f"the logits processors besides vLLM's own are {names}, not SeededSampler alone")
        return ours[0]

    def _muster_note_states(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        states = arguments[1]
        if states.shape[0] == self.model_runner.input_batch.num_reqs:
            self._muster_sampler().capture.pending = states


def _layer(name: str) -> str:
    """Return the group of tensors that vLLM may have fused a tensor with.

    That is `model.layers.0` of `model.layers.0.self_attn.q_proj.weight`, the module of embedding, last norm and head,
    and one group for all others.
    """
    if layer := _LAYER.match(name):
        return layer[1]
    module = name.rpartition(".")[0]
    return module if module.rpartition(".")[2] in _ALONE else ""


def rows_of_tokens(capture: Capture, lengths: list[int], sampled: np.ndarray | None = None) -> np.ndarray:
    """Return the index of every sampled token's recorded row, completions one after the other: int64 [sampled tokens].

    sampled: which tokens were, bool [sum of lengths]; None: all. Of several rows for one token the last one counts.
    Raises RuntimeError when a token has none.
    """
    none = np.zeros(0, dtype=np.int64)
    slots, positions = np.concatenate([none, *capture.slots]), np.concatenate([none, *capture.positions])
    wanted = np.asarray(lengths, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(wanted)])
    kept = np.flatnonzero(positions < wanted[slots])
    rows = np.full(starts[-1], -1, dtype=np.int64)
    rows[starts[slots[kept]] + positions[kept]] = kept
    rows = rows if sampled is None else rows[sampled]
    if (rows < 0).any():
        raise RuntimeError(f"{(rows < 0).sum()} of {len(rows)} tokens were sampled without being recorded")
    return rows
