"""The grid of honest work behind the limits in `muster.verification.profiles`: models, ways to run them, and measuring.

Models made here have random weights, except the demo's. What matters for inspection is the size of their logits and of
their states, and these are made to be those of trained models: `peaked` scales the last norm until the entropy is that
of a trained model, `outliers` gives a few channels of every layer large values, and `sharpened` is a policy that has
collapsed onto few answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel

from muster.authoring.tasks.generated import sample_of
from muster.models.files import load_tokenizer
from muster.models.init import ModelShape, init_model, load_model, make_model, make_tokenizer, save_model
from muster.protocol.prompts import prompt_tokens
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout
from muster.tasksets.taskset import Scored, TaskSet
from muster.verification.measured import MeasuredCell, count_distinct, write_cell
from muster.verification.profiles import Profile
from testbed.adversaries.lab import tempered
from testbed.samples.task_sets import generated
from validator.replay import Replayer
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows

GROUP = 4
LONG = 300
"""Tokens before a prompt that make it long: more than two blocks of vLLM's cache."""


# --- Ways to run an engine


@dataclass(frozen=True)
class Cell:
    """One way to run an engine."""

    name: str
    engine: str
    """A key of ENGINES."""
    requests: int
    """Of one call."""
    prefix: int = 0
    """Tokens that the prompts of a call have in common."""
    calls: int = 1
    """How often the same requests are made: from the second time on the cache is warm."""
    max_tokens: int | None = None
    """Longest completion; the model's own without it."""
    share: float = 1.0
    """Of the model's tokens, relative to its other cells."""


ENGINES: Final[dict[str, dict[str, Any]]] = {
    "cached": {},
    "tight": {"prefix_caching": False, "max_sequences": 24, "max_batched_tokens": 96, "cache_blocks": 40},
    "long": {"cache_bytes": 1 << 30, "max_sequences": 64},
    "float32": {"cache_bytes": 1 << 30, "max_sequences": 64, "matmul": "float32"},
}

CELLS: Final = (
    Cell("256 at once", "cached", 256),
    Cell("8 at once", "cached", 8),
    Cell("one at a time", "cached", 1),
    Cell("long prompts, cache cold and warm", "cached", 32, prefix=LONG, calls=2),
    Cell("long prompts, no cache, in chunks, preempted", "tight", 48, prefix=LONG),
)
LONG_CELLS: Final = (
    Cell("512 tokens, 16 at once", "long", 16, max_tokens=512, share=3),
    Cell("2,048 tokens, 16 at once", "long", 16, max_tokens=2048, share=3),
    Cell("4,096 tokens, 8 at once", "long", 8, max_tokens=4096, share=3),
    Cell("1 token, 64 at once", "long", 64, max_tokens=1, share=0.02),
    Cell("4 tokens, 64 at once", "long", 64, max_tokens=4, share=0.04),
)
WIDE_CELLS: Final = (
    Cell("64 at once", "float32", 64),
    Cell("512 tokens, 16 at once", "float32", 16, max_tokens=512),
)
"""Of engines that multiply as where no instructions for bfloat16 are; the replay multiplies as this processor does."""


# --- Models


@dataclass(frozen=True)
class Weights:
    """A model of the grid, and what is asked of it."""

    name: str
    make: Callable[[Path, Path], None]
    """Makes it in the second folder; the first one holds the demo's model."""
    tokens: int
    """Honest tokens under each profile and at each temperature."""
    profiles: tuple[str, ...] = ()
    """Names of profiles; all without any."""
    temperatures: tuple[float, ...] = (1.0,)
    max_tokens: int = 96
    cells: tuple[Cell, ...] = CELLS
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

    def make(demo: Path, folder: Path) -> None:
        model = load_model(demo)
        with torch.inference_mode():
            model.get_parameter("model.norm.weight").mul_(times)
        save_model(model, load_tokenizer(demo), folder)

    return make


def copied(demo: Path, folder: Path) -> None:
    """Make the demo's model itself."""
    save_model(load_model(demo), load_tokenizer(demo), folder)


