"""What a difference between two checkpoints weighs, and how fast it is applied.

    python benchmarks/broadcast.py --json --only deltas

The checkpoints are a bf16 model of 66 million parameters before and after one step of the trainer's own update (AdamW
on float32 master weights, after a few steps that fill its moments), with the learning rates at which about 1 % and
0.1 % of the bf16 values change. `ours` is bytes of the whole checkpoint over bytes of the difference, its manifests
included, resp. bytes of the whole checkpoint per second of processor time for reading the base, decoding and hashing
every shard; `limit` is what the entropy of independent changes would allow, resp. reading and hashing alone.
"""

from __future__ import annotations

import copy
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from safetensors.torch import save_file

from benchmarks import report
from muster.models.init import ModelShape, make_model, make_tokenizer
from muster.shardcast.delta.difference import TargetStep, made_shard
from muster.shardcast.delta.kinds import open_difference
from muster.shardcast.format.manifest import Manifest
from muster.shardcast.format.store import read_manifest, version_path, versions
from muster.shardcast.publish import publish
from muster.shardcast.retention import StepRetention
from trainer.loss import LossTerms
from trainer.packing import Sample
from trainer.policy import Policy
from trainer.update import UpdateTerms, make_optimizer, update

SHAPE = ModelShape(hidden=768, layers=7, heads=12, intermediate=3072)
WARM_STEPS = 6
USUAL_RATE = 1e-6
SHARES = {"delta_1pct": (0.01, 100.0), "delta_01pct": (0.001, 600.0)}
"""By figure: the share of values that change, and the target."""

APPLY_TARGET = 1.0
"""GB per second and core."""


@dataclass(frozen=True)
class Pair:
    """A checkpoint before and after an update, published in one folder with the difference."""

    base: TargetStep
    target: TargetStep
    difference: Path

    @property
    def ratio(self) -> float:
        """Return the bytes of the whole checkpoint over bytes of the difference."""
        made = read_manifest(self.difference)
        return self.target.manifest.total_bytes / (made.total_bytes + len(made.canonical))


def figures(runs: int) -> list[report.Figure]:
    """Make the checkpoints, then return the three figures."""
    with tempfile.TemporaryDirectory(prefix="muster-deltas-") as name:
        pairs = make_pairs(Path(name))
        found = [_size_figure(figure, pair, SHARES[figure][1]) for figure, pair in pairs.items()]
        pair = pairs["delta_1pct"]
        sides = report.alternate(runs, lambda: _apply(pair), lambda: _read_and_hash(pair))
    size = pairs["delta_1pct"].target.manifest.total_bytes / 1e9
    ours, limit = ([size / seconds for seconds in side] for side in sides)
    return [*found, report.figure("delta_apply", ours, limit=limit, target=APPLY_TARGET, unit="GB/s and core")]


def make_pairs(folder: Path) -> dict[str, Pair]:
    """By figure: one and the same base, and updates of it that change more or fewer values."""
    torch.set_num_threads(1)
    model = make_model(make_tokenizer(), SHAPE, seed=1)
    rng = np.random.default_rng(0)
    policy = Policy(model, temperature=1.0)
    optimizer = make_optimizer(policy, _terms(USUAL_RATE))
    for _ in range(WARM_STEPS):
        update(policy, optimizer, _samples(rng), _terms(USUAL_RATE), step=1)
    weights, moments, batch = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), _samples(rng)
    before = _bf16(model)

    def step(rate: float) -> float:
        """Take the same step at another learning rate; the share of bf16 values that it changed."""
        model.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(moments))
        update(policy, optimizer, batch, _terms(rate), step=1)
        return float((_bf16(model) != before).float().mean())

    pairs = {}
    for figure, (share, _) in SHARES.items():
        rate = USUAL_RATE * share / 0.01
        for _ in range(4):
            model.load_state_dict(weights)
            if figure not in pairs:
                base = _publish(model, folder / figure, 0)
            changed = step(rate)
            print(f"learning rate {rate:.2g} changes {changed:.3%}", file=sys.stderr)
            if abs(changed / share - 1) < 0.03:
                break
            rate *= share / changed
        target = _publish(model, folder / figure, 1)
        (difference,) = [v.path for v in versions(folder / figure) if read_manifest(v.path).base_step is not None]
        pairs[figure] = Pair(base, target, difference)
    return pairs


def _publish(model: torch.nn.Module, folder: Path, step: int) -> TargetStep:
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.named_parameters()}
    save_file(tensors, checkpoint / "model.safetensors")
    manifest: Manifest = publish(checkpoint, folder, 1, step, deltas=StepRetention(kept_hours=0))
    shutil.rmtree(checkpoint)
    return TargetStep(version_path(folder, manifest.root), manifest)


def _bf16(model: torch.nn.Module) -> torch.Tensor:
    """Return the bit patterns of all weights."""
    return torch.cat([p.detach().flatten().to(torch.bfloat16).view(torch.int16) for p in model.parameters()])


def _terms(rate: float) -> UpdateTerms:
    return UpdateTerms(learning_rate=rate, warmup_steps=1, loss=LossTerms(mismatch_bound=50.0))


def _samples(rng: np.random.Generator) -> list[Sample]:
    """Rollouts of random characters, the frequent ones more often, with random advantages."""
    behaviour, samples = np.full(24, -4.6, np.float32), []
    for _ in range(8):
        tokens = (9 + 95 * rng.beta(0.7, 3, 48)).astype(np.int32)
        samples.append(Sample(tokens[:24], tokens[24:], behaviour, rng.normal()))
    return samples


# Figures


def _apply(pair: Pair) -> float:
    """Processor seconds, of one thread, for making every shard."""
    difference = open_difference(pair.difference, pair.target.manifest.root)
    started = time.process_time()
    for shard in pair.target.manifest.shards:
        if made_shard(pair.base, [difference], shard) is None:
            raise SystemExit(f"shard {shard.index} comes out wrong")
    return time.process_time() - started


def _read_and_hash(pair: Pair) -> float:
    started = time.process_time()
    for shard in pair.base.manifest.shards:
        blake3(pair.base.read(shard)).digest()
    return time.process_time() - started


def _size_figure(name: str, pair: Pair, target: float) -> report.Figure:
    before, after = _values(pair.base), _values(pair.target)
    differs = before != after
    share, count = float(differs.mean()), int(differs.sum())
    _, times = np.unique((after - before)[differs], return_counts=True)
    places = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    bits = len(before) * places - float((times * np.log2(times / count)).sum())
    limit, changed = 2 * len(before) / (bits / 8), round(share, 5)
    return report.figure(name, pair.ratio, limit=limit, target=target, unit="times", changed=changed)


def _values(step: TargetStep) -> np.ndarray:
    """Return the model's bit patterns."""
    data = (step.path / "model.safetensors").read_bytes()
    return np.frombuffer(data, "<u2", offset=8 + int.from_bytes(data[:8], "little"))
