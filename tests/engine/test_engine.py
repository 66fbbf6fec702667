"""The engine: replayable sampling and true proofs under everything vLLM's scheduler does to a request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config

from muster.authoring.models.variants import save_changed, with_noise
from muster.errors import ConfigError
from muster.models.init import load_model
from muster.models.numerics import numerics_pinned, pin_numerics
from muster.models.weights import read_weights
from muster.proofs.seeded_sampling import choose
from muster.rollouts.schema import Rollout
from muster.shardcast.format.store import version_path
from muster.shardcast.publish import publish
from muster.verification.judging import judge
from muster.verification.profiles import CPU_FP32, PROFILES
from muster.verification.replay import Replayer
from testbed.adversaries.lab import LIMITS, tempered
from testbed.samples.models import unpin_numerics
from testbed.suite.engine_types import Requests, UsingWeights
from worker.engine import Engine, EngineError, EngineLimits, Generation, GenerationRequest, plain_arguments
from worker.rollouts import bare_rows

TIGHT = EngineLimits(
    temperature=0.7,
    max_prompt_tokens=400,
    max_completion_tokens=96,
    max_sequences=24,
    max_batched_tokens=96,
    cache_blocks=40,
)
"""Prompts of 300 tokens are prefilled in chunks, and 24 sequences of 3 to 4 blocks do not fit into 40."""
EOS = 1


@pytest.fixture(scope="session")
def other_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint unlike `model_dir` whose completions are long. Like published ones it recommends how to sample."""
    folder = save_changed(model_dir, tmp_path_factory.mktemp("other") / "model", with_noise(3.0))
    recommended = {"do_sample": True, "temperature": 0.3, "top_p": 0.5, "top_k": 2}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    return folder


@pytest.fixture(scope="session")
def first_read() -> list[Path]:
    """The folders that `tight_engine` read weights of when it started."""
    return []


