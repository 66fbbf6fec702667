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
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.authoring import calibration_grid
from muster.authoring.calibration_grid import Grid, grid_specs, hardware
from muster.authoring.probe_process import VALIDATOR, WORKER, run_probe
from muster.errors import CheckError, ConfigError
from muster.runtime.files import write_atomically, written_whole

if TYPE_CHECKING:
    from muster.verification.calibration import Calibration
    from muster.verification.measured import MeasuredCell
    from muster.verification.probes import ProbeSpec

GRID_FILE: Final = "grid.json"


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
    path, wanted = grid.folder / GRID_FILE, grid.identity()
    try:
        known = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError:
        known = {}
    known = known if isinstance(known, dict) else {}
    if known == wanted:
        return
    if any(grid.folder.glob("*.npz")) or any(grid.folder.glob("*.parquet")):
        other = [name for name in wanted | known if known.get(name) != wanted.get(name)]
        raise ConfigError(
            f"{grid.folder} holds what was measured with another {', '.join(other)}",
            hint="name another --folder, or remove this one",
        )
    write_atomically(path, json.dumps(wanted, indent=2))


def _honest_cells(grid: Grid, model: str, specs: Mapping[str, ProbeSpec]) -> list[Cell]:
    from muster.models.arithmetic import HONEST

    first, *others = [Cell(model, way.name, specs[way.name], generated_in=way.generated_in) for way in grid.ways]
    cells, name = [first], first.name
    for arithmetic in HONEST[grid.profile.dtype] if grid.elsewhere else ():
        cells.append(Cell(model, arithmetic, specs[name], rows_of=name, arithmetic=arithmetic))
    for older, variables in calibration_grid.environments().items() if grid.elsewhere else ():
        cells.append(Cell(model, f"for {older}", specs[older]))
        cells.append(Cell(model, older, specs[older], rows_of=f"for {older}", environment=variables))
        cells.append(Cell(model, f"generated on {older}", specs[older], generated_in=variables))
    return cells + others


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
    found = [await asyncio.to_thread(read_cell, cell.path(grid.folder, ".npz")) for cell in cells]
    return [replace(one, model=cell.model, cell=cell.name) for one, cell in zip(found, cells, strict=True)]


@asynccontextmanager
async def _made(grid: Grid, name: str, save: Callable[[Path], Path] | None) -> AsyncIterator[Path]:
    """Yield the folder of a model, and remove it once it is measured; one that an interruption left is used again."""
    if save is None:
        yield grid.model
        return
    folder = grid.folder / name
    if not folder.exists():
        with written_whole(folder) as partial:
            await asyncio.to_thread(save, partial)
    yield folder.resolve()
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _measure(folder: Path, cell: Cell, generated: Path, replayed: Path) -> None:
    """Generate a cell's rows with one model, unless they are there, and measure them with another."""
    from muster.verification.probes import write_document

    spec, rows = cell.path(folder, ".json"), cell.rows(folder)
    if not rows.exists():
        await asyncio.to_thread(write_document, cell.spec.model_copy(update={"model": generated}), spec)
        await run_probe(WORKER, spec, rows, environment=cell.generated_in)
    changes = {"model": replayed, "arithmetic": cell.arithmetic}
    await asyncio.to_thread(write_document, cell.spec.model_copy(update=changes), spec)
    await run_probe(VALIDATOR, spec, rows, cell.path(folder, ".npz"), environment=cell.environment)


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
