"""Sums over a row that only who ran the model has: of its last hidden states, and of its tokens' rivals.

For a row of T sampled tokens with states h of H entries, under random signs that follow from a seed,

    S_k = sum over p places and H entries of sign · h / sqrt(p · H · mean square of these entries)
    P_k = sum over T tokens of sign · lead / sqrt(T)

where a token's lead is the best other token's logit / temperature + noise, less its own logit / temperature, in nats.
The places are the p = PLACES tokens whose word is lowest, ties by place; in a row with no more, all tokens.

    word of the t-th token     `noise_bits` of the places' seed at token index 2^31 - 1 and token t, as int32
    noise                      `gumbel` of the places' seed at the token's index in its completion
    sign of entry i, place j   as `projection` has them of the signs' seed, n = (k · PLACES + j) · H + i
    sign of the t-th token     -1 where bit k of `noise_bits` of the signs' seed at index 2^31 - 2 and token t is set
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from muster.proofs.projection import SIGN_POSITION, signs
from muster.proofs.seeded_sampling import noise_bits

PLACES = 4
_LEAD_POSITION = SIGN_POSITION - 1


def look_sums(
    states: torch.Tensor,
    leads: torch.Tensor,
    lengths: Sequence[int],
    *,
    sign_seeds: Sequence[int],
    place_seeds: Sequence[int],
    count: int,
) -> np.ndarray:
    """Return S and P of B rows: float32 [B, 2, count], not finite where the states or leads are not.

    `states` [sum of lengths, H] and `leads` [sum of lengths] are of row after row, each at least 1 long.
    """
    sizes = torch.tensor(lengths)[:, None]
    there = torch.arange(int(sizes.max())) < sizes  # [B, T]

    # 1. S: places of shorter rows come before those that are not there, which stay rows of zeros.
    words = _words(place_seeds, SIGN_POSITION, there.shape[1]).to(torch.int64).masked_fill(~there, 1 << 32)
    places = words.argsort(stable=True)[:, :PLACES].sort().values
    filled = there[:, :PLACES]
    chosen = torch.zeros(*filled.shape, states.shape[1], dtype=torch.float64)
    chosen[filled] = states.cpu()[(places + sizes.cumsum(0) - sizes)[filled]].double()
    flat = chosen.flatten(1)
    matrices = signs(sign_seeds, PLACES * states.shape[1], rows=count)[:, :, : flat.shape[1]].double()
    of_states = (matrices * (flat / flat.norm(dim=1, keepdim=True))[:, None]).sum(dim=2)

    # 2. P.
    padded = torch.zeros(there.shape, dtype=torch.float64)
    padded[there] = leads.cpu().double()
    bits = (_words(sign_seeds, _LEAD_POSITION, there.shape[1])[:, None] >> torch.arange(count)[:, None]) & 1
    of_leads = ((1 - 2 * bits) * padded[:, None]).sum(dim=2) / sizes.sqrt()
    return torch.stack([of_states, of_leads], dim=1).float().numpy()


def _words(seeds: Sequence[int], position: int, tokens: int) -> torch.Tensor:
    keys = torch.tensor(list(seeds), dtype=torch.int64)
    return noise_bits(keys, torch.full_like(keys, position), tokens)
