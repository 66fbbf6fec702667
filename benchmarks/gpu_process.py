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
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from benchmarks.verification_engine import PlainEngine, make_requests
from muster.verification.profiles import BF16, CPU_FP32, Profile
from worker.engine import Engine, EngineLimits, Generation, GenerationRequest, plain_arguments, start_vllm

if TYPE_CHECKING:
    from muster.verification.probes import ProbeSpec

PROFILES: Final = {"cuda": BF16, "cpu": CPU_FP32}
"""By kind of device: the profile whose dtype it computes in."""
PROMPT: Final = 64
"""Longest prompt of the speed measurements, in tokens."""
LONGEST: Final = 128
"""Longest completion of replayed rows, in tokens."""


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
    judged: int
    """Rows of the trainer's batch that are replayed too."""
    vllm: bool
    """Whether a worker's engine samples the rows; else `benchmarks.gpu_sampled` does."""

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
    begun = time.monotonic()
    engine = Engine(Path(plan.model), plan.profile, plan.limits)
    start = time.monotonic() - begun
    engine.stop_tokens = []
    return {"start_seconds": start} | generated(plan, engine.generate, folder) | machine(plan)


def sampled(plan: Plan, folder: Path) -> dict[str, Any]:
    """Measure sampling without vLLM, and what seeded noise costs; its rows are the trainer's batch."""
    from benchmarks.gpu_sampled import PlainSampler

    sampler = PlainSampler(Path(plan.model), plan.profile)
    sampler.stop_tokens = []
    found = generated(plan, sampler.generate, folder)
    noise, draw = sampler.choosing_speeds(plan.rows, plan.runs)
    return found | {"noise": noise, "draw": draw} | machine(plan)


def generated(
    plan: Plan, generate: Callable[[Sequence[GenerationRequest]], Sequence[Generation]], folder: Path
) -> dict[str, Any]:
    """Measure how fast completions are made, and write those of the trainer's batch."""
    speeds, requests = plan.speeds(generate), plan.requests(0)
    write_rows(folder / "rows.parquet", requests, generate(requests))
    return {"tokens_per_second": speeds}


def write_rows(path: Path, requests: Sequence[GenerationRequest], generations: Sequence[Generation]) -> None:
    from muster.rollouts.parquet import write_rollouts
    from worker.rollouts import bare_rows

    path.write_bytes(write_rollouts(bare_rows(requests, generations)))


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
    from muster.authoring.probe_process import WORKER, run_probe
    from muster.verification.probes import write_document

    spec, rows = spec_of_model(Path(plan.replayed), plan.profile.name, plan.replays), folder / "probe.parquet"
    write_document(spec, folder / "spec.json")
    begun = time.monotonic()
    if plan.vllm:
        asyncio.run(run_probe(WORKER, folder / "spec.json", rows))
    else:
        from benchmarks.gpu_sampled import PlainSampler

        asked = [GenerationRequest(np.array(r.prompt_tokens, np.int32), r.seed, r.max_tokens) for r in spec.requests]
        write_rows(rows, asked, PlainSampler(Path(plan.replayed), plan.profile).generate(asked))
    return judged(plan, spec, rows, generate_seconds=time.monotonic() - begun)


def spec_of_model(model: Path, profile: str, rows: int) -> ProbeSpec:
    """Return a spec of generated tasks for a model."""
    from muster.authoring.tasks.generated import sample_of
    from muster.models.files import load_tokenizer
    from muster.protocol.prompts import prompt_tokens
    from muster.verification.probes import ProbeRequest, ProbeSpec

    draw, tokenizer, tasks = Random(f"muster doctor {profile}"), load_tokenizer(model), sample_of(0)
    requests = [
        ProbeRequest(
            prompt_tokens=prompt_tokens(tokenizer, draw.choice(tasks)[1], draw.choice((8, 12, 16))).tolist(),
            seed=draw.getrandbits(63),
            max_tokens=LONGEST,
        )
        for _ in range(rows)
    ]
    return ProbeSpec(model=model.resolve(), profile=profile, temperature=1.0, calls=[requests])


def large(plan: Plan, folder: Path) -> dict[str, Any]:
    """Let it judge some rows of the trainer's batch: of a model in its full size, though with random weights."""
    from muster.rollouts.parquet import read_rollouts, write_rollouts
    from muster.verification.probes import ProbeRequest, ProbeSpec

    rows = read_rollouts((folder / "rows.parquet").read_bytes())[: plan.judged]
    requests = [
        ProbeRequest(prompt_tokens=row.prompt_tokens.tolist(), seed=row.seed, max_tokens=len(row.completion_tokens))
        for row in rows
    ]
    (folder / "large.parquet").write_bytes(write_rollouts(rows))
    spec = ProbeSpec(model=Path(plan.model), profile=plan.profile.name, temperature=1.0, calls=[requests])
    return judged(plan, spec, folder / "large.parquet", generate_seconds=0.0)


def judged(plan: Plan, spec: ProbeSpec, rows: Path, *, generate_seconds: float) -> dict[str, Any]:
    """Return what a validator makes of these rows."""
    from muster.authoring.probe_process import VALIDATOR, run_probe
    from muster.console.node.engine_check import assess
    from muster.verification.judging import measurements
    from muster.verification.measured import read_cell
    from muster.verification.probes import write_document

    files = rows.with_suffix(".json"), rows, rows.with_suffix(".npz")
    write_document(spec.model_copy(update={"threads": torch.get_num_threads()}), files[0])
    seconds = {
        "generate_seconds": generate_seconds,
        "replay_seconds": asyncio.run(run_probe(VALIDATOR, *files)),
    }
    measured = measurements(read_cell(files[2]), plan.profile)
    checked = assess(measured, plan.profile, {"processor": []}, seconds, {})
    return checked | {"activation": max(row.activation for row in measured)}


def trainer(_: Plan, folder: Path) -> dict[str, Any]:
    """Measure one rank of the trainer under torchrun, sharded by FSDP2 over the one device."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    done = subprocess.run([*command, "-m", __spec__.name, "rank", str(folder)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
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
    part.__name__: part for part in (worker, sampled, plain, defaults, replay, large, trainer, rank)
}


def main() -> None:
    part, folder = sys.argv[1], Path(sys.argv[2])
    found = PARTS[part](Plan.read(folder), folder)
    (folder / f"{part}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