@pytest.fixture(scope="session")
def tight_engine(other_dir: Path, first_read: list[Path]) -> Iterator[Engine]:
    """An engine short of everything, started on `other_dir`."""
    # Here, and not above: it imports vLLM, and every process of pytest imports this module.
    from worker import engine_extension

    def noted(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
        first_read.append(folder)
        return read_weights(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_extension, "read_weights", noted)
        running = Engine(other_dir, CPU_FP32, TIGHT)
    yield running
    running.close()


@pytest.fixture
def preemptions(tight_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests that vLLM preempts."""
    scheduler = tight_engine.llm.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
    seen: list[str] = []
    original = scheduler._preempt_request  # noqa: SLF001  (vLLM has no other way to force one)

    def note(request, *args, **kwargs):
        seen.append(request.request_id)
        return original(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", note)
    return seen


@pytest.fixture
def cached_tokens(tight_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Prompt tokens that each finished request found in the prefix cache."""
    seen: list[int] = []
    original = tight_engine.llm.step

    def note():
        outputs = original()
        seen.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(tight_engine.llm, "step", note)
    return seen


def long_prefix(seed: int, length: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).integers(20, 100, length).astype(np.int32)


def same(first: Sequence[Generation], second: Sequence[Generation]) -> bool:
    return all(
        np.array_equal(a.tokens, b.tokens)
        and np.allclose(a.logprobs, b.logprobs, atol=1e-5)
        and a.finish_reason == b.finish_reason
        for a, b in zip(first, second, strict=True)
    )


def test_rollouts_are_well_formed(honest: list[Rollout]) -> None:
    assert {rollout.finish_reason for rollout in honest} <= {"stop", "length"}
    for rollout in honest:
        tokens = rollout.completion_tokens
        assert tokens.dtype == np.int32
        assert rollout.logprobs.dtype == np.float32
        assert len(rollout.logprobs) == len(tokens)
        assert len(rollout.proof) == 8 * len(tokens)
        assert EOS not in tokens[:-1]
        assert (tokens[-1] == EOS) == (rollout.finish_reason == "stop")
        assert rollout.finish_reason == "stop" or len(tokens) == 32


def test_tokens_are_those_that_the_seed_samples_from_the_model(
    honest: list[Rollout], model_dir: Path, replayer: Replayer
) -> None:
    """Token by token with transformers and no engine: the definition, not a tolerance."""
    model = load_model(model_dir)
    for rollout in honest[:8]:
        sequence = rollout.prompt_tokens.tolist()
        for index, token in enumerate(rollout.completion_tokens.tolist()):
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([sequence])).logits[:, -1]
            choice = choose(logits, torch.tensor([rollout.seed]), torch.tensor([index]), 1.0)
            assert choice.tokens.item() == token
            assert choice.logprobs.item() == pytest.approx(float(rollout.logprobs[index]), abs=1e-4)
            sequence.append(token)


def test_the_engine_computes_in_float32_whatever_was_set(engine: Engine, requests_for: Requests) -> None:
    unpin_numerics()
    try:
        engine.generate(requests_for(1))
        assert numerics_pinned()
    finally:
        pin_numerics()


def test_neighbours_and_order_do_not_matter(engine: Engine, requests_for: Requests) -> None:
    requests = requests_for(48, seed=4)
    together = engine.generate(requests)
    apart = [generation for request in requests[:6] for generation in engine.generate([request])]
    assert same(together[:6], apart)
    assert same(together[::-1], engine.generate(requests[::-1]))


def test_each_request_has_its_own_limit(engine: Engine, requests_for: Requests) -> None:
    requests = [replace(request, max_tokens=1 + i % 5) for i, request in enumerate(requests_for(20, seed=5))]
    for request, generation in zip(requests, engine.generate(requests), strict=True):
        assert len(generation.tokens) <= request.max_tokens
        assert generation.finish_reason == "stop" or len(generation.tokens) == request.max_tokens


def test_wherever_a_completion_ends_it_can_be_replayed(
    tight_engine: Engine, other_dir: Path, requests_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits from one token on, and stop tokens that come up often, one end in the middle of the others' decoding."""
    monkeypatch.setattr(tight_engine, "stop_tokens", [EOS, *range(30, 50)])
    requests = [replace(request, max_tokens=1 + i % 12) for i, request in enumerate(requests_for(48, seed=13))]
    rollouts = bare_rows(requests, tight_engine.generate(requests))
    assert {rollout.finish_reason for rollout in rollouts} == {"stop", "length"}
    assert min(len(rollout.completion_tokens) for rollout in rollouts) == 1
    assert judge(Replayer(other_dir, CPU_FP32, TIGHT.temperature).replay(rollouts), CPU_FP32) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.9, "temperature": 1.0},
        {"top_k": 20, "temperature": 1.0},
        {"temperature": 0.7},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.5},
        {"min_tokens": 4},
        {"logit_bias": {30: 2.0}},
        {"allowed_token_ids": [30, 31]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_sampling_that_cannot_be_replayed_is_refused(
    settings: dict, engine: Engine, requests_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM itself refuses, for every caller: a validator would find another token and accuse the worker."""
    from vllm.exceptions import VLLMValidationError

    requests = requests_for(2, seed=14)
    before = engine.generate(requests)
    plain = engine.sampling_params

    def params(request: GenerationRequest, slot: int, offset: int):
        chosen = plain(request, slot, offset)
        own = {"temperature": 0.0, "max_tokens": 8, "extra_args": chosen.extra_args}
        return type(chosen)(**(own | settings))

    monkeypatch.setattr(engine, "sampling_params", params)
    with pytest.raises(VLLMValidationError, match=f"{next(iter(settings))} = .* cannot be replayed"):
        engine.generate(requests)
    monkeypatch.undo()
    assert same(before, engine.generate(requests))


def test_engine_ignores_generation_config_sampling(
    tight_engine: Engine, other_dir: Path, requests_for: Requests
) -> None:
    """Top-p and top-k in generation_config.json: the run's terms say how to sample."""
    requests = requests_for(32, seed=15, max_tokens=40)
    rollouts = bare_rows(requests, tight_engine.generate(requests))
    assert tight_engine.stop_tokens == [EOS]
    assert judge(Replayer(other_dir, CPU_FP32, TIGHT.temperature).replay(rollouts), CPU_FP32) is None


def test_more_requests_than_sequences_wait_their_turn(
    tight_engine: Engine, other_dir: Path, requests_for: Requests
) -> None:
    requests = requests_for(60, seed=6)
    rollouts = bare_rows(requests, tight_engine.generate(requests))
    assert judge(Replayer(other_dir, CPU_FP32, TIGHT.temperature).replay(rollouts), CPU_FP32) is None


def test_chunked_prefill_prefix_caching_and_preemption_leave_proofs_true(
    tight_engine: Engine,
    other_dir: Path,
    requests_for: Requests,
    preemptions: list[str],
    cached_tokens: list[int],
) -> None:
    """Prompts of 300 and more tokens, most of them with a common beginning, more than the cache holds."""
    requests = requests_for(16, seed=7, max_tokens=96, prefix=long_prefix(1))
    requests += [
        request for i in range(8) for request in requests_for(1, seed=20 + i, max_tokens=96, prefix=long_prefix(9 + i))
    ]
    generations = tight_engine.generate(requests)
    replayer = Replayer(other_dir, CPU_FP32, TIGHT.temperature)
    assert len(set(preemptions)) > 2
    assert min(len(request.prompt_tokens) for request in requests) > 3 * TIGHT.max_batched_tokens
    assert sum(tokens >= 256 for tokens in cached_tokens) > 8
    assert sum(len(generation.tokens) for generation in generations) > 1000
    measurements = replayer.replay(bare_rows(requests, generations))
    assert [judge([measurement], CPU_FP32) for measurement in measurements] == [None] * len(requests)
    assert max(measurement.activation for measurement in measurements) < CPU_FP32.activation.accuse / 2
    again = tight_engine.generate(requests)
    assert same(generations, again)


def test_reloaded_weights_generate_like_a_fresh_engine(
    tight_engine: Engine, engine: Engine, model_dir: Path, other_dir: Path, requests_for: Requests
) -> None:
    """Old blocks in the prefix cache and packed copies of old weights would both show here."""
    requests = requests_for(12, seed=8, max_tokens=40, prefix=long_prefix(2))
    fresh = tight_engine.generate(requests)
    tight_engine.load_weights(model_dir)
    between = tight_engine.generate(requests)
    tight_engine.load_weights(other_dir)
    reloaded = tight_engine.generate(requests)
    assert not same(fresh, between)
    assert same(fresh, reloaded)
    assert [generation.proof for generation in fresh] == [generation.proof for generation in reloaded]
    rollouts = bare_rows(requests, between)
    assert judge(Replayer(model_dir, CPU_FP32, TIGHT.temperature).replay(rollouts), CPU_FP32) is None


def test_engine_reads_first_weights_by_the_function_that_reads_later_ones(
    tight_engine: Engine, first_read: list[Path], other_dir: Path
) -> None:
    """Or a folder that two readers read apart would make a starting worker's proofs others than a running one's."""
    assert first_read == [other_dir]


def test_a_reloaded_engine_equals_one_that_was_started_with_the_weights(
    engine: Engine, tight_engine: Engine, other_dir: Path, requests_for: Requests, using_weights: UsingWeights
) -> None:
    requests = requests_for(32, seed=9)
    with using_weights(other_dir), tempered(engine, TIGHT.temperature):
        reloaded = engine.generate(requests)
    assert same(reloaded, tight_engine.generate(requests))


def test_engine_reads_only_changed_tensors_of_next_version(
    engine: Engine, requests_for: Requests, model_dir: Path, other_dir: Path, tmp_path: Path
) -> None:
    """By the manifests: of a step in which one layer's queries changed, that layer is read, and counts."""
    tensors = dict(read_weights(other_dir))
    steps = []
    for step, scale in enumerate((1.0, 1.5)):
        checkpoint = shutil.copytree(other_dir, tmp_path / f"checkpoint-{step}")
        tensors["model.layers.1.self_attn.q_proj.weight"] *= scale
        save_file(tensors, checkpoint / "model.safetensors")
        manifest = publish(checkpoint, tmp_path / "published", 1, step, shard_bytes=4096)
        steps.append(version_path(tmp_path / "published", manifest.root))
    load, requests = engine.llm.collective_rpc, requests_for(8, seed=10)

    def read(folder: Path) -> int:
        return load("muster_load", args=(str(folder),))[0]

    try:
        assert read(steps[0]) == len(tensors)
        before = engine.generate(requests)
        assert read(steps[1]) == sum(name.startswith("model.layers.1.") for name in tensors)
        assert read(steps[1]) == 0
        engine.llm.reset_prefix_cache()
        partly = engine.generate(requests)
        engine.load_weights(tmp_path / "checkpoint-1")  # no version: all of it is read
        assert same(partly, engine.generate(requests))
        assert not same(partly, before)
    finally:
        engine.load_weights(model_dir)


def test_no_requests_no_generations(engine: Engine) -> None:
    assert engine.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "limit", "words"),
    [(0, 8, "a prompt of 0 tokens"), (65, 8, "a prompt of 65 tokens"), (9, 0, "up to 0"), (9, 49, "up to 49")],
)
def test_oversized_request_is_refused_without_side_effects(
    prompt: int, limit: int, words: str, engine: Engine, requests_for: Requests
) -> None:
    good = requests_for(4, seed=11)
    before = engine.generate(good)
    with pytest.raises(EngineError, match=words):
        engine.generate([*good, GenerationRequest(np.full(prompt, 20, np.int32), 1, limit)])
    assert same(before, engine.generate(good))


