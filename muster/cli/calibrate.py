"""muster run calibrate: measure honest work on the model that a run will train, and write the limits that follow.

The node's engine generates and the validator's replay measures, each in processes of their own, over a grid: the model
as it is and with sharper logits, as training leaves them; many requests at once and one after another, long prompts
with and without the prefix cache, in chunks and preempted; and every row replayed as other machines would compute.
What is measured stays in a folder, so that a run that was ended goes on.
"""

from __future__ import annotations

import asyncio
import platform
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.probe_process import run_probe
from muster.cli.session import Session
from muster.errors import CheckError, ConfigError, UsageError

if TYPE_CHECKING:
    from muster.tasks import TaskSet
    from muster.verification.calibration import Calibration
    from muster.verification.measured import MeasuredCell
    from muster.verification.probes import EngineOptions, ProbeSpec
    from muster.verification.profiles import Profile

WORKER, VALIDATOR = "worker.probe", "validator.measure"
"""Modules that are started; the command line never imports them."""

PREFIX: Final = 300
"""Tokens before a prompt that make it long: more than two blocks of vLLM's cache."""

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
    """How often each call is made: from the second time on the cache is warm."""
    tight: bool = False
    """Without prefix cache, few sequences, small passes and a small cache: prompts in chunks, sequences preempted."""


WAYS: Final = (
    Way("many at once", 64),
    Way("four at once", 4),
    Way("long prompts, cache cold and warm", 16, prefix=PREFIX, repeated=2),
    Way("long prompts, no cache, in chunks, preempted", 16, prefix=PREFIX, tight=True),
)

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model that the run will train.")]
TasksOption = Annotated[Path | None, typer.Option(help="Task set of the run; else the demo's.")]
TokensOption = Annotated[int, typer.Option(min=1000, help="Honest tokens to measure, in all.")]
LengthOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest completion.")]
SharpenedOption = Annotated[
    str, typer.Option(help="How many times as large the logits may become in training: also measured so.")
]


@dataclass(frozen=True)
class Grid:
    """What is measured, and where it is kept."""

    model: Path
    profile: Profile
    temperature: float
    tokens: int
    max_tokens: int
    sharpened: tuple[float, ...]
    folder: Path
    tasks: TaskSet
    cheats: bool = True

    @property
    def share(self) -> int:
        """Return the tokens of one way to run one model."""
        return self.tokens // (len(WAYS) * (1 + len(self.sharpened)))


