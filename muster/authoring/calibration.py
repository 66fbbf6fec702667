"""Measure honest work on the model that a run will train, and derive the limits that follow.

The node's engine generates and the validator's replay measures, each in processes of their own, over a grid: the model
as it is and with sharper logits, as training leaves them; many requests at once and one after another, long prompts
with and without the prefix cache, in chunks and preempted; and every row replayed as other machines would compute.
What is measured stays in a folder, so that a run that was ended goes on. GRID_FILE says what it was measured of: cells
of another model, profile, machine or version never count. A changed copy of the model is there only while it is
measured.
"""

from __future__ import annotations

import asyncio
import json
import platform
import random
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.authoring.probe_process import run_probe
from muster.errors import CheckError, ConfigError, UsageError

if TYPE_CHECKING:
    from muster.tasksets.taskset import Scored
    from muster.verification.calibration import Calibration
    from muster.verification.measured import MeasuredCell
    from muster.verification.probes import ProbeSpec
    from muster.verification.profiles import Profile

WORKER, VALIDATOR = "worker.probe", "validator.measure"
"""Modules that are started, never imported."""

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

GRID_FILE: Final = "grid.json"


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
    """Told what is measured next."""

    @property
    def share(self) -> int:
        """Return the tokens of one way to run one model."""
        return self.tokens // (len(self.ways) * (1 + len(self.sharpened)))

    @property
    def temperature_micro(self) -> int:
        return round(self.temperature * 1_000_000)

    def identity(self) -> dict[str, Any]:
        """Return all that a cell's values depend on, by name."""
        return {
            "model_hash": "0x" + self.model_hash.hex(),
            "profile": self.profile.name,
            "temperature_micro": self.temperature_micro,
            "tokens": self.tokens,
            "max_tokens": self.max_tokens,
            "sharpened": list(self.sharpened),
            "task_root": "0x" + self.task_root.hex(),
            "hardware": hardware(),
            "versions": _versions(),
        } | ({} if self.ways == WAYS else {"ways": [asdict(way) for way in self.ways]})


@dataclass(frozen=True)
class Cell:
    """One measurement: a file each."""

    model: str
    """Which of the models, by name."""
    name: str
    spec: ProbeSpec
    rows_of: str = ""
    """Name of the cell whose rows are measured again; its own without it."""
    arithmetic: str = ""
    environment: Mapping[str, str] | None = None
    """Variables of the process that replays."""
    generated_in: Mapping[str, str] | None = None
    """Variables of the process that generates."""

    def path(self, folder: Path, ending: str) -> Path:
        return folder / f"{self.model}, {self.name}{ending}"

    def rows(self, folder: Path) -> Path:
        return folder / f"{self.model}, {self.rows_of or self.name}.parquet"


def _versions() -> dict[str, str]:
    """Return the versions of what computes, by module: vLLM's distribution has several names."""
    known = packages_distributions()
    return {name: version(known[name][0]) for name in ("muster", "torch", "transformers", "vllm") if name in known}


def hardware() -> str:
    """Return what computes here, for people: the instructions that torch uses, or that it is a GPU."""
    from muster.models.numerics import device_kind
    from muster.runtime.processor import used_features

    return " ".join([device_kind(), platform.machine(), *used_features()])


async def measure_grid(grid: Grid) -> tuple[list[MeasuredCell], list[MeasuredCell]]:
    """Measure all honest cells, and the known cheats. Raises as the processes end.

    Raises ConfigError when the folder holds cells of another grid, UsageError when requests do not fit the model.
    """
    from muster.authoring.models.variants import CHEAPER, save_changed, save_sharpened

    # 1. What is asked for: what does not fit is refused before anything is measured.
    await asyncio.to_thread(claim_folder, grid)
    specs = await asyncio.to_thread(grid_specs, grid)

    # 2. Honest work: each model, run each way; of the first way also as other machines would compute.
    honest: list[MeasuredCell] = []
    models: dict[str, Callable[[Path], Path] | None] = {"as it is": None}
    for times in grid.sharpened:
        models[f"logits × {times:g}"] = partial(save_sharpened, grid.model, times=times)
    for name, save in models.items():
        honest += await _measured(grid, _honest_cells(grid, name, specs), save)

    # 3. The known cheats, replayed as what they claim to be.
    cheats: list[MeasuredCell] = []
    for name, change in CHEAPER.items() if grid.cheats else ():
        cell = Cell("cheat", name, specs[grid.ways[0].name])

        def save_cheaper(target: Path, make: Callable[[], Any] = change) -> Path:
            return save_changed(grid.model, target, make())

        cheats += await _measured(grid, [cell], save_cheaper, replayed=grid.model)
    return honest, cheats


