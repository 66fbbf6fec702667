"""What cannot work is refused before anything is trained: settings against the run's terms, its tasks and its model."""

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


def check_context(terms: Terms, context: int | None) -> None:
    """Raises ConfigError when the longest rollout does not fit the model's context (tokens; None: nobody knows), or a
    thinking budget the longest completion."""
    longest = terms.max_prompt_tokens + terms.max_completion_tokens
    if context is not None and longest > context:
        raise ConfigError(
            f"rollouts of up to {longest} tokens do not fit the model's context of {context}",
            hint="create a run with a shorter max_prompt_tokens or max_completion_tokens, or another model",
        )
    largest = max(budget for work_class in terms.classes for budget in work_class.budgets)
    if largest > terms.max_completion_tokens:
        raise ConfigError(
            f"a thinking budget of {largest} tokens cannot be met: generation stops at {terms.max_completion_tokens}",
            hint="create a run with a longer max_completion_tokens or smaller budgets",
        )
