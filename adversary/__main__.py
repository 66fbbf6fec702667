"""python -m adversary --config FILE: work as an honest worker does in everything but the weights.

To every tensor it adds Gaussian noise, as if it ran a cheaper copy of the model: 2 % of the tensor's standard deviation
where the run computes in float32, 10 % where it computes in bfloat16. Its answers are still good, its files are
well-formed and its rewards correct: only a replay shows what it did.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from muster.models.weights import read_weights
from muster.runtime.process import STOP_SECONDS, run_process
from muster.settings.schema import Settings
from muster.verification.profiles import Profile
from worker.engine import Engine, EngineLimits, import_vllm
from worker.service import serve

NOISE: Final = {"float32": 0.02, "bfloat16": 0.1}
"""By a profile's dtype. Under bfloat16's limits single rows with 2 % or 5 % are rejected, and only a long pool accuses;
at 10 % one row accuses, also the demo's of at most 16 tokens."""


class NoisyEngine(Engine):
    """Runs each checkpoint plus noise."""

    def __init__(self, model_dir: Path, profile: Profile, limits: EngineLimits) -> None:
        super().__init__(model_dir, profile, limits)  # which reads the folder itself
        self.load_weights(model_dir)

    def load_weights(self, model_dir: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="muster-noisy-") as folder:
            save_file(dict(noisy(model_dir, NOISE[self.profile.dtype])), Path(folder) / "model.safetensors")
            super().load_weights(Path(folder))


def noisy(model_dir: Path, share: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the checkpoint's tensors plus noise of this share of their standard deviation, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in read_weights(model_dir):
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std(correction=0) * share
        yield name, (tensor.float() + noise).to(tensor.dtype)


async def cheat(settings: Settings) -> None:
    # It would find its own work rejected.
    worker = settings.worker.model_copy(update={"measure_steps": False})
    await serve(settings.model_copy(update={"worker": worker}), NoisyEngine)


if __name__ == "__main__":
    what = "generate rollouts with noisy weights"
    sys.exit(run_process("adversary", what, cheat, stop_seconds=STOP_SECONDS, prepare=import_vllm))
