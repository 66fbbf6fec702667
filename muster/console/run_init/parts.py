"""Make, or take, what a run is made of: tasks, model, calibration. Each is made once, and checked.

Tasks are written into the run folder at once, since newcomers get them from there. A model that the owner names by its
folder stays there; the terms name its hash.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.authoring.calibration import derive
from muster.authoring.calibration_grid import grid_of
from muster.authoring.probe_process import run_probe
from muster.authoring.tasks.counting import token_counter
from muster.authoring.tasks.generated import make_task_set
from muster.authoring.terms import needs_calibration
from muster.console.run_init.choices import NEW_MODEL
from muster.console.run_init.design import RunDesign, RunParts
from muster.console.run_init.folder import RunFolder
from muster.console.sampling import progress
from muster.console.session import Session
from muster.constants import MICRO
from muster.errors import CheckError, ConfigError
from muster.models.files import context_of, dtype_of, model_hash, tokenizer_hash
from muster.runtime.files import write_durably, written_whole
from muster.swarm.stage import fill_run_folder
from muster.tasksets.taskset import COMPONENTS_NAME, TaskSet
from muster.verification.calibration import check_calibration, parse_calibration, read_document
from muster.verification.profiles import PROFILES, profile_for, profile_hash

if TYPE_CHECKING:
    from muster.authoring.tasks.checking import PartReport

CALIBRATION_TOKENS: Final = 100_000
CALIBRATION_LENGTH: Final = 128
"""Longest completion that is measured; shorter where the run's are."""


async def make_parts(
    session: Session, folder: RunFolder, design: RunDesign, calibration: Path | None, *, unmeasured: bool = False
) -> RunParts:
    """Make what is not there yet, check it, and return what the terms say of it.

    calibration: one that was made elsewhere. unmeasured: take a model for a public run that no `muster model check` has
    seen. Raises ConfigError, CheckError, MarginError, and as processes end.
    """
    # 1. Tasks, and a model, which may be warmed up on them.
    tasks = await asyncio.to_thread(_make_tasks, session, folder, design)
    model = await _make_model(session, folder, design)

    # 2. The model can be trained, and the tasks score: prompts are counted by its tokenizer.
    digest = model_hash(model).hex()
    known = f"{tasks.root.hex()} {digest} {tokenizer_hash(model).hex()} {','.join(map(str, design.budgets))}"
    if unmeasured:
        folder.record(unmeasured=digest)
    if not (design.is_local or design.model == NEW_MODEL or folder.progress.unmeasured == digest):
        await asyncio.to_thread(_require_measured, model)
    if known not in folder.progress.checked:
        await asyncio.to_thread(_check_model, model)
        longest = await asyncio.to_thread(_check_tasks, session, tasks, model, design.budgets)
        folder.record(checked={known: longest})
    await asyncio.to_thread(fill_run_folder, folder.run_folder, folder.tasks, model)

    # 3. What judges its work.
    profile = profile_for(dtype_of(model))
    return RunParts(
        task_count=tasks.size,
        task_root=tasks.root,
        tools_root=tasks.document.tools_root,
        model_hash=model_hash(model),
        tokenizer_hash=tokenizer_hash(model),
        profile=await _limits(session, folder, design, model, profile, calibration),
        context=context_of(model),
        longest_prompt=folder.progress.checked[known],
    )


def model_folder(folder: RunFolder, design: RunDesign) -> Path:
    """Return where the run's model is: a folder of the owner's, or the run's own."""
    named = Path(design.model).expanduser()
    return named.absolute() if design.model != NEW_MODEL and named.is_dir() else folder.made_model


def _make_tasks(session: Session, folder: RunFolder, design: RunDesign) -> TaskSet:
    """Make the tasks, or copy the owner's. Raises ConfigError where others are there already."""
    source, target = Path(design.tasks).expanduser(), folder.tasks
    if design.families:
        levels = ",".join(map(str, design.levels))
        made_of = f"{design.tasks} {levels} {design.train} {design.held_out} {design.seed}"
    else:
        made_of = f"root {TaskSet.open(source).root.hex()}"
    if not _is_made(folder, "tasks", target, made_of):
        target.parent.mkdir(parents=True, exist_ok=True)
        if design.families:
            session.note(f"making tasks: {design.tasks}")
            make_task_set(
                design.seed,
                families=design.families,
                levels=design.levels,
                train=design.train,
                held_out=design.held_out,
                folder=target,
            )
        else:
            session.note(f"copying the tasks of {source}")
            with written_whole(target) as partial:
                shutil.copytree(source, partial, dirs_exist_ok=True)
        folder.record(made_of={**folder.progress.made_of, "tasks": made_of})
    found = TaskSet.open(target)
    if found.document.epochs:
        raise ConfigError(
            f"{source} has private tests, whose terms are chosen when it is sealed",
            hint="take the long way: docs/use/own-a-run.md and docs/use/private-tests.md",
        )
    return found


