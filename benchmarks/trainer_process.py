"""Our side of benchmarks/trainer.py: says "ready"; for each line on stdin takes one update and says "done" and JSON.

python -m benchmarks.trainer_process update MODEL BATCH        {"seconds", "tokens", "loss", "moved"}
python -m benchmarks.trainer_process step MODEL BATCH FOLDER   {"seconds"} of a step of the trainer's learner, which
                                                               is written while the next is taken; on "plain", of the
                                                               same without a checkpoint, once the last is written
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.ragged import LONGEST, NODE, RaggedBatch, rollouts_by_file, terms_of
from muster.protocol.hashes import content_hash
from muster.settings.schema import TrainerSettings
from trainer.batches import Batch, FileRef, WorkFile, samples_of
from trainer.distributed import Ranks
from trainer.learner import Learner, Recipe
from trainer.loss import LossTerms
from trainer.model_replica import Replica
from trainer.packing import Sample
from trainer.update import UpdateTerms

TERMS = UpdateTerms(
    learning_rate=3e-4,
    warmup_steps=0,
    weight_decay=0.01,
    gradient_clip=0.1,
    max_completion=LONGEST,
    loss=LossTerms(normaliser="constant", mismatch_bound=10.0),
)
"""What TRL's side does, in our words; no rollout is left out."""
ZEROS = "0x" + "00" * 32


def updates(model: Path, batch: Path) -> Callable[[str], dict[str, Any]]:
    samples = [Sample(*parts) for parts in RaggedBatch.load(batch).rollouts()]
    replica = Replica(model, TERMS, Ranks())
    step = 0

    def take(_: str) -> dict[str, Any]:
        nonlocal step
        step += 1
        before = [parameter.detach().clone() for parameter in replica.policy.parameters()]
        begun = time.perf_counter()
        report = replica.update(samples, step)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "tokens": report.tokens, "loss": report.loss, "moved": moved(replica, before)}

    return take


def moved(replica: Replica, before: list[torch.Tensor]) -> float:
    """Euclidean length of the change of all weights."""
    pairs = zip(replica.policy.parameters(), before, strict=True)
    return sum(float((now.detach() - then).double().square().sum()) for now, then in pairs) ** 0.5


def steps(model: Path, batch: Path, folder: Path) -> Callable[[str], dict[str, Any]]:
    terms = terms_of(model)
    recipe = Recipe.from_settings(TrainerSettings(warmup_steps=0, mismatch_bound=10.0), terms)
    learner = Learner(model, folder, terms, recipe, torch.bfloat16, Ranks())
    files = [
        WorkFile(FileRef(0, NODE, index, content_hash(bytes([index])), ZEROS), tuple(rollouts))
        for index, rollouts in enumerate(rollouts_by_file(batch))
    ]
    closed = Batch(0, tuple(file.ref for file in files))

    def take(line: str) -> dict[str, Any]:
        if line == "plain":
            learner.written()
        begun = time.perf_counter()
        if line == "plain":
            learner.replica.update(samples_of(files, recipe.advantages), learner.step + 1)
        else:
            learner.train_step(closed, files, {})
        return {"seconds": time.perf_counter() - begun}

    return take


def main() -> None:
    role, *paths = sys.argv[1:]
    take = {"update": updates, "step": steps}[role](*map(Path, paths))
    print("ready", flush=True)
    for line in sys.stdin:
        print("done", json.dumps(take(line.strip())), flush=True)


if __name__ == "__main__":
    main()
