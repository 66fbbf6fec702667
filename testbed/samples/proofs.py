"""One completion through a codec, which takes batches."""

from __future__ import annotations

import torch

from muster.proofs.codec import Codec, Comparison


def encode(codec: Codec, states: torch.Tensor, seed: int) -> bytes:
    return codec.encode_batch([states], [seed])[0]


def compare(codec: Codec, proof: bytes, states: torch.Tensor, seed: int) -> Comparison:
    return codec.compare_batch([proof], [states], [seed])[0]
