"""A pretrained model, SmolLM2-135M-Instruct: what each known cheat shows in a day, and what honest work measures.

    python benchmarks/real_model.py [--json] [--write] [--profile NAME] [--only KIND] [--save DIR]
    python benchmarks/real_model.py --commitments [--json] [--profile NAME] [--save DIR]

A node answers plain questions for a day of 24 steps. `worker.probe` generates the honest rows that a calibration of the
model comes from, replayed also as other machines compute; another day of honest rows, and every cheat of
`testbed.adversaries.live`, comes from an engine in one process. All rows are replayed as a validator does, and judged
by the profile and by the calibrated one. *Caught* is who is accused within the day, by its pool, of which a step is a
unit, or by single rows: those of the pool and the 8 that each of two validators draws for itself, which are taken to be
like those of the pool. --write puts the table into docs/understand/verification.md. --save keeps the measurements: a
later run resumes from it. Takes about 20 minutes for each profile on two idle cores.

--commitments looks at honest work alone: COMMITMENTS of them at the language demo's tasks and lengths, a group each,
straight from the engine.

    honest_language     how many of them are rejected, by their rows or by the pool of all, a step each
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import report
from benchmarks.real_model_days import (
    CALIBRATED,
    EDITED,
    HONEST_DAY,
    NAME,
    SPOILED,
    STEPS,
    TOKENS,
    ProfileDays,
    evidence_of,
    figures,
    judge_days,
    page,
)
from benchmarks.report import DOCS, rewrite
from muster.authoring.calibration import measure_grid
from muster.authoring.calibration_grid import Grid, Way
from muster.authoring.tasks.families import family_of
from muster.environments.task import ask
from muster.models.files import load_tokenizer, model_hash
from muster.protocol.prompts import end_token, prompt_tokens
from muster.rollouts.schema import Rollout
from muster.swarm.scenarios import LANGUAGE
from muster.verification.calibration import beyond, calibrate
from muster.verification.measured import MeasuredCell, count_distinct, read_cell, write_cell
from muster.verification.pools import REJECT
from muster.verification.profiles import BF16, CPU_FP32, PROFILES, Profile
from muster.verification.replay import Replayer
from muster.verification.statistics import scaled_errors
from testbed.adversaries.live import CHEATS, EngineLab, edited_last, edited_place, spoiled_at
from testbed.samples.packaged_model import packaged_model
from testbed.samples.task_sets import generated
from worker.engine import Engine, EngineLimits, GenerationRequest
from worker.rollouts import bare_rows

ROWS = {"float32": 2, "bfloat16": 4}
"""Of a step, by dtype: single rows show most in float32, which takes twice as long."""
GROUP = 4
COMMITMENTS = 300
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


def requests_of(model: Path, rows: int, day: int | str = "a day of a real model") -> list[GenerationRequest]:
    """Return a day's requests: of each step other questions, GROUP samples of each. `day`: the seed of its draws."""
    tokenizer, random = load_tokenizer(model), Random(day)
    prompts = [
        prompt_tokens(tokenizer, ask(random.choice(QUESTIONS)), 8, thinks=False) for _ in range(-(-rows // GROUP))
    ]
    return [GenerationRequest(prompts[i // GROUP], random.getrandbits(63), TOKENS) for i in range(rows)]


def measure_commitments(name: str, model: Path, folder: Path) -> None:
    """Let the engine make honest commitments at the language demo's tasks and lengths, and keep their rows' errors."""
    torch.set_num_threads(1)
    profile, terms, tokenizer = PROFILES[name], LANGUAGE.terms, load_tokenizer(model)
    tasks = generated(0, families=LANGUAGE.families, levels=LANGUAGE.levels, train=COMMITMENTS, held_out=1)
    random, asked = Random("honest commitments"), []
    for i in range(COMMITMENTS):
        environment, task = tasks.train[i]
        prompt = prompt_tokens(tokenizer, task, LANGUAGE.budgets[0], thinks=environment.thinks)
        rows = range(terms["group_size"])
        asked += [GenerationRequest(prompt, random.getrandbits(63), terms["max_completion_tokens"]) for _ in rows]
    longest = max(len(request.prompt_tokens) for request in asked)
    limits = EngineLimits(1.0, longest, terms["max_completion_tokens"], cache_bytes=512 << 20)
    rows = bare_rows(asked, Engine(model, profile, limits).generate(asked))
    errors = [row.errors for row in Replayer(model, profile, 1.0).errors(rows)]
    cell = MeasuredCell(name, NAME, "honest commitments", False, errors, count_distinct(rows))
    write_cell(cell, folder / f"{cell.cell}.npz")


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
    """Measure the missing parts: the calibration's cells, and the days of honest work and of all cheats."""
    folder = save / profile.name
    honest, _ = asyncio.run(measure_grid(grid_of(model, profile, folder)))
    kinds = [HONEST_DAY, *CHEATS, *SPOILED]
    missing = [kind for kind in kinds if only in kind and not (folder / f"{kind}.npz").exists()]
    if missing:
        report.apart(measure_day, profile.name, model, folder, missing)
    return honest, [read_cell(path) for kind in kinds if (path := folder / f"{kind}.npz").exists()]


# --- Results


def honest_commitments(profile: Profile, save: Path) -> tuple[int, int]:
    """Return how many honest commitments of the language demo's tasks are rejected, and their tokens."""
    model, file = model_in(save), save / profile.name / "honest commitments.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        report.apart(measure_commitments, profile.name, model, file.parent)
    cell = read_cell(file)
    rows = [scaled_errors(row, profile) for row in cell.rows]
    group = len(rows) // COMMITMENTS
    steps = [range(first, first + group) for first in range(0, len(rows), group)]
    shown = zip(*evidence_of(steps, rows, profile).values(), strict=True)
    rejected = [
        max(evidence) >= REJECT or any(beyond(rows[place].statistics(), profile)[0] for place in step)
        for step, evidence in zip(steps, shown, strict=True)
    ]
    return sum(rejected), cell.tokens


def model_in(save: Path) -> Path:
    """Return the folder of the model, which comes inside a package."""
    return packaged_model(save / "smollm2-135m")


def measure_profile(name: str, save: Path, only: str = "") -> dict[str, ProfileDays]:
    """Return what a profile makes of a model, and in bfloat16 what the model's own calibration does: by its name."""
    profile, model = PROFILES[name], model_in(save)
    honest, cells = measured(model, profile, save, only)
    found = {name: judge_days(honest, cells, profile)}
    if profile is BF16:
        limits = calibrate(honest, [], profile, model_hash=model_hash(model), temperature_micro=1_000_000)
        found[CALIBRATED] = judge_days(honest, cells, limits.to_profile())
    return found


def main() -> int:
    parser = report.parser(__doc__, write="the table in docs/understand/verification.md")
    parser.add_argument("--profile", choices=(CPU_FP32.name, BF16.name), help="this profile alone")
    parser.add_argument("--only", default="", metavar="KIND", help="only kinds with this in their name")
    parser.add_argument("--commitments", action="store_true", help="honest commitments alone")
    parser.add_argument("--save", type=Path, help="folder that keeps what is measured: a run goes on from it")
    options = parser.parse_args()
    profiles = (options.profile,) if options.profile else (CPU_FP32.name, BF16.name)
    with tempfile.TemporaryDirectory() as folder:
        save, found = options.save or Path(folder), dict[str, ProfileDays]()
        if options.commitments:
            rejected, tokens = zip(*(honest_commitments(PROFILES[name], save) for name in profiles), strict=True)
            words = f"of {COMMITMENTS * len(profiles)} honest commitments ({sum(tokens):,} tokens) are rejected"
            return report.show([report.none("honest_language", sum(rejected), words)], as_json=options.json)
        for name in profiles:
            found |= measure_profile(name, save, options.only)
    if options.write:
        rewrite(DOCS / "understand" / "verification.md", "real", page(found))
    return report.show(figures(found), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
