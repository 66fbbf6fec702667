"""What `muster run create` and `muster run init` check of terms before anything is sent: model, profile, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.authoring.models.door import check_checkpoint
from muster.authoring.tasks.counting import longest_prompt, refuse_cut
from muster.errors import ConfigError
from muster.models.files import context_of, model_hash, tokenizer_hash
from muster.models.weights import parameter_count
from muster.protocol.terms import Terms, check_context
from muster.tasksets.taskset import TaskSet
from muster.verification.calibration import Calibration, check_calibration, parse_calibration, read_document
from muster.verification.profiles import Profile, known_profile

UNCALIBRATED_PARAMETERS: Final = 20_000_000
"""Of the largest model that a run in bfloat16 trains without its own calibration."""


def needs_calibration(profile: Profile, model: Path) -> bool:
    """Return whether a run may train a model under this profile's limits only once they were measured on it."""
    return profile.dtype == "bfloat16" and parameter_count(model) > UNCALIBRATED_PARAMETERS


def calibration_of(path: Path, terms: Terms) -> Calibration:
    """Return a calibration that fits the terms. Raises MalformedError, and MismatchError for another model's."""
    found = parse_calibration(read_document(path))
    check_calibration(found, terms.model_hash, terms.temperature_micro)
    return found


def check_profile(terms: Terms, model: Path | None, calibration: Path | None, *, uncalibrated: bool) -> None:
    """Check that nodes will know what the terms' work is judged by, and that it was measured. Raises ConfigError."""
    known = known_profile(terms.profile)
    if calibration is not None:
        if terms.profile != calibration_of(calibration, terms).hash:
            raise ConfigError(
                f"the terms do not name the calibration in {calibration}",
                hint=f"write the terms again: muster run template --calibration {calibration}",
            )
    elif known is None:
        raise ConfigError(
            f"the terms name the calibration 0x{terms.profile.hex()}, or a profile that is not known here",
            hint="pass the file that it is the hash of: --calibration FILE",
        )
    elif known.dtype == "bfloat16" and not uncalibrated:
        if model is None:
            raise ConfigError("the terms' profile is in bfloat16", hint="pass --model FOLDER, or --uncalibrated")
        if needs_calibration(known, model):
            raise ConfigError(
                f"the limits of {known.name} were not measured on this model of {parameter_count(model):,} parameters",
                hint=f"muster run calibrate {model}, or --uncalibrated",
            )


def check_model(terms: Terms, model: Path) -> None:
    """Check that a run with these terms can be trained from this model. Raises ConfigError."""
    for what, named, actual in (
        ("model", terms.model_hash, model_hash(model)),
        ("tokenizer", terms.tokenizer_hash, tokenizer_hash(model)),
    ):
        if named != actual:
            raise ConfigError(
                f"the terms name the {what} 0x{named.hex()}, and that in {model} is 0x{actual.hex()}",
                hint="write the terms again: muster run template",
            )
    check_checkpoint(model, terms.temperature)
    check_context(terms, context_of(model))


def check_tasks(terms: Terms, model: Path, tasks: Path) -> None:
    """Check that these are the terms' tasks, that the model can be asked all of them, and that no prompt is cut.

    Raises ConfigError, MalformedError for a task that has no prompt, MismatchError for other tasks.
    """
    task_set = TaskSet.open(tasks, terms.task_root)
    task_set.document.check_tools(terms.tools_root)
    budgets = sorted({budget for one in terms.classes for budget in one.budgets})
    refuse_cut(longest_prompt(task_set, model, budgets), terms)
