"""muster run calibrate: measure honest work on the model that a run will train, and write the limits that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.authoring.calibration import admit_hardware, cheat_lines, derive
from muster.authoring.calibration_grid import grid_of
from muster.console.session import Session, as_table
from muster.protocol.hashes import hex_hash
from muster.runtime.files import write_durably
from muster.verification.calibration import parse_calibration, read_document

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model that the run will train.")]
TasksOption = Annotated[Path | None, typer.Option(help="Task set of the run; else the demo's.")]
TokensOption = Annotated[int, typer.Option(min=1000, help="Honest tokens to measure, in all.")]
LengthOption = Annotated[int, typer.Option("--max-tokens", min=1, max=1 << 20, help="Longest completion.")]
SharpenedOption = Annotated[
    str, typer.Option(help="How many times as large the logits may become in training: also measured so.")
]


async def calibrate(
    session: Session,
    model: ModelArgument,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("calibration.json"),
    profile: Annotated[str, typer.Option(help="Verification profile.")] = "bf16-projection-v3",
    tasks: TasksOption = None,
    temperature: Annotated[float, typer.Option(min=0.01, max=100)] = 1.0,
    tokens: TokensOption = 100_000,
    max_tokens: LengthOption = 128,
    sharpened: SharpenedOption = "2,4",
    folder: Annotated[Path, typer.Option(help="Keeps the measurements: run the same command to resume.")] = Path(
        ".muster/calibration"
    ),
    against: Annotated[
        Path | None, typer.Option(help="Only check that this machine's honest work keeps a calibration's margins.")
    ] = None,
) -> None:
    """Measure honest work on a model and derive the limits of a run that trains it. Exit code 3 where none hold."""
    grid = grid_of(
        *(model, profile, tasks, temperature, tokens, max_tokens, sharpened, folder),
        cheats=against is None,
        note=session.note,
    )
    if against is not None:
        margin = await admit_hardware(grid, parse_calibration(read_document(against)))
        shown = {"calibration": str(against), "margin": margin}
        return session.result(shown, f"this machine keeps a margin of {margin:.2f}")
    found = await derive(grid)
    write_durably(out, found.to_bytes())
    session.note(f"wrote {out}; next: muster run template --calibration {out}, and put it into orchestrator.run_folder")
    document = found.model_dump(mode="json") | {"hash": hex_hash(found.hash), "file": str(out)}
    return session.result(document, as_table(cheat_lines(found)))
