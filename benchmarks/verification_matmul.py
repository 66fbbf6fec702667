"""What bfloat16 costs where torch has no instructions for it: SmolLM2-135M replayed and run, natively and in float32.

Every process emulates AVX2 (`muster.runtime.processor.EMULATIONS`), which changes nothing on a processor that has no
more. The rows are of a real bfloat16 engine with this processor's own instructions. One thread each, and processor time
rather than minutes, so that a busy machine measures the same.

Ten times is the target where no instructions are. A newer processor that emulates cannot show it: torch's bfloat16 ran
at 17 GFLOP/s here, and five times that is more than AVX2 has in float32. It must show three times.

    replay_float32    tokens of a second of processor time, prompts included, against torch's own bfloat16
    replay_verdicts   share of the rows that both ways judge alike
    replay_memory     peak of the process besides what it had imported, over the bfloat16 weights
    engine_float32    generated tokens of a second of processor time, against vLLM's own bfloat16
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.watched import memory_of
from muster.authoring.probe_process import run_probe
from muster.rollouts.parquet import read_rollouts
from muster.runtime.processor import EMULATIONS, read_features
from muster.verification.probes import ProbeRequest, ProbeSpec, read_spec, write_document
from muster.verification.profiles import BF16
from testbed.samples.packaged_model import packaged_model

ROWS, TOKENS, AT_ONCE = 256, 64, 64
WAYS = ("float32", "native")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
EMULATED = "avx512f" in read_features()
TARGETS = {"replay_float32": 3.0 if EMULATED else 10.0, "replay_memory": 3.0, "engine_float32": 3.0}


def figures(runs: int) -> list[report.Figure]:
    """Return the figures; both ways take turns."""
    with tempfile.TemporaryDirectory(prefix="muster-matmul-") as name:
        folder = Path(name)
        model, spec, rows_file = packaged_model(), folder / "spec.json", folder / "rows.parquet"
        weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        write_document(spec_of(model), spec)
        asyncio.run(run_probe("worker.probe", spec, rows_file, environment=ONE_THREAD))
        emulated = EMULATIONS["AVX2"] | ONE_THREAD
        replays, engines = (
            [{way: report.apart(work, folder, way, environment=emulated) for way in WAYS} for _ in range(runs)]
            for work in (replay, generate)
        )
    ours, peers = ([run[way]["speed"] for run in replays] for way in WAYS)
    made, native = ([run[way]["speed"] for run in engines] for way in WAYS)
    pairs = list(zip(*(replays[0][way]["verdicts"] for way in WAYS), strict=True))
    memory, native_memory = ([run[way]["memory"] / weights for run in replays] for way in WAYS)
    alike = sum(one == other for one, other in pairs)
    about = {"emulated": EMULATED, "load": [round(one, 1) for one in os.getloadavg()]}
    speed = "tokens/s of processor time"
    return [
        _faster("replay_float32", ours, peers, unit=speed, **about),
        report.figure(
            "replay_verdicts",
            alike,
            ratio=alike / len(pairs),
            target=1.0,
            unit=f"of {len(pairs)} rows judged alike",
            rejected={way: sum(map(bool, replays[0][way]["verdicts"])) for way in WAYS},
            largest={way: replays[0][way]["activation"] for way in WAYS},
            rejects=BF16.activation.reject,
        ),
        report.figure(
            "replay_memory",
            memory,
            peer=native_memory,
            ratio=max,
            target=TARGETS["replay_memory"],
            at_most=True,
            unit="times the bfloat16 weights",
            weights=weights,
        ),
        _faster(
            "engine_float32",
            made,
            native,
            unit=speed,
            kernels=sorted({kernel for run in engines for way in WAYS for kernel in run[way]["kernels"]}),
            **about,
        ),
    ]


def _faster(name: str, ours: list[float], peer: list[float], **more: Any) -> report.Figure:
    """Return a figure whose ratio is our slowest run over the peer's fastest."""
    return report.figure(name, ours, peer=peer, ratio=min(ours) / max(peer), target=TARGETS[name], **more)


def spec_of(model: Path) -> ProbeSpec:
    """Return requests of tasks of ours, some with each prompt."""
    from benchmarks.calibration import requests_of  # what it imports would count as memory of the replay's

    asked = [
        ProbeRequest(prompt_tokens=one.prompt_tokens.tolist(), seed=one.seed, max_tokens=TOKENS)
        for one in requests_of(model, ROWS, TOKENS, "matmul")
    ]
    calls = [asked[start : start + AT_ONCE] for start in range(0, ROWS, AT_ONCE)]
    return ProbeSpec(model=model, profile=BF16.name, temperature=1.0, calls=calls)


# --- One process


def replay(folder: Path, matmul: Any) -> dict[str, Any]:
    """Replay all rows as a validator does; return speed, memory and findings."""
    from muster.verification.judging import judge
    from muster.verification.replay import Replayer

    spec, rows = read_spec(folder / "spec.json"), read_rollouts((folder / "rows.parquet").read_bytes())
    before = memory_of("self", "VmHWM")
    replayer = Replayer(spec.model, BF16, spec.temperature, matmul=matmul)
    replayer.load_weights(spec.model)
    begun = time.process_time()
    found = replayer.replay(rows)
    seconds = time.process_time() - begun
    findings = [judge([one], BF16) for one in found]
    return {
        "speed": sum(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows) / seconds,
        "memory": memory_of("self", "VmHWM") - before,
        "verdicts": ["" if finding is None else finding.reason for finding in findings],
        "activation": max(one.activation for one in found),
    }


def generate(folder: Path, matmul: Any) -> dict[str, Any]:
    """Answer the first call's requests after a few that warm the engine up."""
    from worker.engine import Engine, GenerationRequest
    from worker.probe import limits_of

    spec = read_spec(folder / "spec.json").model_copy(update={"matmul": matmul})
    engine = Engine(spec.model, BF16, limits_of(spec))
    requests = [
        GenerationRequest(np.array(one.prompt_tokens, np.int32), one.seed, one.max_tokens) for one in spec.calls[0]
    ]
    engine.generate(requests[:1])
    engine.forget()
    begun = time.process_time()
    tokens = sum(len(one.tokens) for one in engine.generate(requests))
    mapped = {
        path.name for path in map(Path, Path("/proc/self/maps").read_text().split()) if path.parent.name == "vllm"
    }
    return {"speed": tokens / (time.process_time() - begun), "kernels": sorted(mapped)}