def peaked(entropy: float) -> Callable[[PreTrainedModel], None]:
    """Return what scales a model's last norm until the entropy of its next token is this on average, in nats."""

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
    """Return what makes one change after the other."""

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
BF16_ONLY, PLAIN = ("bf16-projection-v2",), ("cpu-fp32-projection-v2",)
GRID: Final = (
    Weights(TRAINED, copied, 32_000, temperatures=(1.0, 0.6), max_tokens=32),
    *(Weights(f"collapsed × {times}", sharpened(times), 32_000, max_tokens=32) for times in (10, 40, 200)),
    *(Weights(name, fresh(shape), 32_000) for name, shape in SHAPES.items()),
    Weights("peaked 20M", fresh(WIDE, peaked(2.0)), 32_000),
    Weights("peaked 20M, multiplied in float32", fresh(WIDE, peaked(2.0)), 6_400, BF16_ONLY, cells=WIDE_CELLS[:1]),
    Weights("peaked 208M", fresh(LARGE, peaked(2.75)), 105_000, BF16_ONLY, cells=LONG_CELLS, large=True),
    Weights(
        "peaked 208M, outlier channels",
        fresh(LARGE, both(outliers, peaked(2.75))),
        105_000,
        BF16_ONLY,
        cells=LONG_CELLS,
        large=True,
    ),
    Weights(
        "peaked 208M, multiplied in float32",
        fresh(LARGE, peaked(2.75)),
        8_000,
        BF16_ONLY,
        cells=WIDE_CELLS[1:],
        large=True,
    ),
    Weights("peaked 208M", fresh(LARGE, peaked(2.75)), 8_000, PLAIN, cells=LONG_CELLS[:1], large=True),
    Weights("peaked 494M", fresh(HALF_BILLION, peaked(2.75)), 8_000, BF16_ONLY, cells=LONG_CELLS[:1], large=True),
)


# --- Measuring


def make_models(folder: Path) -> TaskSet:
    """Make the demo's trained model, and larger ones with random weights, each in a folder of its name."""
    task_set = generated(0)
    init_model(folder / TRAINED, task_set, seed=0)
    for name, shape in SHAPES.items():
        fresh(shape)(folder / TRAINED, folder / name)
    return task_set


def make_requests(tokenizer, tasks: Sequence[Scored], count: int, max_tokens: int, random: Random, prefix: int = 0):
    """Real prompts, four samples each, after `prefix` tokens that they have in common."""
    before = np.random.default_rng(random.getrandbits(32)).integers(20, 100, prefix).astype(np.int32)
    prompts = [
        np.concatenate([before, prompt_tokens(tokenizer, random.choice(tasks)[1], random.choice((8, 12, 16)))])
        for _ in range(-(-count // GROUP))
    ]
    return [GenerationRequest(prompts[i // GROUP], random.getrandbits(63), max_tokens) for i in range(count)]


def run_weights(profile: Profile, weights: Weights, path: Path, scale: float, save: Path) -> None:
    """Measure every cell of one model under one profile, each with its share of `scale` times the model's tokens.

    Each is saved as soon as it is measured, its rows beside it, and not measured again where it is there already.
    """
    longest = max(cell.max_tokens or weights.max_tokens for cell in weights.cells)
    limits = EngineLimits(1.0, 400, longest, cache_bytes=128 << 20)
    names = {cell.engine for cell in weights.cells}
    # All engines are kept to the end: vLLM takes what they share along with the first that goes.
    engines = {name: Engine(path, profile, replace(limits, **ENGINES[name])) for name in sorted(names)}
    for temperature in weights.temperatures:
        replayer, shares = Replayer(path, profile, temperature), sum(cell.share for cell in weights.cells)
        for cell in weights.cells:
            file = save / f"{profile.name}, {weights.title(temperature)}, {cell.name}.npz"
            if file.exists():
                continue
            share = scale * weights.tokens * cell.share / shares
            with tempered(engines[cell.engine], temperature):
                rows = _generate(cell, cell.max_tokens or weights.max_tokens, path, engines[cell.engine], share)
            file.with_suffix(".parquet").write_bytes(write_rollouts(rows))
            found = [row.errors for row in replayer.errors(rows)]
            title = weights.title(temperature)
            write_cell(MeasuredCell(profile.name, title, cell.name, weights.large, found, count_distinct(rows)), file)


def _generate(cell: Cell, longest: int, path: Path, engine: Engine, tokens: float) -> list[Rollout]:
    """Run whole calls until they come to about so many tokens: at least one."""
    tasks, tokenizer, random = sample_of(0), load_tokenizer(path), Random(f"{path.name} {cell.name}")
    rows: list[Rollout] = []
    counted = last = 0
    while not rows or counted + last / 2 < tokens:
        before = counted
        requests = make_requests(tokenizer, tasks, cell.requests, longest, random, cell.prefix)
        for _ in range(cell.calls):
            rows += bare_rows(requests, engine.generate(requests))
        counted = sum(len(row.completion_tokens) for row in rows)
        last = counted - before
    return rows


def pairs(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return what is measured by one process each: the name of a profile, and the place in GRID of a model."""
    return [
        (name, place)
        for place, weights in enumerate(GRID)
        for name in names
        if not weights.profiles or name in weights.profiles
    ]
