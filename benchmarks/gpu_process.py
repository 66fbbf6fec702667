"""The parts of benchmarks/gpu.py: each is a separate process that writes its measurements to FOLDER/PART.json.

    python -m benchmarks.gpu_process PART FOLDER      FOLDER/plan.json has a `Plan`

They run one after the other, since two engines do not fit on a GPU beside each other. Speeds are by the clock on the
wall, of whole calls: the first warms up and does not count.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.verification_engine import PlainEngine, make_requests
from muster.verification.profiles import BF16, CPU_FP32, Profile
from worker.engine import Engine, EngineLimits, GenerationRequest, plain_arguments, start_vllm

PROFILES: Final = {"cuda": BF16, "cpu": CPU_FP32}
"""By kind of device: the profile whose dtype it computes in."""
PROMPT: Final = 64
"""Longest prompt of the speed measurements, in tokens."""


@dataclass(frozen=True)
class Plan:
    """What all parts work on."""

    device: str
    """`cuda` or `cpu`"""
    model: str
    """Checkpoint folder for speeds; the trainer trains it too."""
    replayed: str
    """Checkpoint folder whose rows are replayed: of a trained model, since an untrained one has no near-ties."""
    replays: int
    """Rows that are replayed."""
    rows: int
    """Completions of a call that is timed."""
    tokens: int
    """Of each of them."""
    runs: int
    """Calls, or updates, that count."""

    @classmethod
    def read(cls, folder: Path) -> Plan:
        return cls(**json.loads((folder / "plan.json").read_text()))

    def write(self, folder: Path) -> None:
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @property
    def profile(self) -> Profile:
        return PROFILES[self.device]

    @property
    def limits(self) -> EngineLimits:
        return EngineLimits(1.0, PROMPT, self.tokens, max_sequences=self.rows)

    def requests(self, run: int) -> list[GenerationRequest]:
        return make_requests(self.rows, self.tokens, seed=run)

    def speeds(self, call: Callable[[Sequence[GenerationRequest]], Any]) -> list[float]:
        """Return the tokens per second of each call that counts."""
        found = []
        for run in range(self.runs + 1):
            requests, begun = self.requests(run), time.monotonic()
            call(requests)
            found.append(self.rows * self.tokens / (time.monotonic() - begun))
        return found[1:]


# --- The parts


def worker(plan: Plan, folder: Path) -> dict[str, Any]:
    """Measure the engine as a worker runs it; its rows are the trainer's batch."""
    from muster.rollouts.parquet import write_rollouts
    from worker.rollouts import bare_rows

    begun = time.monotonic()
    engine = Engine(Path(plan.model), plan.profile, plan.limits)
    start = time.monotonic() - begun
    engine.stop_tokens = []
    speeds = plan.speeds(engine.generate)
    requests = plan.requests(0)
    (folder / "rows.parquet").write_bytes(write_rollouts(bare_rows(requests, engine.generate(requests))))
    return {"start_seconds": start, "tokens_per_second": speeds} | machine(plan)


def plain(plan: Plan, _: Path) -> dict[str, Any]:
    """Measure the same vLLM with the worker's settings, without the worker's sampler and proofs."""
    torch.set_num_threads(plan.limits.threads)
    engine = PlainEngine(start_vllm(Path(plan.model), plain_arguments(Path(plan.model), plan.profile, plan.limits)))
    return {"tokens_per_second": plan.speeds(engine.generate)}


def defaults(plan: Plan, _: Path) -> dict[str, Any]:
    """Measure vLLM as it starts by itself: on a GPU with the V2 runner, asynchronous scheduling and CUDA graphs."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = EngineArgs(
        plan.model,
        dtype=plan.profile.dtype,  # type: ignore[arg-type]
        skip_tokenizer_init=True,
        generation_config="vllm",
        max_model_len=PROMPT + plan.tokens,
        max_num_seqs=plan.rows,
    )
    engine = PlainEngine(LLMEngine.from_engine_args(arguments))
    return {"tokens_per_second": plan.speeds(engine.generate)}


def replay(plan: Plan, folder: Path) -> dict[str, Any]:
    """Let a validator's replay on the processor judge rows of this engine, as `muster doctor --engine` does."""
    from muster.authoring.probe_process import run_probe
    from muster.console.node.engine_check import VALIDATOR, WORKER, assess, model_spec
    from muster.verification.probes import read_report, write_document

    spec = model_spec(Path(plan.replayed), plan.profile.name, plan.replays)
    files = [folder / name for name in ("spec.json", "probe.parquet", "report.json")]
    write_document(spec.model_copy(update={"threads": torch.get_num_threads()}), files[0])
    seconds = {
        "generate_seconds": asyncio.run(run_probe(WORKER, *files[:2])),
        "replay_seconds": asyncio.run(run_probe(VALIDATOR, *files)),
    }
    report = read_report(files[2])
    checked = assess(report, plan.profile, {"processor": []}, seconds).document
    return checked | {"activation": max(row.statistics["activation"] for row in report.rows)}


def trainer(_: Plan, folder: Path) -> dict[str, Any]:
    """Measure one rank of the trainer under torchrun, sharded by FSDP2 over the one device."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run([*command, "-m", __spec__.name, "rank", str(folder)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines()[-1:]
        raise SystemExit(f"the rank failed: {' '.join(lines[:1])}")
    return json.loads((folder / "rank.json").read_text())


def rank(plan: Plan, folder: Path) -> dict[str, Any]:
    from muster.rollouts.parquet import read_rollouts
    from trainer.distributed import Distributed
    from trainer.model_replica import Replica
    from trainer.packing import Sample
    from trainer.update import UpdateTerms

    rows = read_rollouts((folder / "rows.parquet").read_bytes())
    samples = [Sample.from_rollout(row, (-1.0) ** position) for position, row in enumerate(rows)]
    ranks = Distributed(silence_seconds=60, dtype=getattr(torch, plan.profile.dtype))
    replica = Replica(Path(plan.model), UpdateTerms(learning_rate=1e-6, warmup_steps=0), ranks)
    seconds, kl = [], 0.0
    for step in range(1, plan.runs + 2):
        begun = time.monotonic()
        report = replica.update(samples, step)
        seconds.append(time.monotonic() - begun)
        if step == 1:
            kl = report.mismatch_kl
        if report.tokens == 0 or report.skipped:
            raise SystemExit(f"step {step} trained on {report.tokens} tokens, skipped: {report.skipped}")
    parameters = sum(parameter.numel() for parameter in replica.policy.parameters())
    tokens = sum(sample.length for sample in samples)
    found = {"seconds": seconds[1:], "tokens": tokens, "parameters": parameters, "mismatch_kl": kl} | machine(plan)
    ranks.close()
    return found


def machine(plan: Plan) -> dict[str, Any]:
    """Return the device, and the most memory that this process had of it, in bytes."""
    if plan.device == "cuda":
        device = torch.cuda.get_device_properties(0)
        return {"device": device.name, "memory": torch.cuda.max_memory_reserved(), "has": device.total_memory}
    from psutil import virtual_memory

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"device": "cpu", "memory": used, "has": virtual_memory().total}


PARTS: Final[dict[str, Callable[[Plan, Path], dict[str, Any]]]] = {
    part.__name__: part for part in (worker, plain, defaults, replay, trainer, rank)
}


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    found = PARTS[part](Plan.read(folder), folder)
    (folder / f"{part}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
