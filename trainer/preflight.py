"""Refuse before training what cannot work: settings that contradict the run's terms, and a task set without tasks."""

from __future__ import annotations

from muster.errors import ConfigError
from muster.protocol.terms import Terms
from muster.settings.schema import TrainerSettings
from muster.tasks import TaskSet


def check_terms(terms: Terms, options: TrainerSettings) -> None:
    """Raise ConfigError when no update could ever come of these settings under these terms."""
    if terms.group_size < 2:
        raise ConfigError(
            "the run's groups have one sample: an advantage compares an answer with others to the same task",
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
    """Raise ConfigError when there is nothing to train on."""
    if not tasks.train:
        raise ConfigError("the run's task set has no training tasks", hint="create a run with another task set")
