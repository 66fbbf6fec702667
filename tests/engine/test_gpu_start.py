"""A worker starts only with an engine that samples as a replay does. On GPUs vLLM's defaults do not.

The first half asks vLLM's own code, as on an H100, what a worker's arguments come to. The second breaks a real engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from muster.errors import ConfigError
from muster.verification.profiles import BF16
from testbed.adversaries.lab import LIMITS
from testbed.samples.models import DEMO, write_model
from testbed.suite.engine_types import Requests
from worker.engine import OTHER_ENGINE, VLLM_REQUIRED, Engine

SECONDS = 300
OPERATORS = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "VLLM_PLUGINS": "some",
    "VLLM_MODEL_REDIRECT_PATH": "redirects.json",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random",
}
"""An environment in which no variable has the value that a worker needs."""

PINNED = {
    "v2": False,
    "async_scheduling": False,
    "worker": "vllm.v1.worker.gpu_worker.Worker",
    "cudagraphs": "NONE",
    "compilation": "NONE",
    "chunked_prefill": True,
    "prefix_caching": True,
    "batched_tokens": 8192,
    "cache": "auto",
    "dtype": "torch.bfloat16",
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What the program found with that environment, and what it logged."""
    model = write_model(tmp_path_factory.mktemp("gpu") / "model", DEMO)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.gpu_config", str(model)],
        env=os.environ | OPERATORS | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *logged, last = done.stdout.splitlines()
    return json.loads(last), "\n".join([*logged, done.stderr])


def test_a_gpu_worker_runs_the_engine_that_a_replay_follows(started: tuple[dict[str, Any], str]) -> None:
    found, _ = started
    assert found["ours"] == PINNED | {
        "executor": "uni",
        "loaded": ["MinTokensLogitsProcessor", "LogitBiasLogitsProcessor", "SeededSampler"],
        "admission": "",
    }
    assert found["split"] == PINNED | {"executor": "mp", "processes": "spawn"}


def test_the_operator_s_environment_is_replaced_and_the_log_says_so(started: tuple[dict[str, Any], str]) -> None:
    found, logged = started
    assert OPERATORS.keys() == VLLM_REQUIRED.keys()
    assert found["environment"] == VLLM_REQUIRED
    line = next(line for line in logged.splitlines() if "variables of the environment are replaced" in line)
    assert all(name in line for name in OPERATORS)


def test_vllm_defaults_cannot_start(started: tuple[dict[str, Any], str]) -> None:
    """The defaults that the arguments and variables are there for. Should vLLM change them, this fails."""
    chosen = started[0]["vllm"]
    assert (chosen["v2"], chosen["async_scheduling"]) == (True, True)
    loader = "vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor"
    assert chosen["admission"] == f"SeededSampler is not a subclass of {loader}"


def test_a_configuration_that_no_replay_follows_is_refused(started: tuple[dict[str, Any], str]) -> None:
    found, _ = started
    assert found["cached"].startswith("vLLM would use the V2 model runner for ")
    assert found["quantized"].startswith("vLLM would use quantized weights for ")


def test_an_engine_for_processors_is_refused_where_torch_sees_a_gpu(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine.device_kind", lambda: "cuda")
    with pytest.raises(ConfigError, match="this vLLM computes on cpu, and torch would on cuda") as caught:
        Engine(model_dir, BF16, LIMITS)
    assert caught.value.hint.startswith("MUSTER_EXTRA=gpu make setup ")


# --- The check of a real engine


def leave_it_to_vllm(patch: pytest.MonkeyPatch, engine: Engine) -> None:
    patch.setattr("worker.sampler.SeededSampler.apply", lambda self, logits: logits)


def least_likely(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmin(dim=-1)


def change_the_choice(patch: pytest.MonkeyPatch, engine: Engine) -> None:
    patch.setattr("vllm.v1.sample.sampler.Sampler.greedy_sample", staticmethod(least_likely))


def count_one_too_many(patch: pytest.MonkeyPatch, engine: Engine) -> None:
    """As a runner does that begins a pass before it knows the tokens of the last."""
    from worker.sampler import choose

    def late(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperature: float):
        return choose(logits, seeds, positions + 1, temperature)

    patch.setattr("worker.sampler.choose", late)


def add_a_processor(patch: pytest.MonkeyPatch, engine: Engine) -> None:
    """As an installed package does by an entry point, which vLLM asks no one about."""
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Installed(AdapterLogitsProcessor):
        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: object) -> None:
            return None

    def change(worker: Any) -> None:
        loaded = worker.model_runner.input_batch.logitsprocs
        other = Installed(None, torch.device("cpu"), False)  # type: ignore[arg-type]
        patch.setattr(loaded, "non_argmax_invariant", [*loaded.non_argmax_invariant, other])

    engine.llm.collective_rpc(change)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (leave_it_to_vllm, "32 of 32 tokens were sampled without being recorded"),
        (change_the_choice, "its tokens are not those of their seeds"),
        (count_one_too_many, "its tokens are not those of their seeds"),
        (add_a_processor, "besides vLLM's own are SeededSampler, Installed, not SeededSampler alone"),
    ],
)
def test_an_engine_that_samples_otherwise_is_refused(
    harm: Callable[[pytest.MonkeyPatch, Engine], None],
    problem: str,
    engine: Engine,
    requests_for: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = engine.generate(requests_for(4))
    monkeypatch.setattr(engine, "stop_tokens", [])
    harm(monkeypatch, engine)
    with pytest.raises(ConfigError, match=f"does not sample as a replay does: .*{problem}") as caught:
        engine.check_sampler()
    assert caught.value.hint == OTHER_ENGINE
    monkeypatch.undo()
    engine.check_sampler()
    after = engine.generate(requests_for(4))
    assert [one.tokens.tolist() for one in after] == [one.tokens.tolist() for one in before]
    assert [one.proof for one in after] == [one.proof for one in before]
