"""One of several processes that take two updates together; see tests/unit/trainer/test_distributed.py.

[torchrun --nproc-per-node=2] -m testbed.runs.ranks_process FOLDER KIND [STATE]

KIND is one of KINDS. Without STATE both updates are taken, and what is resumed from is written after the first; with it
the second is taken from there, however many wrote it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trainer.distributed import Distributed, Ranks, samples_from_tensors, started_by_torchrun
from trainer.lora import merge
from trainer.loss import LossTerms
from trainer.model_replica import Replica, follow
from trainer.packing import Sample
from trainer.update import UpdateTerms

TERMS = UpdateTerms(learning_rate=1e-3, warmup_steps=1, optimiser_steps=2, micro_batch_tokens=64, temperature=0.7)
KINDS = {
    "whole": TERMS,
    "adapted": replace(
        TERMS,
        lora_rank=2,
        activation_checkpointing=True,
        old_logprobs="recomputed",
        loss=LossTerms(kl_coefficient=0.1, entropy_coefficient=1e-3, ratio="sequence"),
    ),
}


def main(folder: Path, kind: str, state: str = "") -> None:
    ranks = Distributed(silence_seconds=60) if started_by_torchrun() else Ranks()
    replica = Replica(folder / "model", KINDS[kind], ranks)
    if ranks.rank == 0:
        lead(replica, folder, kind, state)
    elif isinstance(ranks, Distributed):
        follow(replica, ranks)
    if isinstance(ranks, Distributed):
        ranks.close()


def lead(replica: Replica, folder: Path, kind: str, state: str) -> None:
    samples = samples_from_tensors(load_file(folder / "samples.safetensors"))
    world, reports = replica.ranks.world, []
    if state:
        replica.load(folder / state, moments=True)
    else:
        reports.append(replica.update(samples, 1))
        saving = replica.save(folder / f"{kind}-state-{world}")
        with torch.inference_mode():  # as while a score is taken
            replica.heartbeat()
    reports.append(replica.update(samples, 2))
    if not state:
        saving.result()
    name = f"{kind}-resumed-{world}" if state else f"{kind}-{world}"
    weights, adapter = replica.published(torch.float32)
    if adapter is not None:
        merge(adapter, weights)
    save_file(weights, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps([asdict(report) for report in reports]))
    (folder / f"{name}-poisoned.json").write_text(json.dumps(poison(replica, samples)))


def poison(replica: Replica, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what an update makes of an advantage that is not a number."""
    before, _ = replica.published(torch.float32)
    report = replica.update([*samples[:3], replace(samples[3], advantage=float("nan")), *samples[4:]], 3)
    after, _ = replica.published(torch.float32)
    moved = any(not torch.equal(before[name], after[name]) for name in before)
    return {"skipped": report.skipped, "suspects": report.suspects, "moved": moved}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