def claim_folder(grid: Grid) -> None:
    """Write what the folder's cells are measured of. Raises ConfigError when it holds those of another grid."""
    from muster.runtime.files import write_atomically

    path, wanted = grid.folder / GRID_FILE, grid.identity()
    try:
        known = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError:
        known = {}
    if known == wanted:
        return
    if any(grid.folder.glob("*.npz")) or any(grid.folder.glob("*.parquet")):
        other = [name for name in wanted if not isinstance(known, dict) or known.get(name) != wanted[name]]
        raise ConfigError(
            f"{grid.folder} holds what was measured with another {', '.join(other)}",
            hint="name another --folder, or remove this one",
        )
    write_atomically(path, json.dumps(wanted, indent=2))


def _honest_cells(grid: Grid, model: str, specs: Mapping[str, ProbeSpec]) -> list[Cell]:
    """Return the honest cells of one model."""
    from muster.models.arithmetic import HONEST

    first, *others = [Cell(model, way.name, specs[way.name], generated_in=way.generated_in) for way in grid.ways]
    cells, name = [first], first.name
    for arithmetic in HONEST[grid.profile.dtype] if grid.elsewhere else ():
        cells.append(Cell(model, arithmetic, specs[name], rows_of=name, arithmetic=arithmetic))
    for older, variables in _environments().items() if grid.elsewhere else ():
        cells.append(Cell(model, older, specs[older], environment=variables))
        cells.append(Cell(model, f"generated on {older}", specs[older], generated_in=variables))
    return cells + others


def _environments() -> Mapping[str, Mapping[str, str]]:
    """Return the variables of older processors that this one can be, by name; a GPU and an ARM are none of them."""
    from muster.models.numerics import device_kind
    from muster.runtime.processor import EMULATIONS

    return EMULATIONS if device_kind() == "cpu" else {}


async def _measured(
    grid: Grid,
    cells: Sequence[Cell],
    save: Callable[[Path], Path] | None,
    *,
    replayed: Path | None = None,
) -> list[MeasuredCell]:
    """Return the cells of one model, and measure those that are not there yet.

    save: writes the folder of the model that generates; without it that is the grid's. replayed: the model that
    measures; the one that generates without it.
    """
    from muster.verification.measured import read_cell

    missing = [cell for cell in cells if not cell.path(grid.folder, ".npz").exists()]
    if missing:
        name = cells[0].model if replayed is None else cells[0].name
        async with _made(grid, name, save) as model:
            for cell in missing:
                grid.note(f"measuring {cell.model}, {cell.name}")
                await _measure(grid.folder, cell, model, replayed or model)
    return [await asyncio.to_thread(read_cell, cell.path(grid.folder, ".npz")) for cell in cells]


@asynccontextmanager
async def _made(grid: Grid, name: str, save: Callable[[Path], Path] | None) -> AsyncIterator[Path]:
    """Yield the folder of a model, and remove it once it is measured; one that an interruption left is used again."""
    if save is None:
        yield grid.model
        return
    folder = grid.folder / name
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".part")
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
        await asyncio.to_thread(save, unfinished)
        unfinished.rename(folder)
    yield folder.resolve()
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _measure(folder: Path, cell: Cell, generated: Path, replayed: Path) -> None:
    """Generate a cell's rows with one model, unless they are there, and measure them with another."""
    from muster.verification.probes import write_document

    spec, rows = cell.path(folder, ".json"), cell.rows(folder)
    if not rows.exists():
        await asyncio.to_thread(write_document, cell.spec.model_copy(update={"model": generated}), spec)
        await run_probe(WORKER, spec, rows, environment=cell.generated_in)
    await asyncio.to_thread(write_document, cell.spec.model_copy(update={"model": replayed}), spec)
    options = ["--model", cell.model, "--name", cell.name, "--arithmetic", cell.arithmetic]
    await run_probe(VALIDATOR, spec, rows, cell.path(folder, ".npz"), *options, environment=cell.environment)


