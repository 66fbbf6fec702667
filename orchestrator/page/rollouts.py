"""Show what the model writes: rows of accepted files, as text. A file is read in a process with limits."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from muster.protocol.messages import Message

MAX_TEXT: Final = 20_000
"""Characters of a prompt or a completion that are sent; `whole` of the text says how many there are."""


class Text(Message):
    """Text that a model or a stranger wrote: shown as text and never as anything else."""

    text: str
    whole: int
    """Characters; more than `text` has where it was cut."""


class ScorePart(Message):
    name: str
    value: float
    """0 to 1."""
    weight: float


class RolloutView(Message):
    """One row of an accepted file."""

    run: int
    file_hash: str
    node: str
    name: str
    index: int
    policy_step: int
    position: int
    rows: int
    """Of the file."""
    group: int
    sample: int
    task: int
    part: str
    environment: str
    prompt: Text
    thinking: Text | None
    """What stands before the end of the thinking, where the task asks for any."""
    answer: Text
    budget: int
    tokens: int
    finish: str
    """Why it ended: stop, or length."""
    graded: bool
    """False where tests are private, and the row says nothing of a score."""
    reward: float
    length_reward: float
    parts: list[ScorePart] = Field(default_factory=list)


class RolloutFile(Message):
    """An accepted file that rows can be read of."""

    file_hash: str
    node: str
    name: str
    index: int
    policy_step: int
    size: int
    tokens: int | None


class RolloutFiles(Message):
    """Newest first."""

    run: int
    rows: int
    """Of each file."""
    first_step: int | None
    last_step: int | None
    """Policy steps that there are accepted files of."""
    files: list[RolloutFile]


class BeforeAndAfter(Message):
    """An early answer and a late one, to the same task where the files have one in common."""

    run: int
    same_task: bool
    before: RolloutView | None
    after: RolloutView | None
