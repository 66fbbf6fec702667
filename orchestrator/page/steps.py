"""Show steps: roots on chain, sizes, who serves them, and the batch that each was made of."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from muster.protocol.messages import Message

MAX_STEPS: Final = 200
"""Steps of one answer."""
MAX_BATCH: Final = 2_000
"""Files of a batch that are shown."""


class StepRow(Message):
    """One policy step. A step can be on chain before its report is here, and the other way round."""

    step: int
    manifest_root: str | None
    batch_root: str | None
    transaction: str | None
    reported: float | None
    files: int
    reward: float | None
    held_out: float | None
    bytes: int | None
    """Of the whole step."""
    delta_bytes: int | None
    """Of the difference to the step before."""
    commitments: int
    """Made at this policy step."""
    cost: int
    """Token wei: pay of those that nobody refuted."""


class StepPage(Message):
    """Newest first."""

    run: int
    steps: list[StepRow]
    before: int | None
    """Step to ask for the page after this; None at the end."""
    relays: list[str]
    """Base URLs that serve weights now."""


class BatchFile(Message):
    """A rollout file that a step was made of."""

    file_hash: str
    node: str
    name: str
    index: int
    policy_step: int | None
    size: int | None
    rows: int


class StepView(Message):
    run: int
    step: StepRow
    entropy: str | None
    anchor: str | None
    block: int | None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    stages: dict[str, float] = Field(default_factory=dict)
    """Seconds by stage."""
    batch: list[BatchFile] = Field(default_factory=list)
    batch_files: int = 0
    """How many there are; more than are listed where that is too many."""
    dropped: int = 0
    relays: list[str] = Field(default_factory=list)
    commands: list[str] = Field(default_factory=list)
    """That fetch, check and serve it."""
