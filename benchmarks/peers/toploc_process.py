"""Run the `toploc` package in a separate environment (`make bench-peers`), never imported by Muster.

Started by benchmarks/verification_codecs.py with the number of sequences, tokens each, and the hidden size. Says
"ready", reads one JSON request a line from stdin and answers each with "done" and JSON. One thread, but for what the
package itself starts.
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
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        match request["do"]:
            case "build" | "verify" as work:
                started = time.perf_counter()
                build(states) if work == "build" else verify(states, proofs)
                answer: Any = time.perf_counter() - started
            case "show":
                answer = [b"".join(parts).hex() for parts in proofs]
            case "read":
                theirs = [bytes.fromhex(text) for text in request["proofs"]]
                size = len(proofs[0][0])
                parts = [[proof[i : i + size] for i in range(0, len(proof), size)] for proof in theirs]
                answer = max(chunk.exp_mismatches for results in verify(states, parts) for chunk in results)
            case other:
                raise SystemExit(f"{other!r} is no request")
        print("done", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
