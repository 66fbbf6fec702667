"""What activation proofs cost, against the `toploc` package built from source: 64 sequences of 256 tokens, hidden 4096.

The package runs in a separate process (benchmarks/peers/toploc_process.py), on the same bfloat16 states, in turn with
ours. Before anything is timed, each side reads the other's proofs. Both use one thread, except that the package
verifies with one thread per core: its wall time there is that of all cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from benchmarks import report
from benchmarks.watched import ask, peer, started
from muster.proofs.projection import PROJECTION
from muster.proofs.toploc import TOPLOC

SEQUENCES, TOKENS, HIDDEN = 64, 256, 4096

MOST_MISMATCHES = 32
"""Of 128 entries: the package leaves ties to torch, so that on bfloat16 states some kept entries differ."""
MOST_ERROR = 0.1


def asked(process: subprocess.Popen[str], do: str, **more: object):
    """Return the answer of the package's process to a request."""
    return ask(process, json.dumps({"do": do, **more}))


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
    proofs = TOPLOC.encode_batch(states, seeds)
    PROJECTION.encode_batch(states, seeds)
    command = peer("toploc_process", SEQUENCES, TOKENS, HIDDEN)
    with started(command, {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}) as package:
        theirs = [bytes.fromhex(text) for text in asked(package, "show")]
        if (error := max(found.error for found in TOPLOC.compare_batch(theirs, states, seeds))) > MOST_ERROR:
            sys.exit(f"the package's proofs are read with an error of {error}")
        if (mismatches := asked(package, "read", proofs=[proof.hex() for proof in proofs])) > MOST_MISMATCHES:
            sys.exit(f"the package reads our proofs with {mismatches} mismatches in a chunk")
        measured = report.alternate(
            runs,
            lambda: asked(package, "build"),
            lambda: seconds(lambda: TOPLOC.encode_batch(states, seeds)),
            lambda: seconds(lambda: PROJECTION.encode_batch(states, seeds)),
            lambda: asked(package, "verify"),
            lambda: seconds(lambda: TOPLOC.compare_batch(proofs, states, seeds)),
        )
    per_token = [[value / (SEQUENCES * TOKENS) * 1e6 for value in values] for values in measured]
    their_build, our_build, our_projection, their_verify, our_verify = per_token
    unit = "µs/token"
    return [
        report.slower("toploc_build", our_build, peer=their_build, target=5.0, unit=unit),
        report.slower("toploc_verify", our_verify, peer=their_verify, target=3.0, unit=unit),
        report.slower("projection_build", our_projection, peer=their_build, target=30.0, unit=unit),
    ]
