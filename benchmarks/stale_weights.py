"""Measure where stale weights begin to show: the share of rollouts that gives them away.

The weights are one step old; the share is by learning rate, model and length.

    python benchmarks/stale_weights.py [--json] [--write] [--rollouts 64]

Models, prompts and engines are those of benchmarks/calibrate.py. --write puts the table into
docs/understand/verification.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.calibration import SHAPES, TRAINED, fresh, requests_of
from benchmarks.report import DOCS, rewrite, small, table
from muster.models.files import load_tokenizer
from muster.models.init import init_model, load_model, save_model
from muster.proofs.projection import PROJECTIONS
from muster.rollouts.schema import Rollout
from muster.verification.judging import judge
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from testbed.samples.task_sets import generated
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.update import UpdateTerms, make_optimizer, update
from worker.engine import Engine, EngineLimits
from worker.rollouts import bare_rows

RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4)
MODELS = (TRAINED, *SHAPES)
LENGTHS = (8, 32, 96)
UPDATES = 12
BATCH = 8
"""Rollouts of an update: with noise for advantages, how far AdamW goes does not depend on how many there are."""


def measure(folder: Path, rollouts: int) -> Iterator[dict[str, Any]]:
    """Measure, per model, learning rate and length, how work with weights one step old is judged.

    Yields the share of rollouts that are rejected and the median distance of their proofs. Updates are the trainer's,
    their advantages noise.
    """
    init_model(folder / TRAINED, generated(0), seed=0)
    for name, shape in SHAPES.items():
        fresh(shape)(folder / TRAINED, folder / name)
    bytes_per_token, engines = 2 * PROJECTIONS, []
    for name in MODELS:
        path, longest = folder / name, 32 if name == TRAINED else max(LENGTHS)
        engines.append(Engine(path, CPU_FP32, EngineLimits(1.0, 64, longest, cache_bytes=64 << 20)))
        replayer = Replayer(path, CPU_FP32, 1.0)
        requests = requests_of(path, rollouts, longest, name)
        work = bare_rows(requests, engines[-1].generate(requests))[:BATCH]
        for rate in RATES:
            older, newer = train(path, folder, work, rate)
            engines[-1].load_weights(older)
            rows = bare_rows(requests, engines[-1].generate(requests))
            replayer.load_weights(newer)
            for length in [length for length in LENGTHS if length <= longest]:
                cut = [shortened(row, length, bytes_per_token) for row in rows]
                found = replayer.replay(cut)
                rejected = [judge([one], CPU_FP32) is not None for one in found]
                yield {
                    "model": name,
                    "learning_rate": rate,
                    "tokens": round(float(np.mean([len(row.completion_tokens) for row in cut])), 1),
                    "length": length,
                    "rejected": float(np.mean(rejected)),
                    "activation": float(np.median([one.activation for one in found])),
                }


def train(source: Path, folder: Path, rows: Sequence[Rollout], rate: float) -> tuple[Path, Path]:
    """Return the last two checkpoints after some updates at a constant learning rate."""
    model, tokenizer, random = load_model(source), load_tokenizer(source), np.random.default_rng(3)
    terms = UpdateTerms(learning_rate=rate, warmup_steps=0)
    policy = Policy(model, temperature=terms.temperature)
    optimizer, kept = make_optimizer(policy, terms), (folder / f"{source.name}-older", folder / f"{source.name}-newer")
    for step in range(1, UPDATES + 1):
        batch = [Sample.from_rollout(row, random.standard_normal()) for row in rows]
        update(policy, optimizer, batch, terms, step=step)
        if step >= UPDATES - 1:
            save_model(model, tokenizer, kept[step - UPDATES + 1])
    return kept


def shortened(row: Rollout, length: int, bytes_per_token: int) -> Rollout:
    """Cut a rollout to the first tokens of its completion, with the claims about them."""
    return replace(
        row,
        completion_tokens=row.completion_tokens[:length],
        logprobs=row.logprobs[:length],
        proof=row.proof[: length * bytes_per_token],
    )


def page(found: Sequence[dict[str, Any]]) -> str:
    """Write the part of docs/understand/verification.md: a line per learning rate, a column per model and length."""
    columns = sorted({(MODELS.index(one["model"]), one["length"]) for one in found})
    heads = ["learning rate", *(f"{MODELS[model]}, up to {length}" for model, length in columns)]
    rows = []
    for rate in RATES:
        cells = []
        for model, length in columns:
            key = (MODELS[model], rate, length)
            one = next(one for one in found if (one["model"], one["learning_rate"], one["length"]) == key)
            cells.append(f"{one['rejected']:.0%} ({small(one['activation'])})")
        rows.append((f"{rate:g}", *cells))
    return (
        "Share of rollouts that are rejected by themselves when they were made with weights one step old, and the "
        f"median distance of their activation proofs (rejected above {small(CPU_FP32.activation.reject)}), under "
        f"{CPU_FP32.name}; by learning rate, model, and longest completion in tokens:\n\n" + table(heads, rows)
    )


def main() -> int:
    parser = report.parser(__doc__, write="the table in docs/understand/verification.md")
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts of each point")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = list(measure(Path(folder), options.rollouts))
    if options.write:
        rewrite(DOCS / "understand" / "verification.md", "lines", page(found))
    print(json.dumps({"machine": report.machine(), "lines": found}) if options.json else page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
