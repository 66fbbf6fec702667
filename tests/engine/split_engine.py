"""python -m tests.engine.split_engine FOLDER: run an engine in two processes, before and after it loads new weights.

It multiplies bfloat16 in float32. It is a separate program because vLLM starts its processes from the main module.
FOLDER holds two checkpoints, `1` and `2`. For each, it prints the file with the generated rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from muster.rollouts.parquet import write_rollouts
from muster.verification.profiles import BF16
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows

LIMITS = EngineLimits(1.0, 64, 48, cache_bytes=64 << 20, ranks=2, matmul="float32")
REQUESTS = 16


def main() -> None:
    folder, random = Path(sys.argv[1]), np.random.default_rng(0)
    requests = [
        GenerationRequest(random.integers(20, 100, 24).astype(np.int32), int(random.integers(1 << 62)), 40)
        for _ in range(REQUESTS)
    ]
    engine = Engine(folder / "1", BF16, LIMITS)
    try:
        for name in ("1", "2"):
            if name == "2":
                engine.load_weights(folder / name)
            (folder / f"{name}.parquet").write_bytes(write_rollouts(bare_rows(requests, engine.generate(requests))))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
