"""The generation engine: vLLM in this process, sampling with draws' seeds and proving what it ran.

One `Engine` serves one run. `generate` takes the requests of a commitment and returns tokens, behaviour
log-probabilities and activation proofs; `load_weights` puts a new checkpoint into the running engine between two calls,
never within one: an old cache under new weights cannot be replayed. How the parts sit inside vLLM is described in
`worker.sampler` and `worker.engine_extension`.

vLLM is imported when the first engine is made, because that takes seconds and reads the environment once. What it would
choose by itself on another device, a replay could not follow: so the engine sets it, refuses a configuration that is
otherwise, and samples a few known tokens before it works.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import torch

from muster.errors import ConfigError, MusterError
from muster.models.matmul import choose_matmul
from muster.models.numerics import device_kind
from muster.models.weights import weights_in
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import Conversation, TurnRules
from muster.runtime import telemetry
from muster.settings.schema import MatmulSetting
from muster.verification.devices import check_device
from muster.verification.profiles import Profile
from muster.verification.rules import ModelFacts

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.config import VllmConfig
    from vllm.inputs import TokensPrompt
    from vllm.v1.engine.llm_engine import LLMEngine

CPU_CACHE_BYTES = 256 << 20
"""Of the key-value cache, where there is no GPU to fill."""

VLLM_DEFAULTS: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several engines share the cores of a laptop
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",  # models come from the swarm, never from a hub
}
"""Variables that vLLM reads; what the operator has set wins."""

VLLM_REQUIRED: Final = {
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # V2, the default on GPUs, refuses the interface that `worker.sampler` implements
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core lives in this process
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process that has looked for GPUs cannot use them
    "VLLM_PLUGINS": "",  # they change vLLM
    "VLLM_MODEL_REDIRECT_PATH": "",  # another model than the run's
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "",  # experts that the model does not choose
}
"""Variables that a replayable engine needs: another value of the operator's is replaced, and the log says so."""

OTHER_ENGINE: Final = (
    "make setup installs the vLLM that this version works with (constraints.txt); remove packages that change vLLM"
)

TOOL_THREADS: Final = 16
"""Calls of so many conversations run side by side, while the others are sampled."""
STOP_SECONDS: Final = 0.1
"""How often a wait for tools looks whether the engine was stopped."""

CHECK_ROWS: Final = 16
CHECK_TOKENS: Final = 2
"""Of each row that a new engine samples to be checked: one from the prompt, one from its own token."""

log = telemetry.logger("worker")

_set_threads = torch.set_num_threads
"""Kept from before vLLM replaces it by something that does nothing."""


class EngineError(MusterError):
    """Raised when the engine cannot serve a request, or failed."""


@dataclass(frozen=True)
class EngineLimits:
    """Sizes that fix the engine's memory, and the run's temperature."""

    temperature: float
    max_prompt_tokens: int
    max_completion_tokens: int
    max_sequences: int = 256
    """Sequences that decode side by side; more wait their turn."""
    max_batched_tokens: int = 8192
    """Tokens of one forward pass; longer prompts are prefilled in chunks."""
    cache_bytes: int = 0
    """Size of the key-value cache. 0: on a GPU what vLLM finds free, else CPU_CACHE_BYTES, and no less than two of the
    longest sequences need."""
    cache_blocks: int | None = None
    """The same as a number of blocks, which then wins over `cache_bytes`."""
    prefix_caching: bool = True
    ranks: int = 1
    """Processes, each with its own device, that the model is split over (tensor parallelism)."""
    threads: int = 1
    """CPU threads. More than there are idle cores is ruinous: they wait for each other by spinning."""
    matmul: MatmulSetting = "auto"
    """How linear layers multiply bfloat16 on a processor."""

    @classmethod
    def from_terms(cls, terms: Terms, **options: Any) -> EngineLimits:
        """Return the limits of a run; `options` are those fields that its terms say nothing about."""
        return cls(
            **options,
            temperature=terms.temperature,
            max_prompt_tokens=terms.max_prompt_tokens,
            max_completion_tokens=terms.max_completion_tokens,
        )


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    prompt_tokens: np.ndarray
    """int32 [prompt length]"""
    seed: int
    """The position's seed from the draw, 0 ≤ seed < 2^63."""
    max_tokens: int
    """Of the whole completion."""
    turns: TurnRules | None = None
    """How the conversation goes on after a turn; None: it has a single one."""


