"""The grid of honest work that a calibration measures: the model, ways to run an engine, and what is asked."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from muster.tasksets.taskset import Scored
    from muster.verification.probes import ProbeSpec
    from muster.verification.profiles import Profile

PREFIX: Final = 300
"""Tokens before a prompt that make it long: more than two blocks of vLLM's cache. Fewer where the model's context is
short."""

MAX_SHARPENED: Final = 8
"""Sharper models of one grid: each takes as long as the model itself."""

GROUP: Final = 4
"""Requests with the same prompt, which come to different completions."""


@dataclass(frozen=True)
class Way:
    """One way to run an engine."""

    name: str
    at_once: int
    """Requests of one call."""
    prefix: int = 0
    """Tokens that the prompts of a call have in common."""
    repeated: int = 1
    """How often the prompts of each call are asked for, with new seeds: from the second time on the cache is warm."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EngineOptions`."""
    generated_in: Mapping[str, str] | None = None
    """Variables of the process that generates."""


TIGHT: Final = {"prefix_caching": False, "max_sequences": 12, "max_batched_tokens": 96}
"""Without prefix cache, few sequences and small passes: prompts in chunks, sequences preempted."""
WAYS: Final = (
    Way("many at once", 64),
    Way("four at once", 4),
    Way("long prompts, cache cold and warm", 16, prefix=PREFIX, repeated=2),
    Way("long prompts, no cache, in chunks, preempted", 16, prefix=PREFIX, engine=TIGHT),
)


@dataclass(frozen=True)
class Grid:
    """What is measured, and where it is kept."""

    model: Path
    model_hash: bytes
    profile: Profile
    temperature: float
    tokens: int
    max_tokens: int
    sharpened: tuple[float, ...]
    folder: Path
    tasks: Sequence[Scored]
    """What is asked: training tasks."""
    task_root: bytes
    """Of the task set that they are of; zero where they are the generator's."""
    cheats: bool = True
    elsewhere: bool = True
    """Whether honest work is also measured as other machines compute."""
    ways: Sequence[Way] = field(default_factory=lambda: WAYS)
    note: Callable[[str], None] = lambda line: None
    """Called with a line about the next measurement."""

    @property
    def share(self) -> int:
        """Return the tokens of one way to run one model."""
        return self.tokens // (len(self.ways) * (1 + len(self.sharpened)))

    @property
    def temperature_micro(self) -> int:
        return round(self.temperature * 1_000_000)

    def identity(self) -> dict[str, Any]:
        """Return all that a cell's values depend on, by name."""
        known = packages_distributions()  # by module: vLLM's distribution has several names
        computing = [name for name in ("muster", "torch", "transformers", "vllm") if name in known]
        return {
            "model_hash": "0x" + self.model_hash.hex(),
            "profile": self.profile.name,
            "temperature_micro": self.temperature_micro,
            "tokens": self.tokens,
            "max_tokens": self.max_tokens,
            "sharpened": list(self.sharpened),
            "task_root": "0x" + self.task_root.hex(),
            "hardware": hardware(),
            "versions": {name: version(known[name][0]) for name in computing},
        } | ({} if self.ways == WAYS else {"ways": [asdict(way) for way in self.ways]})


def hardware() -> str:
    """Return what computes here, for people: the instructions that torch uses, or that it is a GPU."""
    from muster.models.numerics import device_kind
    from muster.runtime.processor import used_features

    return " ".join([device_kind(), platform.machine(), *used_features()])


def environments() -> Mapping[str, Mapping[str, str]]:
    """Return the variables of older processors that this one can be, by name; a GPU and an ARM are none of them."""
    from muster.models.numerics import device_kind
    from muster.runtime.processor import EMULATIONS

    return EMULATIONS if device_kind() == "cpu" else {}


