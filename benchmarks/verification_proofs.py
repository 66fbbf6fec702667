"""What activation proofs cost, against the `toploc` package built from source: 64 sequences of 256 tokens, hidden 4096.

The package runs in a separate process (benchmarks/peers/toploc_process.py), on the same bfloat16 states, in turn with
ours. Before anything is timed, each side finds its own proofs honest. Both use one thread, except that the package
verifies with one thread per core: its wall time there is that of all cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from benchmarks import report
from benchmarks.watched import ask, peer, started
from muster.proofs.projection import compare_proofs, make_proofs

SEQUENCES, TOKENS, HIDDEN = 64, 256, 4096


def gaussian_states() -> list[torch.Tensor]:
    """Return the peer's states."""
    generators = [torch.Generator().manual_seed(i) for i in range(SEQUENCES)]
    return [torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16() for generator in generators]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def figures(runs: int) -> list[report.Figure]:
    torch.set_num_threads(1)
    states, seeds = gaussian_states(), list(range(SEQUENCES))
    proofs = make_proofs(states, seeds)
    if (off := max(float(found.distances.max()) for found in compare_proofs(proofs, states, seeds))) > 0:
        sys.exit(f"our proofs of these states are off by {off}")
    command = peer("toploc_process", SEQUENCES, TOKENS, HIDDEN)
    with started(command, {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}) as package:
        measured = report.alternate(
            runs,
            lambda: ask(package, "build"),
            lambda: seconds(lambda: make_proofs(states, seeds)),
            lambda: ask(package, "verify"),
            lambda: seconds(lambda: compare_proofs(proofs, states, seeds)),
        )
    per_token = [[value / (SEQUENCES * TOKENS) * 1e6 for value in values] for values in measured]
    their_build, our_build, their_verify, our_verify = per_token
    unit = "µs/token"
    return [
        report.slower("proof_build", our_build, peer=their_build, target=30.0, unit=unit),
        report.slower("proof_verify", our_verify, peer=their_verify, target=20.0, unit=unit),
    ]
