"""What a local swarm trains: its model, its tasks, and the owner's choices that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from muster.protocol.terms_file import LOCAL_DEFAULTS


@dataclass(frozen=True)
class Scenario:
    """One model and what it learns."""

    name: str
    family: str
    """Of `muster.tasksets.generated`."""
    levels: tuple[int, ...]
    train: int
    held_out: int
    """Numbers of tasks."""
    profile: str
    budgets: tuple[int, ...]
    groups_per_batch: int
    groups_per_commitment: int
    steps: int
    """Policy updates of a demo, unless it is told otherwise."""
    fetched_model: str = ""
    """Name for `muster model fetch`; without one a small model is made and warmed up on the tasks."""
    quiet_seconds: float = 180.0
    """Longest time without progress before a demo ends with an error."""
    terms: Mapping[str, Any] = field(default_factory=dict)
    """Values of `Terms` that differ from a local run's."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the trainer, by their names."""


DIGITS: Final = Scenario(
    name="digits",
    family="sort",
    levels=(3, 4, 5, 6),
    train=4096,
    held_out=640,
    profile="cpu-fp32-projection-v2",
    budgets=(8, 12, 16),
    groups_per_batch=64,
    groups_per_commitment=LOCAL_DEFAULTS["groups_per_commitment"],
    steps=50,
)

LANGUAGE: Final = Scenario(
    name="language",
    family="sums",
    levels=(9, 12),
    train=96,
    held_out=24,
    profile="bf16-projection-v2",
    budgets=(4,),
    groups_per_batch=16,
    groups_per_commitment=4,
    steps=12,
    fetched_model="smollm2-135m",
    quiet_seconds=900.0,
    terms={"group_size": 8, "max_prompt_tokens": 96, "max_completion_tokens": 16, "async_level": 1},
    trainer={
        "learning_rate": 4e-5,
        "warmup_steps": 2,
        "gradient_clip": 1.0,
        "length_weight": 0.0,
        "eval_every": 2,
    },
)
"""SmolLM2-135M on small sums asked in English: 13 % of the answers in its first batch were right."""

SCENARIOS: Final[Mapping[str, Scenario]] = {one.name: one for one in (DIGITS, LANGUAGE)}