def grid_specs(grid: Grid) -> dict[str, ProbeSpec]:
    """Return what is generated, by the name of a way to run a model, or of an environment."""
    few = {name: replace(grid.ways[0], name=f"for {name}", at_once=16) for name in _environments()}
    specs = {way.name: _spec(grid, way, grid.share) for way in grid.ways}
    return specs | {name: _spec(grid, way, grid.share // 8) for name, way in few.items()}


def _spec(grid: Grid, way: Way, tokens: int) -> ProbeSpec:
    """Return what is generated: calls of one way to run a model, until they may come to so many tokens.

    Raises UsageError for more requests than one file holds, or where one does not fit the model's context.
    """
    from muster.models.files import context_of, load_tokenizer, vocabulary_of
    from muster.protocol.prompts import prompt_tokens
    from muster.verification.probes import MAX_ROWS, EngineOptions, ProbeRequest, ProbeSpec

    # 1. How many calls, and what fits.
    draw, tokenizer = random.Random(f"muster run calibrate {way.name}"), load_tokenizer(grid.model)
    vocabulary, context = min(len(tokenizer), vocabulary_of(grid.model)), context_of(grid.model)
    count = max(1, tokens // (way.at_once * way.repeated * grid.max_tokens))
    if (rows := count * way.at_once * way.repeated) > MAX_ROWS:
        raise UsageError(f"{rows} completions of one way to run a model; at most {MAX_ROWS}", hint="a smaller --tokens")

    # 2. Prompts of each call, with what they have in common before them.
    calls: list[list[ProbeRequest]] = []
    for _ in range(count):
        before, prompts = [draw.randrange(vocabulary) for _ in range(way.prefix)], []
        for _ in range(-(-way.at_once // GROUP)):
            (manifest, task), budget = draw.choice(grid.tasks), draw.choice((8, 12, 16))
            prompts.append(prompt_tokens(tokenizer, task, budget, thinks=manifest.thinks).tolist())
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
    sharpened: str,
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
    try:
        times = tuple(dict.fromkeys(float(one) for one in sharpened.split(",") if one.strip()))
    except ValueError as error:
        raise UsageError(f"{sharpened!r} are no numbers", hint="--sharpened 2,4") from error
    if len(times) > MAX_SHARPENED:
        raise UsageError(
            f"{len(times)} values; each takes a whole grid, and at most {MAX_SHARPENED} are taken",
            hint="--sharpened 2,4",
        )
    if any(not 0 < one <= 1000 for one in times):
        raise UsageError(f"{sharpened!r}: each is above 0 and at most 1,000", hint="--sharpened 2,4")
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
        sharpened=times,
        folder=folder,
        tasks=sample_of(0) if task_set is None else task_set.train,
        task_root=bytes(32) if task_set is None else task_set.root,
        cheats=cheats,
        note=note,
    )


async def derive(grid: Grid) -> Calibration:
    """Measure the grid and return the calibration. Raises MarginError where the profile's margins do not hold."""
    from muster.runtime.journal import FolderLock
    from muster.verification.calibration import calibrate

    with FolderLock(grid.folder):
        honest, cheats = await measure_grid(grid)
    return await asyncio.to_thread(
        calibrate,
        honest,
        cheats,
        grid.profile,
        model_hash=grid.model_hash,
        temperature_micro=grid.temperature_micro,
        hardware=hardware(),
    )


async def admit_hardware(grid: Grid, against: Calibration) -> float:
    """Measure this machine's honest cells against a calibration's limits; return the least margin.

    Raises MarginError where it does not keep them, CheckError where the model or profile is another.
    """
    from muster.runtime.journal import FolderLock
    from muster.verification.calibration import check_against, check_calibration

    if grid.profile.name != against.profile:
        raise CheckError(f"the calibration is for {against.profile}, not {grid.profile.name}", hint="--profile")
    check_calibration(against, grid.model_hash, grid.temperature_micro)
    with FolderLock(grid.folder):
        honest, _ = await measure_grid(replace(grid, cheats=False))
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
