"""The grid of honest work behind the limits in `muster.verification.profiles`: models, ways to run them, and measuring.

Measured by the grid of `muster run calibrate` (`muster.authoring.calibration`), each cell in separate processes. Models
made here have random weights, except the demo's. Inspection depends on the size of logits and states, so these models
imitate trained ones: `peaked` scales the last norm until the entropy is that of a trained model, `outliers` gives a few
channels of every layer large values, and `sharpened` is a policy that has collapsed onto few answers.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import torch
from transformers import PreTrainedModel

from muster.authoring.calibration import measure_grid
from muster.authoring.calibration_grid import GROUP, PREFIX, Grid, Way
from muster.authoring.models.variants import save_sharpened
from muster.authoring.tasks.generated import sample_of
from muster.models.files import load_tokenizer, model_hash
from muster.models.init import ModelShape, init_model, make_model, make_tokenizer, save_model
from muster.protocol.prompts import prompt_tokens
from muster.runtime.processor import EMULATIONS
from muster.verification.measured import MeasuredCell
from muster.verification.profiles import PROFILES
from testbed.samples.task_sets import generated
from worker.engine import GenerationRequest

# --- Ways to run an engine


@dataclass(frozen=True)
class Asked:
    """One way to run an engine, how often, and for how long completions."""

    way: Way
    calls: int
    max_tokens: int


CACHED: Final = {"cache_bytes": 128 << 20}
LONG: Final = {"cache_bytes": 1 << 30, "max_sequences": 64}
TIGHT: Final = {"prefix_caching": False, "max_sequences": 24, "max_batched_tokens": 96, "cache_blocks": 40}
WAYS: Final = (
    Way("256 at once", 256, engine=CACHED),
    Way("8 at once", 8, engine=CACHED),
    Way("one at a time", 1, engine=CACHED),
    Way("long prompts, cache cold and warm", 32, prefix=PREFIX, repeated=2, engine=CACHED),
    Way("long prompts, no cache, in chunks, preempted", 48, prefix=PREFIX, engine=TIGHT),
)
SHORT_CELLS: Final = tuple(Asked(way, calls, 32) for way, calls in zip(WAYS, (2, 60, 500, 3, 4), strict=True))
CELLS: Final = tuple(Asked(way, calls, 96) for way, calls in zip(WAYS, (1, 13, 100, 2, 2), strict=True))
LONG_CELLS: Final = (
    Asked(Way("512 tokens, 16 at once", 16, engine=LONG), 4, 512),
    Asked(Way("2,048 tokens, 16 at once", 16, engine=LONG), 1, 2048),
    Asked(Way("4,096 tokens, 8 at once", 8, engine=LONG), 1, 4096),
    Asked(Way("1 token, 64 at once", 64, engine=LONG), 4, 1),
    Asked(Way("4 tokens, 64 at once", 64, engine=LONG), 2, 4),
)
ONE_LONG_CALL: Final = (replace(LONG_CELLS[0], calls=1),)


def multiplied_in_float32(*asked: Asked) -> tuple[Asked, ...]:
    """Return the same of engines that multiply as where no instructions for bfloat16 are; the replay is as ever."""
    return tuple(replace(one, way=replace(one.way, generated_in=EMULATIONS["AVX2"])) for one in asked)


# --- Models


@dataclass(frozen=True)
class Weights:
    """A model of the grid, and what is asked of it."""

    name: str
    make: Callable[[Path, Path], object]
    """Makes it in the second folder; the first one holds the demo's model."""
    profiles: tuple[str, ...] = tuple(PROFILES)
    temperatures: tuple[float, ...] = (1.0,)
    cells: tuple[Asked, ...] = CELLS
    large: bool = False
    """Whether it counts in the figures of large models."""

    def title(self, temperature: float) -> str:
        return self.name if temperature == 1 else f"{self.name} at {temperature:g}"


def fresh(shape: ModelShape, change: Callable[[PreTrainedModel], None] = lambda model: None):
    """Return a maker of a model of this shape with random weights, changed."""

    def make(_demo: Path, folder: Path) -> None:
        tokenizer = make_tokenizer()
        model = make_model(tokenizer, shape, seed=2)
        with torch.inference_mode():
            change(model)
        save_model(model, tokenizer, folder)

    return make


def sharpened(times: float):
    """Return a maker of the demo's model with its last norm, and so its logits, this many times as large."""
    return lambda demo, folder: save_sharpened(demo, folder, times=times)


def peaked(entropy: float) -> Callable[[PreTrainedModel], None]:
    """Return the factor of a model's last norm at which its next token has this mean entropy, in nats."""

    def change(model: PreTrainedModel) -> None:
        tokens = torch.randint(20, model.config.vocab_size, (2, 64), generator=torch.Generator().manual_seed(1))
        logits = model(tokens).logits.float()  # [2, 64, V], in proportion to the norm, whose weights are 1
        low, high = 0.1, 500.0
        for _ in range(20):  # halving the ratio of 5,000 so often leaves a hundredth of a per cent
            middle = (low * high) ** 0.5
            found = torch.distributions.Categorical(logits=middle * logits).entropy().mean()
            low, high = (middle, high) if found > entropy else (low, middle)
        model.get_parameter("model.norm.weight").fill_(low)

    return change


def outliers(model: PreTrainedModel) -> None:
    """Give four channels large values in every layer, as trained models have; the head hardly reads them."""
    channels = torch.randperm(model.config.hidden_size, generator=torch.Generator().manual_seed(7))[:4]
    for name, parameter in model.named_parameters():
        if name.endswith(("down_proj.weight", "o_proj.weight")):
            parameter[channels] *= 30
        elif name.endswith("embed_tokens.weight"):
            parameter[:, channels] *= 0.3