def grid_specs(grid: Grid) -> dict[str, ProbeSpec]:
    """Return what is generated, by the name of a way to run a model, or of an environment."""
    few = {name: replace(grid.ways[0], name=f"for {name}", at_once=16) for name in environments()}
    specs = {way.name: _spec(grid, way, grid.share) for way in grid.ways}
    return specs | {name: _spec(grid, way, grid.share // 8) for name, way in few.items()}


def _spec(grid: Grid, way: Way, tokens: int) -> ProbeSpec:
    """Return what is generated: calls of one way to run a model, until they may come to so many tokens.

    Raises UsageError for more requests than one file holds, or where one does not fit the model's context.
    """
    from muster.authoring.tasks.counting import conversations_of
    from muster.models.files import context_of, vocabulary_of
    from muster.verification.probes import MAX_ROWS, EngineOptions, ProbeRequest, ProbeSpec

    # 1. How many calls, and what fits.
    draw = random.Random(f"muster run calibrate {way.name}")
    asking = replace(conversations_of(grid.model), vocabulary=None)  # the engine says which tokens it lacks
    vocabulary, context = min(len(asking.tokenizer), vocabulary_of(grid.model)), context_of(grid.model)
    count = max(1, tokens // (way.at_once * way.repeated * grid.max_tokens))
    if (rows := count * way.at_once * way.repeated) > MAX_ROWS:
        raise UsageError(f"{rows} completions of one way to run a model; at most {MAX_ROWS}", hint="a smaller --tokens")

    # 2. Prompts of each call, with what they have in common before them.
    calls: list[list[ProbeRequest]] = []
    for _ in range(count):
        before, prompts = [draw.randrange(vocabulary) for _ in range(way.prefix)], []
        for _ in range(-(-way.at_once // GROUP)):
            scored, budget = draw.choice(grid.tasks), draw.choice((8, 12, 16))
            prompts.append(asking.prompt(scored, budget).tolist())
        longest = max(map(len, prompts))
        if context is not None:
            if longest + grid.max_tokens > context:
                raise UsageError(
                    f"a prompt of {longest} tokens and a completion of {grid.max_tokens} do not fit the model's "
                    f"context of {context}",
                    hint=f"--max-tokens {context - longest}" if context > longest else "name the run's --tasks",
                )
            before = before[: context - longest - grid.max_tokens]

        # 3. Requests: the same prompts each time, and seeds that were not there before.
        calls += [
            [
                ProbeRequest(prompt_tokens=before + prompt, seed=draw.getrandbits(63), max_tokens=grid.max_tokens)
                for prompt in prompts
                for _ in range(min(GROUP, way.at_once))
            ]
            for _ in range(way.repeated)
        ]
    return ProbeSpec(
        model=grid.model,
        profile=grid.profile.name,
        temperature=grid.temperature,
        calls=calls,
        engine=EngineOptions(**way.engine),
    )


def grid_of(
    model: Path,
    profile: str,
    tasks: Path | None,
    temperature: float,
    tokens: int,
    max_tokens: int,
    sharpened: tuple[int, ...],
    folder: Path,
    *,
    cheats: bool,
    note: Callable[[str], None],
) -> Grid:
    """Return the grid that the options ask for. Raises UsageError, and ConfigError for a profile that is none."""
    from muster.authoring.tasks.generated import sample_of
    from muster.models.files import model_hash
    from muster.tasksets.taskset import TaskSet
    from muster.verification.profiles import PROFILES, profile_hash

    profile_hash(profile)  # raises ConfigError for a name that is none
    if len(sharpened) > MAX_SHARPENED or any(not 0 < one <= 1000 for one in sharpened):
        raise UsageError(f"--sharpened takes {MAX_SHARPENED} numbers at most, from 1 to 1,000", hint="--sharpened 2,4")
    if not (model / "config.json").is_file():
        raise ConfigError(f"{model} is no model's folder", hint="muster model init")
    folder.mkdir(parents=True, exist_ok=True)
    task_set = None if tasks is None else TaskSet.open(tasks)
    return Grid(
        model=model.resolve(),
        model_hash=model_hash(model),
        profile=PROFILES[profile],
        temperature=temperature,
        tokens=tokens,
        max_tokens=max_tokens,
        sharpened=sharpened,
        folder=folder,
        tasks=sample_of(0) if task_set is None else task_set.train,
        task_root=bytes(32) if task_set is None else task_set.root,
        cheats=cheats,
        note=note,
    )
