"""python -m adversary --config FILE: work as an honest worker does in everything but one thing.

Where the run has tools it runs none, and makes their results up. Elsewhere it changes the weights.
To every tensor it adds Gaussian noise, as if it ran a cheaper copy of the model: 2 % of the tensor's standard deviation
where the run computes in float32, 10 % where it computes in bfloat16. Its answers are still good, its files are
well-formed and its rewards correct: only a replay shows what it did.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from muster.chain.client import Chain
from muster.environments.tools.base import EarlierCall, Tool, ToolResult
from muster.environments.tools.registry import NO_TOOLS
from muster.models.weights import read_weights
from muster.protocol.turns.conversation import TurnRules
from muster.runtime.process import STOP_SECONDS, run_process
from muster.settings.schema import Settings
from muster.verification.profiles import Profile
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest, import_vllm
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
            shutil.copyfile(model_dir / "config.json", Path(folder) / "config.json")
            save_file(dict(noisy(model_dir, NOISE[self.profile.dtype])), Path(folder) / "model.safetensors")
            super().load_weights(Path(folder))


def noisy(model_dir: Path, share: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the checkpoint's tensors plus noise of this share of their standard deviation, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in read_weights(model_dir):
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std(correction=0) * share
        yield name, (tensor.float() + noise).to(tensor.dtype)


class ForgingEngine(Engine):
    """Runs the right weights, and answers each call with a number of its own."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        asked = [replace(one, turns=one.turns and forged(one.turns)) for one in requests]
        return super().generate(asked)


class ForgedTool:
    """Looks like a tool and does none of its work."""

    def __init__(self, tool: Tool) -> None:
        self.name, self.description, self.parameters, self.code = (
            tool.name,
            tool.description,
            tool.parameters,
            tool.code,
        )

    def run(self, arguments: Mapping[str, Any], fuel: int, earlier: Sequence[EarlierCall] = ()) -> ToolResult:
        return ToolResult("42", min(fuel, 1))


def forged(turns: TurnRules) -> TurnRules:
    """Return the rules with tools that are none."""
    calls = turns.template.rules
    tools = {name: ForgedTool(tool) for name, tool in calls.tools.items()}
    return replace(turns, template=replace(turns.template, rules=replace(calls, tools=tools)))


async def cheat(settings: Settings) -> None:
    # It would find its own work rejected.
    worker = settings.worker.model_copy(update={"measure_steps": False})
    async with await Chain.connect(settings.chain) as chain:
        terms = await chain.terms(settings.run)
    engine = NoisyEngine if terms.tools_root == NO_TOOLS else ForgingEngine
    await serve(settings.model_copy(update={"worker": worker}), engine)


if __name__ == "__main__":
    what = "generate rollouts with noisy weights or made-up results of tools"
    sys.exit(run_process("adversary", what, cheat, stop_seconds=STOP_SECONDS, prepare=import_vllm))
