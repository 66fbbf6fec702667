"""Count the tokens of tasks' prompts by a checkpoint's tokenizer, as the workers of a run render them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from muster.clients.evaluation import MAX_BUDGET
from muster.environments.manifest import EnvironmentManifest
from muster.environments.scoring import Scorers
from muster.environments.task import Task
from muster.errors import ConfigError
from muster.models.files import load_tokenizer
from muster.protocol.terms import Terms
from muster.protocol.turns.conversation import Conversations
from muster.tasksets.taskset import TaskSet
from muster.verification.rules import ModelFacts


def conversations_of(folder: Path) -> Conversations:
    """Return what asks the model in a checkpoint folder. Raises ConfigError where it is none."""
    facts = ModelFacts.read(folder)
    return Conversations(load_tokenizer(folder), Scorers(), facts.stop_tokens, facts.vocabulary)


def token_counter(folder: Path, budgets: Sequence[int] = ()) -> Callable[[EnvironmentManifest, Task], int]:
    """Return what counts the tokens of a task's prompt: of the longest one, where a run has several budgets.

    budgets: of the run; without any, the largest that a draw can have. What is returned raises MalformedError for a
    prompt that the model cannot read, and ConfigError where the model cannot have an environment's conversations.
    """
    asking, announced = conversations_of(folder), budgets or (MAX_BUDGET,)
    return lambda manifest, task: max(len(asking.prompt((manifest, task), budget)) for budget in announced)


def longest_prompt(task_set: TaskSet, model: Path, budgets: Sequence[int]) -> int:
    """Return the tokens of the longest prompt of a set's tasks. Raises as what `token_counter` returns."""
    count = token_counter(model, budgets)
    return max(count(manifest, task) for manifest, task in chain(task_set.train, task_set.held_out))


def refuse_cut(longest: int, terms: Terms) -> None:
    """Raise ConfigError where nodes would cut off the beginning of the longest prompt, and its tools with it."""
    if longest > terms.max_prompt_tokens:
        raise ConfigError(
            f"the longest prompt has {longest:,} tokens, and the terms allow {terms.max_prompt_tokens:,}: its "
            "beginning would be cut off, where it says which tools there are",
            hint=f"max_prompt_tokens = {longest} in the terms (run init: --max-prompt-tokens), or shorter tasks",
        )
