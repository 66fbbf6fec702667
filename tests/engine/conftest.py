"""One trained model, one engine and one replayer for the whole session; starting vLLM takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from muster.models.files import load_tokenizer
from muster.protocol.prompts import prompt_tokens
from muster.rollouts.schema import Rollout
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import CPU_FP32
from muster.verification.replay import Replayer
from testbed.adversaries.lab import LIMITS, AdversaryLab
from testbed.suite.engine_types import Requests, UsingWeights
from worker.engine import Engine, GenerationRequest
from worker.rollouts import bare_rows

COMMITMENT = 256
"""Rollouts of a commitment, as in the demo."""
GROUP = 4
"""Samples of one prompt."""


@pytest.fixture(scope="session")
def task_set(lab: AdversaryLab) -> TaskSet:
    return lab.rules.task_set


@pytest.fixture(scope="session")
def model_dir(lab: AdversaryLab) -> Path:
    """The demo's small Qwen2 model: sure of most tokens and unsure of some."""
    return lab.checkpoints[0]


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(model_dir)


@pytest.fixture(scope="session")
def engine(lab: AdversaryLab, model_dir: Path) -> Engine:
    """vLLM as a worker of the demo runs it."""
    lab.engine.load_weights(model_dir)
    return lab.engine


@pytest.fixture(scope="session")
def replayer(model_dir: Path) -> Replayer:
    return Replayer(model_dir, CPU_FP32, LIMITS.temperature)


@pytest.fixture(scope="session")
def requests_for(task_set: TaskSet, tokenizer: PreTrainedTokenizerBase) -> Requests:
    """`requests_for(n, seed=…)`: real prompts, four samples each, and seeds like those of a draw."""

    def make(count: int, *, seed: int = 0, max_tokens: int = 32, prefix: np.ndarray | None = None):
        random = Random(seed)
        prompts = [
            prompt_tokens(tokenizer, random.choice(task_set.train)[1], random.choice((8, 12, 16)))
            for _ in range(-(-count // GROUP))
        ]
        if prefix is not None:
            prompts = [np.concatenate([prefix, prompt]) for prompt in prompts]
        return [GenerationRequest(prompts[i // GROUP], random.getrandbits(63), max_tokens) for i in range(count)]

    return make


@pytest.fixture(scope="session")
def honest(engine: Engine, requests_for: Requests) -> list[Rollout]:
    """A commitment's worth of honest work under the weights of `model_dir`."""
    requests = requests_for(COMMITMENT)
    return bare_rows(requests, engine.generate(requests))


@pytest.fixture
def using_weights(engine: Engine, replayer: Replayer, model_dir: Path) -> UsingWeights:
    """`with using_weights(folder):` lets the worker run that checkpoint, while the validator keeps its own."""

    @contextmanager
    def using(folder: Path) -> Iterator[None]:
        engine.load_weights(folder)
        try:
            yield
        finally:
            engine.load_weights(model_dir)
            replayer.load_weights(model_dir)

    return using
