"""One trained model, one engine and one replayer for the whole session; starting vLLM takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from muster.model_files import load_tokenizer
from muster.models import ModelShape, WarmUp, make_model, make_tokenizer, save_model, warm_up
from muster.profiles import CPU_FP32
from muster.prompts import prompt_tokens
from muster.rollouts.schema import Rollout
from muster.tasks import TaskSet, make_task_set
from tests.engine.controls import GROUP, rollouts_of
from validator.replay import Replayer
from worker.engine import Engine, EngineLimits, GenerationRequest

torch.set_num_threads(1)

COMMITMENT = 256
"""Rollouts of a commitment, as in the demo."""
LIMITS = EngineLimits(temperature=1.0, max_prompt_tokens=64, max_completion_tokens=48)

Requests = Callable[..., list[GenerationRequest]]
UsingWeights = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def task_set() -> TaskSet:
    return make_task_set(0, train=1024, held_out=64)


@pytest.fixture(scope="session")
def model_dir(task_set: TaskSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen2 model, trained far enough that it is sure of most tokens and unsure of some."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, ModelShape(), seed=1)
    warm_up(model, tokenizer, task_set, WarmUp(target=0.0, batch=128, min_steps=25), seed=1)
    save_model(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(model_dir)


@pytest.fixture(scope="session")
def engine(model_dir: Path) -> Iterator[Engine]:
    """vLLM as a worker of the demo runs it."""
    running = Engine(model_dir, CPU_FP32, LIMITS)
    yield running
    running.close()


@pytest.fixture(scope="session")
def replayer(model_dir: Path) -> Replayer:
    return Replayer(model_dir, CPU_FP32, LIMITS.temperature)


@pytest.fixture(scope="session")
def requests_for(task_set: TaskSet, tokenizer: PreTrainedTokenizerBase) -> Requests:
    """`requests_for(n, seed=…)`: real prompts, four samples each, and seeds like those of a draw."""

    def make(count: int, *, seed: int = 0, max_tokens: int = 32, prefix: np.ndarray | None = None):
        random = Random(seed)
        prompts = [
            prompt_tokens(tokenizer, random.choice(task_set.train), random.choice((8, 12, 16)))
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
    return rollouts_of(requests, engine.generate(requests))


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
