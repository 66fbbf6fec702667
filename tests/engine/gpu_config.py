"""python -m tests.engine.gpu_config MODEL: print vLLM's configuration of a worker on an H100 as JSON.

It is a separate program because it patches vLLM. vLLM's CUDA platform class replaces the CPU's, with the answers of an
H100's driver, and Triton counts as installed. Everything else is vLLM's code for a GPU, up to the GPU's kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from muster.errors import ConfigError
from muster.verification.profiles import BF16
from worker.engine import VLLM_REQUIRED, EngineLimits, make_config, own_arguments, plain_arguments

SWITCH = "VLLM_USE_V2_MODEL_RUNNER"


def be_an_h100() -> None:
    """Make vLLM believe that it computes on an H100."""
    import vllm.config.vllm
    from vllm.engine.arg_utils import EngineArgs  # noqa: F401  (its imports must see a CPU)
    from vllm.platforms import current_platform

    sys.modules["vllm._C_stable_libtorch"] = ModuleType("vllm._C_stable_libtorch")  # GPU kernels, missing here
    from vllm.platforms.cuda import CudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class H100(CudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 << 30

        @classmethod
        def device_count(cls) -> int:
            return 2

    current_platform.__class__ = H100
    vllm.config.vllm.HAS_TRITON = True  # type: ignore[attr-defined]


def facts(config: Any) -> dict[str, Any]:
    return {
        "v2": config.use_v2_model_runner,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "worker": config.parallel_config.worker_cls,
        "executor": config.parallel_config.distributed_executor_backend,
        "cudagraphs": config.compilation_config.cudagraph_mode.name,
        "compilation": config.compilation_config.mode.name,
        "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "cache": config.cache_config.cache_dtype,
        "dtype": str(config.model_config.dtype),
    }


def loaded(config: Any) -> list[str]:
    """Return the logits processors that vLLM's V1 model runner loads and that decide greedy tokens."""
    from vllm.v1.sample.logits_processor import build_logitsprocs

    custom = config.model_config.logits_processors
    return [
        type(one).__name__
        for one in build_logitsprocs(config, torch.device("cpu"), False, False, custom).non_argmax_invariant
    ]


def admission(config: Any) -> str:
    """Return why vLLM's engine refuses to start with this configuration, or ""."""
    from vllm.renderers import renderer_from_config
    from vllm.v1.engine.input_processor import InputProcessor

    try:
        InputProcessor(config, renderer_from_config(config))
    except ValueError as error:
        return str(error)
    return ""


def refusal(model: Path, arguments: dict[str, Any]) -> str:
    """Return why a worker refuses vLLM's configuration, or ""."""
    try:
        make_config(model, arguments)
    except ConfigError as error:
        return str(error)
    return ""


def main() -> None:
    from vllm import envs
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.system_utils import get_mp_context

    model, limits = Path(sys.argv[1]), EngineLimits(1.0, 64, 48)
    arguments = plain_arguments(model, BF16, limits) | own_arguments(limits)
    found: dict[str, Any] = {}

    # 1. A quantized model is refused. This runs first, since vLLM asks a GPU's kernels about it.
    quantized = shutil.copytree(model, model.parent / "quantized")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    (quantized / "config.json").write_text(json.dumps(config))
    found["quantized"] = refusal(quantized, arguments | {"model": str(quantized)})

    # 2. Our configuration on one GPU and on two, in any environment.
    be_an_h100()
    config = make_config(model, arguments)
    found["ours"] = facts(config) | {"loaded": loaded(config), "admission": admission(config)}
    found["environment"] = {name: os.environ[name] for name in VLLM_REQUIRED}
    split = make_config(model, arguments | {"tensor_parallel_size": 2})
    found["split"] = facts(split) | {"processes": get_mp_context().get_start_method()}

    # 3. vLLM's defaults.
    del os.environ[SWITCH]
    config = EngineArgs(**(arguments | {"async_scheduling": None})).create_engine_config()
    found["vllm"] = facts(config) | {"admission": admission(config)}

    # 4. A variable that this process has already cached is refused.
    envs.enable_envs_cache()
    found["cached"] = refusal(model, arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
