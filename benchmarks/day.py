"""What a day shows of subtle cheats that no single row does: bfloat16, 208M parameters, 24 commitments.

    python benchmarks/day.py [--json] [--write] [--save DIR]

Every cheat of `testbed.adversaries.subtle` does a day's work on the real engine: of each of 24 commitments the 8 rows
that every validator re-runs (`muster.protocol.draws.draw_pool`), each of another group. Honest work of the same model,
also as other machines compute it, gives the pool limits, as `muster run calibrate` derives them; an honest day of other
rows is judged beside the cheats. *Caught* is who is accused within the day, by its pool or by single rows: those of the
pool and the 8 that each of two validators draws for itself, which are taken to be like those of the pool.
--write puts the table into docs/understand/verification.md. --save keeps the measurements: a later run resumes from it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.calibration import PEAKED, requests_of
from benchmarks.real_model_days import Day, day_of
from benchmarks.report import DOCS, rewrite, table
from muster.models.arithmetic import HONEST, computing
from muster.models.files import load_tokenizer
from muster.protocol.prompts import end_token
from muster.verification.calibration import MarginError, calibrate
from muster.verification.measured import MeasuredCell, count_distinct, read_cell, write_cell
from muster.verification.profiles import BF16, Profile
from muster.verification.replay import Replayer
from testbed.adversaries.subtle import cheats
from worker.engine import Engine, EngineLimits
from worker.rollouts import bare_rows

COMMITMENTS, ROWS, TOKENS = 24, 8, 96
"""Of a day, of a commitment in the pool, and of a completion."""
CALIBRATED = 96
"""Honest rows that the limits come from."""
HONEST_DAY, LIMITS = "honest", "limits"


# --- Measuring


def measure(name: str, model: Path, save: Path) -> None:
    """Generate a day's rows as this cheat does, replay them as a validator does, and keep every token's errors."""
    torch.set_num_threads(1)
    cheat = cheats(end_token(load_tokenizer(model))).get(name)
    count = CALIBRATED if name == LIMITS else COMMITMENTS * ROWS
    requests = requests_of(model, count, TOKENS, f"{name} {COMMITMENTS}", group=1)
    with tempfile.TemporaryDirectory() as folder, cheat.inside() if cheat else nullcontext():
        weights = cheat.weights(model, Path(folder)) if cheat else model
        engine = Engine(weights, BF16, EngineLimits(1.0, 400, TOKENS, cache_bytes=256 << 20))
        rows = bare_rows(requests, engine.generate(requests))
    replayer = Replayer(model, BF16, 1.0)
    for arithmetic in ("", *HONEST[BF16.dtype]) if name == LIMITS else ("",):
        with computing(replayer.model, arithmetic):
            errors = [row.errors for row in replayer.errors(rows)]
        cell = MeasuredCell(BF16.name, "peaked 208M", arithmetic or name, True, errors, count_distinct(rows))
        write_cell(cell, save / f"{cell.cell}.npz")


# --- Results of a day


def days(save: Path) -> tuple[Profile, list[Day]]:
    """Measure the missing cells and judge all days; return the calibrated profile, and the honest day first."""
    save.mkdir(parents=True, exist_ok=True)
    model = save / "model"
    if not model.exists():
        PEAKED(save, model)
    names = [LIMITS, HONEST_DAY, *cheats(0)]
    for name in names:
        if not (save / f"{name}.npz").exists():
            print(f"measuring {name}", file=sys.stderr)
            report.apart(measure, name, model, save)
    honest = [read_cell(save / f"{name}.npz") for name in (LIMITS, *HONEST[BF16.dtype])]
    try:
        limits = calibrate(honest, [], BF16, model_hash=bytes(32), temperature_micro=1_000_000)
    except MarginError as error:
        raise SystemExit(f"no limits hold: {error}") from error
    profile = limits.to_profile()
    return profile, [day_of(read_cell(save / f"{name}.npz"), profile) for name in names[1:]]


def figures(runs: int, *, write: bool = False, save: Path | None = None) -> list[report.Figure]:
    """Return the figures of one day; `runs` is not used, each cheat does its day once."""
    with tempfile.TemporaryDirectory() as folder:
        profile, found = days(save or Path(folder))
    honest, others = found[0], found[1:]
    if write:
        rewrite(DOCS / "understand" / "verification.md", "day", page(profile, found))
    caught = [day for day in others if day.caught]
    wrong = (honest.pool_rejects is not None) + (honest.rejected > 0)
    missed = ", ".join(day.name for day in others if not day.caught) or "none"
    unit = f"of {len(others)} subtle cheats are accused within a day; not: {missed}"
    return [
        report.figure("bf16_day", len(caught), ratio=len(caught) / len(others), target=0.9, unit=unit),
        report.none("bf16_day_honest", wrong, "honest days rejected"),
    ]


def page(profile: Profile, found: Sequence[Day]) -> str:
    """Write the table of docs/understand/verification.md."""
    heads = ("", "rows rejected", "rows accused", "pool rejects", "pool accuses", "shown by", "caught in a day")
    lines = [
        (
            day.name,
            f"{day.rejected:.1%}",
            f"{day.accused:.1%}",
            day.pool_rejects or "no",
            day.pool_accuses or "no",
            day.statistic.replace("_", " ") or "nothing",
            "yes" if day.caught else "no",
        )
        for day in found
    ]
    limits = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in vars(profile.pool).items())
    tokens = sum(day.tokens for day in found)
    return (
        f"{COMMITMENTS} commitments of each, {ROWS} rows of up to {TOKENS} tokens in the pool of each, {tokens:,} "
        f"tokens in all. Pool limits of this model: {limits}. *Pool rejects* and *accuses* give the commitment "
        "whose rows decide.\n\n" + table(heads, lines)
    )


def main() -> int:
    parser = report.parser(__doc__, write="the table in docs/understand/verification.md")
    parser.add_argument("--save", type=Path, help="folder that keeps what is measured: a run goes on from it")
    options = parser.parse_args()
    return report.show(figures(1, write=options.write, save=options.save), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