async def measure_grid(session: Session, grid: Grid) -> tuple[list[MeasuredCell], list[MeasuredCell]]:
    """Measure all honest cells, and the known cheats. Raises as the processes end."""
    from muster.models.arithmetic import ENVIRONMENTS, HONEST
    from muster.models.variants import CHEAPER, save_changed, save_sharpened

    # 1. Honest work: each model, run each way; of the first way also as other machines would compute.
    honest: list[MeasuredCell] = []
    models = {"as it is": grid.model}
    for times in grid.sharpened:
        name = f"logits × {times:g}"
        models[name] = await asyncio.to_thread(
            _made, grid.folder / name, lambda to, x=times: save_sharpened(grid.model, to, x)
        )
    for name, model in models.items():
        for way in WAYS:
            spec = _spec(grid, model, way)
            honest.append(await _measured(session, grid, name, way.name, spec))
            if way is WAYS[0]:
                for other in HONEST[grid.profile.dtype]:
                    honest.append(await _measured(session, grid, name, other, spec, rows_of=way.name, arithmetic=other))
                for other, variables in ENVIRONMENTS.items():
                    few = _spec(grid, model, replace(way, name=f"for {other}", at_once=16), tokens=grid.share // 8)
                    honest.append(await _measured(session, grid, name, other, few, environment=variables))

    # 2. The known cheats, replayed as what they claim to be.
    cheats: list[MeasuredCell] = []
    for name, change in CHEAPER.items() if grid.cheats else ():
        model = await asyncio.to_thread(
            _made, grid.folder / name, lambda to, make=change: save_changed(grid.model, to, make())
        )
        claimed = _spec(grid, grid.model, WAYS[0])
        cheats.append(await _measured(session, grid, "cheat", name, claimed, made_by=model))
    return honest, cheats


def _made(folder: Path, make: Callable[[Path], object]) -> Path:
    """Make a model's folder unless it is there already."""
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder.resolve()


async def _measured(
    session: Session,
    grid: Grid,
    model: str,
    name: str,
    spec: ProbeSpec,
    *,
    rows_of: str = "",
    arithmetic: str = "",
    environment: dict[str, str] | None = None,
    made_by: Path | None = None,
) -> MeasuredCell:
    """Generate and measure one cell, unless it is there.

    rows_of: the cell whose rows are measured again; made_by: the folder of the model that really generates.
    """
    from muster.verification.measured import read_cell
    from muster.verification.probes import write_document

    stem = grid.folder / f"{model}, {name}"
    cell = stem.with_name(stem.name + ".npz")
    if not cell.exists():
        session.note(f"measuring {model}, {name}")
        rows = grid.folder / f"{model}, {rows_of or name}.parquet"
        paths = [stem.with_name(stem.name + ".json"), rows]
        await asyncio.to_thread(write_document, spec, paths[0])
        if not rows.exists():
            source = paths[0]
            if made_by is not None:
                source = stem.with_name(stem.name + " made.json")
                await asyncio.to_thread(write_document, spec.model_copy(update={"model": made_by}), source)
            await run_probe(WORKER, source, rows)
        options = ["--model", model, "--name", name, "--arithmetic", arithmetic]
        await run_probe(VALIDATOR, *paths, cell, *options, environment=environment)
    return await asyncio.to_thread(read_cell, cell)


def _spec(grid: Grid, model: Path, way: Way, tokens: int | None = None) -> ProbeSpec:
    """Return what is generated: calls of one way to run a model, until they may come to the share of the tokens."""
    from muster.models.files import load_tokenizer
    from muster.protocol.prompts import prompt_tokens
    from muster.verification.probes import ProbeRequest, ProbeSpec

    draw, tokenizer = random.Random(f"muster run calibrate {way.name}"), load_tokenizer(model)
    vocabulary, calls = len(tokenizer), []
    count = max(1, (tokens or grid.share) // (way.at_once * way.repeated * grid.max_tokens))
    for _ in range(count):
        before = [draw.randrange(vocabulary) for _ in range(way.prefix)]
        requests: list[ProbeRequest] = []
        for number in range(way.at_once):
            if number % GROUP == 0:
                task, budget = draw.choice(grid.tasks.train), draw.choice((8, 12, 16))
                prompt = [*before, *prompt_tokens(tokenizer, task, budget).tolist()]
            seed = draw.getrandbits(63)
            requests.append(ProbeRequest(prompt_tokens=prompt, seed=seed, max_tokens=grid.max_tokens))
        calls += [requests] * way.repeated
    return ProbeSpec(
        model=model,
        profile=grid.profile.name,
        temperature=grid.temperature,
        calls=calls,
        engine=_options(grid, way),
    )


def _options(grid: Grid, way: Way) -> EngineOptions:
    """Return the engine's options for a way to run it."""
    from muster.verification.probes import EngineOptions

    if not way.tight:
        return EngineOptions()
    return EngineOptions(prefix_caching=False, max_sequences=12, max_batched_tokens=96)


def grid_of(
    model: Path,
    profile: str,
    tasks: Path | None,
    temperature: float,
    tokens: int,
    max_tokens: int,
    sharpened: str,
    folder: Path,
    *,
    cheats: bool,
) -> Grid:
    """Return the grid that the options ask for. Raises UsageError, and ConfigError for a profile that is none."""
    from muster.tasks import load_task_set, make_task_set
    from muster.verification.profiles import PROFILES, profile_hash

    profile_hash(profile)  # raises ConfigError for a name that is none
    try:
        times = tuple(float(one) for one in sharpened.split(",") if one.strip())
    except ValueError as error:
        raise UsageError(f"{sharpened!r} are no numbers", hint="--sharpened 2,4") from error
    if any(not 0 < one <= 1000 for one in times):
        raise UsageError(f"{sharpened!r}: each is above 0 and at most 1,000", hint="--sharpened 2,4")
    if not (model / "config.json").is_file():
        raise ConfigError(f"{model} is no model's folder", hint="muster model init")
    folder.mkdir(parents=True, exist_ok=True)
    task_set = make_task_set(0) if tasks is None else load_task_set(tasks)
    kinds = (temperature, tokens, max_tokens, times, folder, task_set)
    return Grid(model.resolve(), PROFILES[profile], *kinds, cheats=cheats)


async def derive(session: Session, grid: Grid) -> Calibration:
    """Measure the grid and return the calibration. Raises MarginError where the profile's margins do not hold."""
    from muster.models.files import model_hash
    from muster.runtime.processor import read_features
    from muster.verification.calibration import calibrate

    honest, cheats = await measure_grid(session, grid)
    return await asyncio.to_thread(
        calibrate,
        honest,
        cheats,
        grid.profile,
        model_hash=await asyncio.to_thread(model_hash, grid.model),
        temperature_micro=round(grid.temperature * 1_000_000),
        hardware=f"{platform.machine()} {' '.join(read_features())}".strip(),
    )


async def admit_hardware(session: Session, grid: Grid, against: Calibration) -> float:
    """Measure this machine's honest cells against a calibration's limits; return the least margin.

    Raises MarginError where it does not keep them, CheckError where the model or profile is another.
    """
    from muster.models.files import model_hash
    from muster.verification.calibration import check_against, check_calibration

    if grid.profile.name != against.profile:
        raise CheckError(f"the calibration is for {against.profile}, not {grid.profile.name}", hint="--profile")
    temperature = round(grid.temperature * 1_000_000)
    check_calibration(against, await asyncio.to_thread(model_hash, grid.model), temperature)
    honest, _ = await measure_grid(session, replace(grid, cheats=False))
    return await asyncio.to_thread(check_against, honest, against)


def cheat_lines(calibration: Calibration) -> Sequence[dict[str, Any]]:
    """Return what the limits make of each known cheat, a line each."""
    return [
        {
            "cheat": one.name,
            "rows_rejected": f"{one.rejected:.1%}",
            "rows_accused": f"{one.accused:.1%}",
            "units_that_lean": f"{max(one.leaning.values()):.1%}",
            "units_to_reject": one.units_to_reject or "never",
            "units_to_accuse": one.units_to_accuse or "never",
        }
        for one in calibration.cheats
    ]
