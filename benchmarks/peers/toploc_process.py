"""Run the `toploc` package in a separate environment (`make bench-peers`), never imported by Muster.

Started by benchmarks/verification_proofs.py with the number of sequences, tokens each, and the hidden size. Finds its
own proofs honest, says "ready", and answers each line of stdin, `build` or `verify`, with "done" and the seconds that
took. One thread, but for what the package itself starts.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from toploc import build_proofs_bytes, verify_proofs_bytes

CHUNK_TOKENS, POINTS = 32, 128


def gaussian_states(sequences: int, tokens: int, hidden: int) -> list[torch.Tensor]:
    """bfloat16 [tokens, hidden] each, the same as the other side's: one generator per sequence, seeded by its index."""
    return [
        torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(sequences)
    ]


def build(states: list[torch.Tensor]) -> list[list[bytes]]:
    return [build_proofs_bytes(rows, CHUNK_TOKENS, POINTS, skip_prefill=True) for rows in states]


def verify(states: list[torch.Tensor], proofs: list[list[bytes]]) -> list[Any]:
    pairs = zip(states, proofs, strict=True)
    return [verify_proofs_bytes(rows, parts, CHUNK_TOKENS, POINTS, skip_prefill=True) for rows, parts in pairs]


def main() -> None:
    torch.set_num_threads(1)
    states = gaussian_states(*map(int, sys.argv[1:]))
    proofs = build(states)
    if mismatches := max(chunk.exp_mismatches for results in verify(states, proofs) for chunk in results):
        raise SystemExit(f"the package reads its own proofs with {mismatches} mismatches in a chunk")
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        match line.strip():
            case "build":
                build(states)
            case "verify":
                verify(states, proofs)
            case other:
                raise SystemExit(f"{other!r} is no request")
        print("done", json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
