"""What a local swarm trains: its model, its tasks, and the owner's choices that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from muster.errors import UsageError
from muster.models.files import dtype_of, folder_of
from muster.verification.profiles import BF16, profile_for


@dataclass(frozen=True)
class Scenario:
    """One model and what it learns."""

    name: str
    families: tuple[str, ...]
    """Of `muster.authoring.tasks.families`, each drawn as often as the others."""
    levels: tuple[int, ...]
    train: int
    held_out: int
    """Numbers of tasks of each family."""
    profile: str
    budgets: tuple[int, ...]
    groups_per_batch: int
    groups_per_commitment: int
    steps: int
    """Policy updates of a demo, by default."""
    title: str = ""
    about: str = ""
    """What the run's page says that it trains, and why."""
    fetched_model: str = ""
    """Name or folder for `muster model fetch`; without one a small model is made and warmed up on the tasks."""
    own_tasks: Path | None = None
    """Task set of the owner's; without one tasks are made of the families."""
    demand_batches: int = 2
    """Batches of work that may wait for the trainer."""
    cheaters: int = 1
    """Workers that cheat, by default."""
    lazy: bool = False
    """Whether one of the validators accepts everything, with invented numbers in place of a look."""
    answers: int = 0
    """Sampled answers to each held-out task, by the first and by the last model; 0: the two are not compared."""
    quiet_seconds: float = 900.0
    """Longest time without progress before a demo ends with an error."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Values of `Terms` that differ from a local run's."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the trainer, by their names."""
    validator: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every validator, by their names."""


DIGITS: Final = Scenario(
    name="digits",
    families=("sort",),
    levels=(3, 4, 5, 6),
    train=4096,
    held_out=640,
    profile="cpu-fp32-projection-v3",
    budgets=(8, 12, 16),
    groups_per_batch=64,
    groups_per_commitment=16,
    steps=40,
    title="Sorting digits",
    about="A small model, made on this machine, learns to sort digits within a thinking budget.\n"
    "Everything is local: the chain, the nodes, and a cheater for validators to find.",
)

FETCHED_TRAINER: Final[Mapping[str, Any]] = {
    "learning_rate": 4e-5,
    "warmup_steps": 2,
    "gradient_clip": 1.0,
    "length_weight": 0.0,
    "eval_every": 2,
}
"""How a pretrained model is trained; one that is made here takes a hundred times larger steps."""

LANGUAGE: Final = Scenario(
    name="language",
    families=("sums", "stories"),
    levels=(9, 12, 15),
    train=288,
    held_out=48,
    profile="bf16-projection-v3",
    budgets=(4,),
    groups_per_batch=16,
    groups_per_commitment=8,
    steps=12,
    title="Sums as questions and as stories",
    about="A pretrained model learns sums in English, as questions and as stories.",
    fetched_model="HuggingFaceTB/SmolLM2-135M-Instruct",
    demand_batches=1,
    answers=16,
    terms={
        "group_size": 8,
        "max_prompt_tokens": 128,
        "max_completion_tokens": 16,
        "async_level": 1,
        # A replay takes a busy machine a minute; a jury that is done earlier does not wait.
        "commit_phase": 300,
        "reveal_phase": 300,
    },
    trainer={
        **FETCHED_TRAINER,
        "learning_rate": 6e-5,
        # A quarter of the default: the trainer had 6.4 GB of memory with it, beside seven copies of the model.
        "micro_batch_tokens": 1024,
        "eval_every": 4,
    },
    # Longer than a challenger takes to verify its evidence again: or all of them open a case about the same work.
    validator={"stagger_seconds": 30.0},
)
"""Small sums, half of them in stories: of SmolLM2-135M's sampled answers one in fifteen is right before training."""

LAZY: Final = replace(
    DIGITS,
    name="lazy",
    steps=8,
    title="Sorting digits, with a lazy validator",
    about="All workers are honest. One validator accepts everything, and invents the numbers of its looks.\n"
    "The trainer checks some rows, finds it, and counts it no more.",
    cheaters=0,
    lazy=True,
    trainer={"eval_tasks": 64, "eval_every": 4},
)
"""The digits, in a few steps: a false row of each of two workers is enough."""

TOOLS: Final = Scenario(
    name="tools",
    families=("calculator",),
    levels=(2,),
    train=4096,
    held_out=512,
    profile=DIGITS.profile,
    budgets=(32,),
    groups_per_batch=32,
    groups_per_commitment=8,
    steps=40,
    title="Multiplying with a calculator",
    about="A small model, made on this machine, learns to call a calculator for products beyond its head.\n"
    "Everything is local, and a cheater makes up what the calculator says.",
    terms={"max_completion_tokens": 64},
    trainer={"length_weight": 0.0},
)

SCENARIOS: Final[Mapping[str, Scenario]] = {one.name: one for one in (DIGITS, LANGUAGE, LAZY, TOOLS)}

OWN_EVAL_TASKS: Final = 64
"""Most held-out tasks of an owner's set that a demo measures."""


def own_scenario(
    base: Scenario,
    tasks: Path | None,
    model: str | None,
    budgets: tuple[int, ...] | None,
    max_prompt_tokens: int | None,
    max_tokens: int | None,
) -> Scenario:
    """Return a scenario with an owner's own tasks, model and lengths, in small batches; None leaves what `base` has.

    A model in bfloat16 is judged by the profile for that, any other by that of float32. A model of the hub is not known
    before it is fetched and counts as bfloat16. A scenario with a pretrained model keeps its tasks and lengths where
    only the model is another. Raises UsageError for a model that is neither a folder nor a name on the hub.
    """
    has_lengths = (budgets, max_prompt_tokens, max_tokens) != (None, None, None)
    if model is not None:
        is_pretrained, folder = bool(base.fetched_model), folder_of(model)
        profile = BF16.name if folder is None else profile_for(dtype_of(folder))
        base = replace(base, fetched_model=model if folder is None else str(folder.absolute()), profile=profile)
        if is_pretrained and tasks is None and not has_lengths:
            return base
    elif tasks is None:
        if has_lengths:
            raise UsageError("these lengths are for your own tasks or model", hint="add --tasks or --model")
        return base
    budgets = budgets or base.budgets
    terms: dict[str, Any] = {
        "group_size": 8,
        "max_prompt_tokens": max_prompt_tokens or 256,
        "max_completion_tokens": max_tokens or 2 * max(budgets),
    }
    made = replace(
        base,
        name="own",
        own_tasks=tasks,
        budgets=budgets,
        groups_per_batch=16,
        groups_per_commitment=4,
        steps=10,
        title="Your own trial",
        about="A local swarm trains on tasks or a model of your own.",
        terms={**base.terms, **terms},
        trainer={**base.trainer, "eval_tasks": OWN_EVAL_TASKS, "eval_every": 2},
    )
    return made if model is None else replace(made, trainer={**made.trainer, **FETCHED_TRAINER})