async def _make_model(session: Session, folder: RunFolder, design: RunDesign) -> Path:
    """Make, fetch or find the model; return its folder."""
    target = model_folder(folder, design)
    if target != folder.made_model:
        return target
    made_of = design.model
    if design.model == NEW_MODEL:
        made_of += f" {design.seed} {','.join(map(str, design.budgets))} {folder.progress.made_of['tasks']}"
    if not _is_made(folder, "model", target, made_of):
        with written_whole(target) as partial:
            if design.model == NEW_MODEL:
                session.note("making a small model and warming it up on the tasks: about a minute")
                budgets = ",".join(map(str, design.budgets))
                words = ("init", partial, "--tasks", folder.tasks, "--seed", str(design.seed), "--budgets", budgets)
            else:
                session.note(f"fetching the model {design.model}")
                words = ("fetch", design.model, partial, "--cache", folder.state / "models")
            await run_probe("muster", "model", *words)  # a separate process, because torch is large
        folder.record(made_of={**folder.progress.made_of, "model": made_of})
    return target


def _is_made(folder: RunFolder, what: str, target: Path, made_of: str) -> bool:
    """Return whether a part is there. Raises ConfigError when it was made of something else."""
    known = folder.progress.made_of.get(what)
    if not target.exists():
        return False
    if known is None:  # killed between the two
        shutil.rmtree(target)
        return False
    if known != made_of:
        raise ConfigError(
            f"{target} is there already, and was made of other choices: {known}",
            hint=f"take another folder for another run, or remove {target} where this run is not on chain yet",
        )
    return True


def _require_measured(model: Path) -> None:
    """Raise ConfigError unless `muster model check` found that all programs agree on the model."""
    from muster.authoring.models.measured import read_measured

    found = read_measured(model)
    if found is None or found.fault:
        reason = found.fault if found else "nothing was measured of its weights"
        hint = f"muster model check {model}, or --unmeasured"
        raise ConfigError(f"engine, validator and trainer are not known to agree on {model}: {reason}", hint=hint)


def _check_model(model: Path) -> None:
    from muster.authoring.models.door import check_checkpoint
    from muster.authoring.models.fetch import files_of

    files_of(model)  # raises ConfigError for what a run needs and the folder lacks
    check_checkpoint(model)


def _check_tasks(session: Session, tasks: TaskSet, model: Path, budgets: Sequence[int]) -> int:
    """Check every task as `muster tasks check` does; return the longest prompt in tokens. Raises CheckError."""
    from muster.authoring.tasks.checking import check_set
    from muster.environments.scoring import Scorers

    document = tasks.document
    total = document.train_count + document.held_out_count
    session.note(f"checking {total:,} tasks: reference answers must score, and prompts are counted")
    with Scorers(tasks.folder / COMPONENTS_NAME) as scorers, progress(session, total, 0) as shown:
        reports = check_set(tasks, scorers.environment, scorers.call_of, token_counter(model, budgets), shown)
    _refuse_faults(tasks, reports)
    return max((length for report in reports for length in report.tokens), default=1)


def _refuse_faults(tasks: TaskSet, reports: list[PartReport]) -> None:
    faults = sum(sum(report.faults.values()) for report in reports)
    if not faults:
        return
    name, fault, more = next(one for report in reports for one in report.examples)
    raise CheckError(
        f"{faults:,} tasks cannot be used, the first {name!r}: {fault}{': ' + more if more else ''}",
        hint=f"muster tasks check {tasks.folder} lists them; a run's tasks can never be changed",
    )


async def _limits(
    session: Session, folder: RunFolder, design: RunDesign, model: Path, profile: str, given: Path | None
) -> bytes:
    """Return what `Terms.profile` holds: the profile's hash, or that of a calibration, made here where it must be."""
    if given is not None or folder.calibration.exists():
        found = parse_calibration(read_document(given or folder.calibration))
        check_calibration(found, model_hash(model), MICRO)
        if given is not None:
            write_durably(folder.calibration, found.to_bytes())
        return found.hash
    if not needs_calibration(PROFILES[profile], model):
        return profile_hash(profile)
    session.note(
        f"measuring honest work on this model, to derive its limits: this takes long, and an interrupted measurement "
        f"resumes from {folder.measured}; --calibration takes one that was made on a faster machine"
    )
    length = min(CALIBRATION_LENGTH, design.max_completion_tokens)
    grid = await asyncio.to_thread(
        grid_of,
        *(model, profile, folder.tasks, 1.0, CALIBRATION_TOKENS, length, (2, 4), folder.measured),
        cheats=True,
        note=session.note,
    )
    found = await derive(grid)
    write_durably(folder.calibration, found.to_bytes())
    return found.hash