def both(*changes: Callable[[PreTrainedModel], None]) -> Callable[[PreTrainedModel], None]:
    """Return a function that applies one change after the other."""

    def change(model: PreTrainedModel) -> None:
        for one in changes:
            one(model)

    return change


SMALL, MIDDLE = ModelShape(), ModelShape(hidden=512, layers=6, heads=8, intermediate=1536)
WIDE: Final = replace(MIDDLE, key_value_heads=2, vocabulary=4096)
LARGE: Final = ModelShape(896, 12, 14, 4864, 0.02, key_value_heads=2, vocabulary=32_768, context=5120)
"""The body of Qwen2-0.5B with half of its layers: 208M parameters."""
HALF_BILLION: Final = replace(LARGE, layers=24, vocabulary=151_936)

TRAINED: Final = "trained 0.34M"
SHAPES: Final = {"random 0.34M": SMALL, "random 20M": MIDDLE}
BF16_ONLY, PLAIN = ("bf16-projection-v3",), ("cpu-fp32-projection-v3",)
PEAKED: Final = fresh(LARGE, peaked(2.75))
IN_FLOAT32: Final = multiplied_in_float32(
    Asked(Way("64 at once", 64, engine=LONG), 1, 96), Asked(Way("512 tokens, 16 at once", 16, engine=LONG), 1, 512)
)
GRID: Final = (
    Weights(TRAINED, sharpened(1), temperatures=(1.0, 0.6), cells=SHORT_CELLS),
    *(Weights(f"collapsed × {times}", sharpened(times), cells=SHORT_CELLS) for times in (10, 40, 200)),
    *(Weights(name, fresh(shape)) for name, shape in SHAPES.items()),
    Weights("peaked 20M", fresh(WIDE, peaked(2.0))),
    Weights("peaked 20M, multiplied in float32", fresh(WIDE, peaked(2.0)), BF16_ONLY, cells=IN_FLOAT32[:1]),
    Weights("peaked 208M", PEAKED, BF16_ONLY, cells=LONG_CELLS, large=True),
    Weights(
        "peaked 208M, outlier channels",
        fresh(LARGE, both(outliers, peaked(2.75))),
        BF16_ONLY,
        cells=LONG_CELLS,
        large=True,
    ),
    Weights("peaked 208M, multiplied in float32", PEAKED, BF16_ONLY, cells=IN_FLOAT32[1:], large=True),
    Weights("peaked 208M", PEAKED, PLAIN, cells=ONE_LONG_CALL, large=True),
    Weights("peaked 494M", fresh(HALF_BILLION, peaked(2.75)), BF16_ONLY, cells=ONE_LONG_CALL, large=True),
)
AT_ONCE: Final = 2
"""Cells that are measured side by side."""


# --- Measuring


async def measure(save: Path, scale: float = 1.0, only: str = "") -> list[MeasuredCell]:
    """Measure the grid with this share of its calls, and return the cells.

    only: of the models with this in their name. Each is saved as it is measured: what is in the folder already is not
    measured again.
    """
    slots, found = asyncio.Semaphore(AT_ONCE), list[MeasuredCell]()
    with tempfile.TemporaryDirectory() as name:
        demo = Path(name) / "demo"
        init_model(demo, generated(0), seed=0)
        # The largest first, so that none is left with one of them at the end.
        for place, weights in reversed([one for one in enumerate(GRID) if only in one[1].name]):
            model = Path(name) / str(place)
            weights.make(demo, model)
            cells = [_measured(grid, weights, slots) for grid in grids_of(weights, model, save, scale)]
            found += await asyncio.gather(*cells)
    return sorted(found, key=lambda cell: list(PROFILES).index(cell.profile))


def grids_of(weights: Weights, model: Path, save: Path, scale: float) -> list[Grid]:
    """Return a grid of one cell for each way to run a model, at each temperature, under each profile."""
    made = {"model": model, "model_hash": model_hash(model), "tasks": sample_of(0), "task_root": bytes(32)}
    return [
        Grid(
            profile=PROFILES[profile],
            temperature=temperature,
            tokens=max(1, round(scale * one.calls)) * one.way.at_once * one.way.repeated * one.max_tokens,
            max_tokens=one.max_tokens,
            sharpened=(),
            folder=save / profile / weights.title(temperature) / one.way.name,
            cheats=False,
            elsewhere=False,
            ways=(one.way,),
            **made,
        )
        for profile in weights.profiles
        for temperature in weights.temperatures
        for one in weights.cells
    ]


async def _measured(grid: Grid, weights: Weights, slots: asyncio.Semaphore) -> MeasuredCell:
    async with slots:
        grid.folder.mkdir(parents=True, exist_ok=True)
        [cell], _ = await measure_grid(grid)
        title = weights.title(grid.temperature)
        print(f"measured {title}, {cell.cell}, under {grid.profile.name}", file=sys.stderr, flush=True)
        return replace(cell, model=title, large=weights.large)


def requests_of(model: Path, count: int, max_tokens: int, seed: str, group: int = GROUP) -> list[GenerationRequest]:
    """Return requests of real prompts, `group` samples each."""
    tasks, tokenizer, random = sample_of(0), load_tokenizer(model), Random(seed)
    prompts = [
        prompt_tokens(tokenizer, random.choice(tasks)[1], random.choice((8, 12, 16))) for _ in range(-(-count // group))
    ]
    return [GenerationRequest(prompts[i // group], random.getrandbits(63), max_tokens) for i in range(count)]