def test_a_failed_call_leaves_a_working_engine(
    engine: Engine, requests_for: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_for(16, seed=12)
    before = engine.generate(requests)
    steps = iter(range(3))
    original: Callable = engine.llm.step

    def fail_later():
        if next(steps, None) is None:
            raise RuntimeError("out of luck")
        return original()

    monkeypatch.setattr(engine.llm, "step", fail_later)
    with pytest.raises(RuntimeError, match="out of luck"):
        engine.generate(requests)
    monkeypatch.undo()
    assert same(before, engine.generate(requests))


def test_weights_that_are_not_there_leave_an_engine_in_doubt(engine: Engine, model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"could not be loaded: .*: no safetensors") as caught:
        engine.load_weights(tmp_path)
    assert caught.value.hint == "start the worker again"
    engine.load_weights(model_dir)  # here nothing had been taken yet


def test_a_model_that_vllm_cannot_serve_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json names no vocab_size or eos_token_id"):
        Engine(tmp_path, CPU_FP32, LIMITS)


def test_last_row_wins_for_duplicate_token() -> None:
    """Slot 1 is prefilled in two chunks: its first row, recorded under token 0, is not a sample."""
    # Here, and not above: both import vLLM, and every process of pytest imports this module.
    from worker.engine_extension import rows_of_tokens
    from worker.sampler import Capture

    capture = Capture(
        slots=[np.array([0, 1]), np.array([0, 1]), np.array([1, 0])],
        positions=[np.array([0, 0]), np.array([1, 0]), np.array([1, 2])],
    )
    assert rows_of_tokens(capture, [3, 2]).tolist() == [0, 2, 5, 3, 4]
    assert rows_of_tokens(capture, [2, 2]).tolist() == [0, 2, 3, 4]
    with pytest.raises(RuntimeError, match="1 of 6 tokens"):
        rows_of_tokens(capture, [3, 3])


def test_the_cache_holds_the_longest_sequences_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model like Qwen2.5-7B with rollouts as long as public terms begin with. With a GPU, vLLM takes what is
    free."""
    Qwen2Config(hidden_size=3584, num_attention_heads=28, num_key_value_heads=4, num_hidden_layers=28).save_pretrained(
        tmp_path
    )
    limits = EngineLimits(1.0, max_prompt_tokens=1024, max_completion_tokens=4096)
    profile = PROFILES["bf16-projection-v3"]
    token = 2 * 28 * 4 * 128 * 2
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert plain_arguments(tmp_path, profile, limits)["kv_cache_memory_bytes"] == 2 * 5120 * token
    short = replace(limits, max_completion_tokens=32, max_prompt_tokens=64)
    assert plain_arguments(tmp_path, profile, short)["kv_cache_memory_bytes"] == 256 << 20
    chosen = replace(limits, cache_bytes=1 << 30)
    assert plain_arguments(tmp_path, profile, chosen)["kv_cache_memory_bytes"] == 1 << 30
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert plain_arguments(tmp_path, profile, limits)["kv_cache_memory_bytes"] is None
    assert plain_arguments(tmp_path, profile, chosen)["kv_cache_memory_bytes"] == 1 << 30
