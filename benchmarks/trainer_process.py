"""Our side of benchmarks/trainer.py: says "ready"; for each line on stdin takes one update and says "done" and JSON.

python -m benchmarks.trainer_process update MODEL BATCH        {"seconds", "tokens", "loss", "moved"}
python -m benchmarks.trainer_process stall MODEL BATCH FOLDER  the same, and a checkpoint of each, written during the
                                                               next; on "plain" without one, after the last is written
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from benchmarks.ragged import LONGEST, RaggedBatch
from trainer.layout import Sample
from trainer.loss import LossTerms
from trainer.ranks import Alone
from trainer.replica import Replica
from trainer.update import UpdateTerms

TERMS = UpdateTerms(
    learning_rate=3e-4,
    ramp_steps=0,
    weight_decay=0.01,
    gradient_clip=0.1,
    max_completion=LONGEST,
    loss=LossTerms(normaliser="constant", mismatch_bound=10.0),
)
"""What TRL's side does, in our words; no rollout is left out."""


def main() -> None:
    role, model, file, *rest = sys.argv[1:]
    samples = [Sample(*parts) for parts in RaggedBatch.load(Path(file)).rollouts()]
    replica = Replica(Path(model), TERMS, Alone())
    writing: Future[Any] | None = None
    print("ready", flush=True)
    for step, line in enumerate(sys.stdin, 1):
        if writing is not None and line.strip() == "plain":
            writing.result()
        before = [parameter.detach().clone() for parameter in replica.policy.parameters()]
        begun = time.perf_counter()
        report = replica.update(samples, step)
        if role == "stall" and line.strip() != "plain":
            if writing is not None:
                writing.result()
            writing = replica.save(Path(rest[0]) / str(step))
        seconds = time.perf_counter() - begun
        answer = {"seconds": seconds, "tokens": report.tokens, "loss": report.loss, "moved": moved(replica, before)}
        print("done", json.dumps(answer), flush=True)


def moved(replica: Replica, before: list[torch.Tensor]) -> float:
    """Euclidean length of the change of all weights."""
    pairs = zip(replica.policy.parameters(), before, strict=True)
    return sum(float((now.detach() - then).double().square().sum()) for now, then in pairs) ** 0.5


if __name__ == "__main__":
    main()