@dataclass(frozen=True, eq=False)
class Generation:
    tokens: np.ndarray
    """int32 [T], EOS included when the finish reason is `stop`"""
    logprobs: np.ndarray
    """float32 [sampled tokens]: log-probability of each under softmax(logits / temperature)"""
    finish_reason: str
    """`stop` or `length`"""
    proof: bytes
    spans: np.ndarray
    """int32 [spans]: their ends, as in `muster.rollouts.spans`"""
    call_fuel: np.ndarray = field(default_factory=partial(np.zeros, 0, np.uint64))
    """uint64 [calls]"""


class Engine:
    """vLLM for one run.

    Raises ConfigError when the model cannot be served or the profile is not for this kind of device, MalformedError
    where its folder is no checkpoint (`weights_in`), and EngineError when a request does not fit.
    """

    def __init__(self, model_dir: Path, profile: Profile, limits: EngineLimits) -> None:
        check_device(profile, device_kind())
        self.profile = profile
        self.limits = limits
        self.stop_tokens = sorted(ModelFacts.read(model_dir).stop_tokens)
        weights_in(model_dir)
        _set_threads(limits.threads)
        self.llm = start_vllm(model_dir, plain_arguments(model_dir, profile, limits) | own_arguments(limits))
        self._calls = 0
        self._stopped = False
        self.check_sampler()

    def check_sampler(self) -> None:
        """Sample known tokens, which takes two forward passes. Raises ConfigError when the engine gives others.

        They are known by the definition of seeded sampling, from the logits that the model computes meanwhile. Prompts
        are tokens from all over the vocabulary, since a model that is sure of its next token gives it to any sampler.
        """
        vocabulary = self.llm.model_config.get_vocab_size()
        length = min(CHECK_TOKENS, self.limits.max_completion_tokens)
        starts = [np.array([vocabulary * row // CHECK_ROWS], dtype=np.int32) for row in range(CHECK_ROWS)]
        requests = [GenerationRequest(prompt, (1 << 62) + row, length) for row, prompt in enumerate(starts)]
        problem = "its tokens are not those of their seeds"
        try:
            self.llm.collective_rpc("muster_begin", args=(True,))
            tokens = [talk.tokens for talk, _ in self._run(requests)]
            given = [request.seed for request in requests], [len(row) for row in tokens]
            right = self.llm.collective_rpc("muster_expect", args=given)[0] == tokens
        except RuntimeError as error:
            right, problem = False, str(error)
        if not right:
            raise ConfigError(f"this engine does not sample as a replay does: {problem}", hint=OTHER_ENGINE)
        self.forget()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Complete all requests, in order. Blocks; call it from a separate thread.

        Conversations at different turns are sampled together, and tools run meanwhile in threads: a slow one holds up
        its own conversation only.

        Raises EngineError when `stop` is called meanwhile, and what a tool raises that this machine cannot run.
        """
        if not requests:
            return []
        _set_threads(self.limits.threads)  # of the calling thread, which need not be the one that made the engine
        for request in requests:
            self._check(request)
        self.llm.collective_rpc("muster_begin")
        done = self._run(requests)
        spans = [talk.ends.tolist() for talk, _ in done]
        seeds = [request.seed for request in requests]
        collecting = (seeds, spans)
        proofs, logprobs = self.llm.collective_rpc("muster_collect", args=collecting)[0]
        return [
            Generation(
                tokens=np.asarray(talk.tokens, dtype=np.int32),
                logprobs=np.frombuffer(values, dtype="<f4"),
                finish_reason=reason,
                proof=proof,
                spans=talk.ends,
                call_fuel=np.array(talk.fuel, np.uint64),
            )
            for (talk, reason), values, proof in zip(done, logprobs, proofs, strict=True)
        ]

    def load_weights(self, model_dir: Path) -> None:
        """Put a checkpoint's weights into the running engine and drop everything computed with the old ones.

        Each of the engine's processes reads the folder itself, and of a version only what differs from the last one.

        Raises EngineError when that fails: the model is then half old and half new, and the engine must be rebuilt.
        """
        _set_threads(self.limits.threads)
        try:
            self.llm.collective_rpc("muster_load", args=(str(model_dir),))
        except Exception as error:
            raise EngineError(
                f"the weights in {model_dir} could not be loaded: {error}", hint="start the worker again"
            ) from error
        self.forget()

    def forget(self) -> None:
        """Drop what is cached of earlier calls, so that the next one computes as a new engine would."""
        if not self.llm.reset_prefix_cache():
            raise EngineError("the prefix cache is in use")

    def stop(self) -> None:
        """Let `generate` end after the forward pass under way. May be called from any thread."""
        self._stopped = True

    def close(self) -> None:
        """Stop the engine and free its memory."""
        self.llm.engine_core.shutdown()

    def _check(self, request: GenerationRequest) -> None:
        prompt, limits = len(request.prompt_tokens), self.limits
        if not 1 <= prompt <= limits.max_prompt_tokens:
            raise EngineError(f"a prompt of {prompt} tokens where 1 to {limits.max_prompt_tokens} are allowed")
        if not 1 <= request.max_tokens <= limits.max_completion_tokens:
            allowed = f"1 to {limits.max_completion_tokens} are allowed"
            raise EngineError(f"a completion of up to {request.max_tokens} tokens where {allowed}")

    def _run(self, requests: Sequence[GenerationRequest]) -> list[tuple[Conversation, str]]:
        """Return the conversations and why each ended, in order. Ends because each is bounded in tokens and turns.

        A turn is a request of vLLM's, whose prompt is all that came before: with prefix caching only the tokens that
        were given since, and less than a block of others, are computed.
        """
        talks = [Conversation(one.turns, one.prompt_tokens.tolist(), one.max_tokens) for one in requests]
        reasons = [""] * len(requests)
        sampling: dict[str, int] = {}
        answering: dict[Future[bool], int] = {}
        tools = ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="tool")

        def start(slot: int) -> None:
            name = f"{self._calls}-{slot}-{len(talks[slot].spans)}"
            self.llm.add_request(name, *self._turn(talks[slot], requests[slot], slot))
            sampling[name] = slot

        try:
            for slot in range(len(requests)):
                start(slot)
            while sampling or answering:
                if self._stopped:
                    raise EngineError("the engine was stopped")
                if not sampling:
                    wait(answering, timeout=STOP_SECONDS, return_when=FIRST_COMPLETED)
                for future in [future for future in answering if future.done()]:
                    slot = answering.pop(future)
                    if future.result():
                        start(slot)
                for finished in cast("list[RequestOutput]", self.llm.step()) if sampling else []:
                    slot, output = sampling.pop(finished.request_id), finished.outputs[0]
                    reasons[slot] = str(output.finish_reason)
                    talks[slot].add(output.token_ids)
                    if requests[slot].turns is not None:
                        answering[tools.submit(talks[slot].go_on)] = slot
        finally:
            self._calls += 1
            tools.shutdown(wait=False, cancel_futures=True)
            if self.llm.has_unfinished_requests():
                self.llm.abort_request(list(sampling))
        return list(zip(talks, reasons, strict=True))

    def _turn(self, talk: Conversation, request: GenerationRequest, slot: int) -> tuple[TokensPrompt, SamplingParams]:
        prompt: TokensPrompt = {"prompt_token_ids": talk.prompt + talk.tokens}
        return prompt, self.sampling_params(request, slot, talk.length)

    def sampling_params(self, request: GenerationRequest, slot: int, offset: int = 0) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from worker.sampler import OFFSET, SEED, SLOT

        return SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens - offset,
            stop_token_ids=self.stop_tokens,
            ignore_eos=True,  # or vLLM also stops at what generation_config.json names, which no check knows of
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={SEED: request.seed, SLOT: slot, OFFSET: offset},
        )


def start_vllm(model_dir: Path, arguments: dict[str, Any]) -> LLMEngine:
    """Start vLLM with these EngineArgs, fast and quietly. Raises ConfigError when it cannot serve the model."""
    gc.disable()  # imports make a million objects that stay: collecting them in between takes seconds
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = make_config(model_dir, arguments)
            if config.device_config.device_type != device_kind():
                raise ConfigError(
                    f"this vLLM computes on {config.device_config.device_type}, and torch would on {device_kind()}",
                    hint="MUSTER_EXTRA=gpu make setup installs vLLM for GPUs; CUDA_VISIBLE_DEVICES= hides the GPU",
                )
            from vllm.v1.engine.llm_engine import LLMEngine

            gc.freeze()
            with tempfile.TemporaryDirectory(prefix="muster-vllm-") as tempfile.tempdir:  # where its ranks meet
                return LLMEngine.from_vllm_config(config, disable_log_stats=True)
    except (ValueError, RuntimeError) as error:
        hint = "raise worker.cache_bytes" if re.search("KV cache|cache blocks", str(error)) else ""
        raise ConfigError(f"vLLM cannot serve {model_dir}: {error}", hint=hint) from error
    finally:
        tempfile.tempdir = None  # the usual one
        gc.enable()


def import_vllm() -> None:
    """Import what the first engine would: most of the time that it takes to start."""
    _set_environment()
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("vllm.v1.engine.llm_engine")
        import_module(f"vllm.v1.worker.{'cpu' if device_kind() == 'cpu' else 'gpu'}_worker")
    gc.enable()


def _set_environment() -> None:
    """Set what vLLM reads when it is imported."""
    replaced = sorted(name for name, value in VLLM_REQUIRED.items() if os.environ.get(name, value) != value)
    if replaced:
        log.warning("variables of the environment are replaced", names=replaced, reason="work could not be replayed")
    os.environ.update({**VLLM_DEFAULTS, **os.environ, **VLLM_REQUIRED})
    for name in ("vllm", "torch._library.triton"):
        logging.getLogger(name).setLevel(os.environ["VLLM_LOGGING_LEVEL"])


def make_config(model_dir: Path, arguments: dict[str, Any]) -> VllmConfig:
    """Set the environment and return vLLM's configuration for these EngineArgs on this machine's device.

    Raises ConfigError when it has what no replay follows, whatever options vLLM got, and ValueError as vLLM does.
    """
    _set_environment()
    from vllm.engine.arg_utils import EngineArgs

    _register_in_process(model_dir)
    config = EngineArgs(**arguments).create_engine_config()
    found = {
        "the V2 model runner": config.use_v2_model_runner,
        "asynchronous scheduling": config.scheduler_config.async_scheduling,
        "speculative decoding": config.speculative_config is not None,
        "quantized weights": config.quant_config is not None,
    }
    if wrong := [name for name, present in found.items() if present]:
        raise ConfigError(f"vLLM would use {', '.join(wrong)} for {model_dir}: no replay does", hint=OTHER_ENGINE)
    return config


def plain_arguments(model_dir: Path, profile: Profile, limits: EngineLimits) -> dict[str, Any]:
    """Return EngineArgs that leave out what a run does not need; what Muster adds is in `own_arguments`.

    What vLLM would decide by the device is said here: the same on all.
    """
    return {
        "model": str(model_dir),
        "dtype": profile.dtype,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "max_model_len": limits.max_prompt_tokens + limits.max_completion_tokens,
        "max_num_seqs": limits.max_sequences,
        "max_num_batched_tokens": limits.max_batched_tokens,
        "kv_cache_memory_bytes": _cache_bytes(model_dir, profile, limits),
        "num_gpu_blocks_override": limits.cache_blocks,
        "enable_prefix_caching": limits.prefix_caching,
        "enable_chunked_prefill": True,
        "async_scheduling": False,  # on by default on GPUs: passes begin before the tokens of the last are known
        "tensor_parallel_size": limits.ranks,
        "enforce_eager": True,
        "use_tqdm_on_load": False,
    }


def _cache_bytes(model_dir: Path, profile: Profile, limits: EngineLimits) -> int | None:
    """Return the size of the key-value cache; None leaves it to vLLM."""
    if limits.cache_bytes or torch.cuda.is_available():
        return limits.cache_bytes or None
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False).get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    values = 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size
    longest = limits.max_prompt_tokens + limits.max_completion_tokens
    return max(CPU_CACHE_BYTES, 2 * longest * values * getattr(torch, profile.dtype).itemsize)


def own_arguments(limits: EngineLimits) -> dict[str, Any]:
    """Return EngineArgs for seeded sampling and proofs."""
    return {
        "logits_processors": ["worker.sampler:SeededSampler"],
        "worker_extension_cls": "worker.engine_extension.CaptureExtension",
        "load_format": "muster",  # that module's CheckpointLoader
        "additional_config": {
            "muster": {"temperature": limits.temperature, "matmul": choose_matmul(limits.matmul, device_kind())}
        },
    }


def _register_in_process(model_dir: Path) -> None:
    """Let vLLM inspect the model's class here: otherwise it starts another Python for that, which takes 20 seconds."""
    from vllm.model_executor.models import ModelRegistry

    for name in json.loads((model_dir / "config.json").read_text()).get("architectures", []):
        if name in ModelRegistry.models:
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
