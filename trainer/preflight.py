"""What cannot work is refused before anything is trained: settings against the run's terms, and its tasks."""

from __future__ import annotations

from muster.errors import ConfigError
from muster.settings import TrainerSettings
from muster.tasks import TaskSet
from muster.terms import Terms


def check_terms(terms: Terms, options: TrainerSettings) -> None:
    """Raises ConfigError when no update could ever come of these settings under these terms."""
    if terms.group_size < 2:
        raise ConfigError(
            "the run's groups have one sample: what an answer is worth is told from the others to the same task",
            hint="create a run with a group_size of 2 or more",
        )
    most = options.max_files * terms.groups_per_commitment
    if options.batch_groups > most:
        needed = -(-options.batch_groups // terms.groups_per_commitment)
        raise ConfigError(
            f"a batch of {options.batch_groups} groups can never fill: {options.max_files} files hold {most}",
            hint=f"set trainer.max_files to {needed} or more, or trainer.batch_groups to {most} or fewer",
        )
    rollouts = options.max_files * terms.positions
    if options.optimiser_steps > rollouts:
        raise ConfigError(
            f"a batch of at most {rollouts} rollouts cannot be cut into {options.optimiser_steps} optimiser steps",
            hint="lower trainer.optimiser_steps",
        )


def check_tasks(tasks: TaskSet) -> None:
    """Raises ConfigError when there is nothing to train on."""
    if not tasks.train:
        raise ConfigError("the run's task set has no training tasks", hint="create a run with another task set")
