"""One row of a rollout file as text, and what the reading process and the orchestrator say to each other.

Everything in a row is a stranger's. Text is cut by characters and kept as it is otherwise: whoever shows it shows it as
text. A completion's text is what was scored (`muster.protocol.prompts.completion_text`), by the `tokenizers` library
alone, which takes less than a third of the memory of `transformers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

from muster.environments.answers import Thinking, split_thinking
from muster.protocol.messages import Message
from muster.protocol.prompts import UNKNOWN
from muster.rollouts.schema import Rollout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TEXT: Final = 20_000
"""Characters of a prompt or a completion that are sent; `whole` of the text says how many there are."""


class ShownText(Message):
    """Text that a model or a stranger wrote: shown as text and never as anything else."""

    text: str
    whole: int
    """Characters; more than `text` has where it was cut."""


class ReadingSettings(Message):
    """What a reading process begins with."""

    storage_url: str
    tokenizer: str
    """Path of the run's tokenizer.json; empty where there is none: rows cannot be shown then."""
    rows: int
    decoded_bytes: int
    """What it makes room for (`muster.rollouts.parquet.FileLimits`)."""


class ReadRequest(Message):
    """Count the completion tokens of a file, or with a position read one of its rows."""

    id: int
    file_hash: str
    position: int | None = None
    thinking: Thinking = "tags"


class RowText(Message):
    """A row as text."""

    rows: int
    """Of the file."""
    group: int
    sample: int
    task: int
    budget: int
    tokens: int
    finish: str
    """Why it ended: stop, or length."""
    prompt: ShownText
    thinking: ShownText | None
    """What stands before the end of the thinking, where the task asks for any."""
    answer: ShownText


class RowRead(RowText):
    """A row as text, and what it is worth in millionths, as in the file."""

    reward: int
    length_reward: int
    parts: list[int]
    """None where the row says nothing of a score."""


Failure = Literal["", "missing", "malformed", "no_row", "no_tokenizer", "storage", "machine"]
"""Why there is no answer: the file is not in storage, is no rollout file or has no such row; the run's tokenizer is
not here; storage fails; this machine could not read the file."""


class ReadAnswer(Message):
    id: int
    failure: Failure = ""
    why: str = ""
    tokens: int = 0
    """Completion tokens of the file."""
    row: RowRead | None = None


def cut_text(text: str) -> ShownText:
    """Return text as it is sent: its first MAX_TEXT characters, and how many there are."""
    return ShownText(text=text[:MAX_TEXT], whole=len(text))


def decoded(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Return the text of tokens, special ones spelled out; an id that the tokenizer does not know is UNKNOWN."""
    known = tokenizer.get_vocab_size()
    parts: list[list[int]] = [[]]
    for token in tokens:
        if 0 <= token < known:
            parts[-1].append(token)
        else:
            parts.append([])
    return UNKNOWN.join(tokenizer.decode(part, skip_special_tokens=False) for part in parts)


def read_row(tokenizer: Tokenizer, rollout: Rollout, rows: int, thinking: Thinking) -> RowRead:
    """Return a row of a file with `rows` rows as text. The token that ended a completion is left out."""
    tokens = rollout.completion_tokens.tolist()
    completion = decoded(tokenizer, tokens[:-1] if rollout.finish_reason == "stop" else tokens)
    thought, answer = split_thinking(completion, thinking)
    return RowRead.of(
        rollout,
        rows=rows,
        tokens=len(tokens),
        finish=rollout.finish_reason,
        reward=rollout.task_reward,
        parts=rollout.parts.tolist(),
        prompt=cut_text(decoded(tokenizer, rollout.prompt_tokens.tolist())),
        thinking=None if thought is None else cut_text(thought),
        answer=cut_text(answer),
    )
