"""What bfloat16 costs where torch has no instructions for it: SmolLM2-135M replayed and run, natively and in float32.

    python benchmarks/verification_matmul.py [--json] [--runs 1] [--rows 256]

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

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from muster.authoring.models.fetch import fetch_model  # noqa: E402
from muster.authoring.tasks.generated import sample_of  # noqa: E402
from muster.models.files import load_tokenizer  # noqa: E402
from muster.protocol.prompts import prompt_tokens  # noqa: E402
from muster.rollouts.parquet import read_rollouts  # noqa: E402
from muster.runtime.processor import EMULATIONS, read_features  # noqa: E402
from muster.verification.probes import ProbeRequest, ProbeSpec, read_spec, write_document  # noqa: E402
from muster.verification.profiles import BF16  # noqa: E402

SOURCE = "smollm2-135m"
ROWS, TOKENS, GROUP, AT_ONCE = 256, 64, 4, 64
WAYS = ("float32", "native")
CHILD_SECONDS = 7200
EMULATED = "avx512f" in read_features()
TARGETS = {"replay_float32": 3.0 if EMULATED else 10.0, "replay_memory": 3.0, "engine_float32": 3.0}


def figures(runs: int, rows: int = ROWS) -> list[report.Figure]:
    """Return the figures; both ways take turns."""
    with tempfile.TemporaryDirectory(prefix="muster-matmul-") as name:
        folder = Path(name)
        fetch_model(SOURCE, folder / "model", ROOT / ".muster" / "models", note=_note)
        weights = sum(path.stat().st_size for path in (folder / "model").glob("*.safetensors"))
        write_document(spec_of(folder / "model", rows), folder / "spec.json")
        _run("worker.probe", folder / "spec.json", folder / "rows.parquet")
        replays, engines = (
            [{way: _child(kind, folder, way) for way in WAYS} for _ in range(runs)] for kind in CHILDREN
        )
    ours, peers = ([run[way]["speed"] for run in replays] for way in WAYS)
    made, native = ([run[way]["speed"] for run in engines] for way in WAYS)
    pairs = list(zip(*(replays[0][way]["verdicts"] for way in WAYS), strict=True))
    memory = [run["float32"]["memory"] / weights for run in replays]
    about = {"emulated": EMULATED, "load": [round(one, 1) for one in os.getloadavg()]}
    return [
        report.figure(
            "replay_float32",
            ours,
            peer=peers,
            ratio=min(ours) / max(peers),
            target=TARGETS["replay_float32"],
            unit="tokens/s of processor time",
            **about,
        ),
        report.figure(
            "replay_verdicts",
            [sum(one == other for one, other in pairs)],
            ratio=sum(one == other for one, other in pairs) / len(pairs),
            target=1.0,
            unit=f"of {len(pairs)} rows judged alike",
            rejected={way: sum(map(bool, replays[0][way]["verdicts"])) for way in WAYS},
            largest={way: replays[0][way]["activation"] for way in WAYS},
            rejects=BF16.activation.reject,
        ),
        report.figure(
            "replay_memory",
            memory,
            peer=[run["native"]["memory"] / weights for run in replays],
            ratio=max(memory),
            target=TARGETS["replay_memory"],
            at_most=True,
            unit="times the bfloat16 weights",
            weights=weights,
        ),
        report.figure(
            "engine_float32",
            made,
            peer=native,
            ratio=min(made) / max(native),
            target=TARGETS["engine_float32"],
            unit="tokens/s of processor time",
            kernels=sorted({kernel for run in engines for way in WAYS for kernel in run[way]["kernels"]}),
            **about,
        ),
    ]


def spec_of(model: Path, rows: int) -> ProbeSpec:
    """Return requests of tasks of ours, GROUP with each prompt."""
    tokenizer, random, tasks = load_tokenizer(model), Random(0), sample_of(0)
    requests: list[ProbeRequest] = []
    while len(requests) < rows:
        manifest, task = random.choice(tasks)
        prompt = prompt_tokens(tokenizer, task, 8, thinks=manifest.thinks).tolist()
        seeds = [random.getrandbits(63) for _ in range(GROUP)]
        requests += [ProbeRequest(prompt_tokens=prompt, seed=seed, max_tokens=TOKENS) for seed in seeds]
    calls = [requests[start : start + AT_ONCE] for start in range(0, rows, AT_ONCE)]
    return ProbeSpec(model=model, profile=BF16.name, temperature=1.0, calls=calls)


# --- One process


def replay(folder: Path, matmul: Any) -> dict[str, Any]:
    """Replay all rows as a validator does, and say how fast, in how much memory, and what it found."""
    from validator.replay import Replayer, judge

    spec, rows = read_spec(folder / "spec.json"), read_rollouts((folder / "rows.parquet").read_bytes())
    before = _peak_bytes()
    replayer = Replayer(spec.model, BF16, spec.temperature, matmul=matmul)
    replayer.load_weights(spec.model)
    begun = time.process_time()
    found = replayer.replay(rows)
    seconds = time.process_time() - begun
    findings = [judge([one], BF16) for one in found]
    return {
        "speed": sum(len(row.prompt_tokens) + len(row.completion_tokens) for row in rows) / seconds,
        "memory": _peak_bytes() - before,
        "verdicts": ["" if finding is None else finding.reason for finding in findings],
        "activation": max(one.activation for one in found),
    }


def generate(folder: Path, matmul: Any) -> dict[str, Any]:
    """Answer the first call's requests after a few that warm the engine up."""
    from worker.engine import Engine, GenerationRequest
    from worker.probe import limits_of

    spec = read_spec(folder / "spec.json").model_copy(update={"matmul": matmul})
    engine = Engine(spec.model, BF16, limits_of(spec))
    requests = [GenerationRequest(_array(one.prompt_tokens), one.seed, one.max_tokens) for one in spec.calls[0]]
    engine.generate(requests[:1])
    engine.forget()
    begun = time.process_time()
    tokens = sum(len(one.tokens) for one in engine.generate(requests))
    mapped = {
        path.name for path in map(Path, Path("/proc/self/maps").read_text().split()) if path.parent.name == "vllm"
    }
    return {"speed": tokens / (time.process_time() - begun), "kernels": sorted(mapped)}


CHILDREN: dict[str, Callable[[Path, Any], dict[str, Any]]] = {"replay": replay, "generate": generate}


def _array(tokens: Sequence[int]) -> Any:
    import numpy as np

    return np.array(tokens, dtype=np.int32)


def _peak_bytes() -> int:
    """Return the most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def _child(kind: str, folder: Path, matmul: str) -> dict[str, Any]:
    _run(__file__, "--child", kind, folder, matmul, environment=EMULATIONS["AVX2"])
    return json.loads((folder / f"{kind}-{matmul}.json").read_text())


def _run(script: str, *arguments: object, environment: Any = None) -> None:
    command = [script] if script.endswith(".py") else ["-m", script]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(environment or {})}
    subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        env=variables,
        check=True,
        timeout=CHILD_SECONDS,
        stdout=subprocess.DEVNULL,
    )


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--child", nargs=3, metavar=("KIND", "FOLDER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, folder, way = options.child
        Path(folder, f"{kind}-{way}.json").write_text(json.dumps(CHILDREN[kind](Path(folder), way)))
        return 0
    return report.show(figures(options.runs, options.rows), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
