"""One row of a rollout file as text.

Everything in a row is a stranger's. Text is cut by characters and kept as it is otherwise: readers must show it as
text. A completion's text is what was scored (`muster.protocol.prompts.completion_text`), by the `tokenizers` library
alone, which takes less than a third of the memory of `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import Field

from muster.environments.answers import Thinking, split_thinking
from muster.environments.task import Task
from muster.protocol.messages import Message
from muster.protocol.prompts import UNKNOWN
from muster.protocol.turns.pieces import PieceKind, pieces_of
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import sampled_length

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TEXT: Final = 20_000
"""Characters of a prompt or a completion that are sent; `whole` of the text says how many there are."""
MAX_PIECES: Final = 500
"""Of a completion of several turns."""


class ShownText(Message):
    """Text that a model or a stranger wrote: shown as text and never as anything else."""

    text: str
    whole: int
    """Characters; more than `text` has where it was cut."""


class ConversationPiece(ShownText):
    """A stretch of a completion of several turns."""

    kind: PieceKind


class RowText(Message):
    """A row as text."""

    rows: int
    """Of the file."""
    group: int
    sample: int
    task: int
    budget: int
    tokens: int
    """That the policy sampled."""
    finish: str
    """Why it ended: stop, or length."""
    prompt: ShownText
    thinking: ShownText | None
    """What stands before the end of the thinking, where the task asks for any."""
    answer: ShownText
    """Of several turns the last one's, as `thinking`: what is scored."""
    pieces: list[ConversationPiece] = Field(default_factory=list)
    """Of several turns all that follows the prompt, in order; texts are cut to MAX_TEXT together."""
    given: int = 0
    """Tokens of the completion that tools and the template gave."""
    call_fuel: list[int] = Field(default_factory=list)
    """Fuel of each call that was answered, in order."""
    special: list[str] = Field(default_factory=list)
    """Tokens in these texts that mark turns, thinking or ends, as they are spelled."""
    reference: ShownText | None = None
    """What the answer is scored by, where the task is public and storage has it."""


class RowRead(RowText):
    """A row as text, and what it is worth in millionths, as in the file."""

    reward: int
    length_reward: int
    parts: list[int]
    """None where the row says nothing of a score."""


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


def special_tokens(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """Return how the special ones among tokens are spelled, longest first."""
    marked = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return sorted({marked[token] for token in tokens if token in marked}, key=lambda text: (-len(text), text))


def reference_text(task: Task) -> str:
    """Return what an answer is scored by: the answer itself where there is nothing else, else all of it as JSON."""
    match dict(task.reference):
        case {"answer": str(answer), **rest} if not rest:
            return answer
        case reference:
            return json.dumps(reference, ensure_ascii=False, indent=1, sort_keys=True)


def conversation(tokenizer: Tokenizer, tokens: list[int], ends: np.ndarray) -> list[ConversationPiece]:
    """Return a completion of several turns in pieces, at most MAX_PIECES. ends: as `spans_error` finds right."""
    spans = np.split(np.asarray(tokens, np.int64), ends[:-1])
    shown = pieces_of(spans, partial(decoded, tokenizer), tokenizer.token_to_id)
    pieces, room = [], MAX_TEXT
    for number, (kind, text) in enumerate(shown[:MAX_PIECES], start=1):
        more = sum(len(other) for _, other in shown[MAX_PIECES:]) if number == MAX_PIECES else 0
        pieces.append(ConversationPiece(kind=kind, text=text[:room], whole=len(text) + more))
        room -= len(pieces[-1].text)
    return pieces


def read_row(tokenizer: Tokenizer, rollout: Rollout, rows: int, thinking: Thinking) -> RowRead:
    """Return a row of a file with `rows` rows as text. The token that ended a completion is left out."""
    tokens, prompt = rollout.completion_tokens.tolist(), rollout.prompt_tokens.tolist()
    shown = tokens[:-1] if rollout.finish_reason == "stop" else tokens
    starts = [0, *rollout.spans[:-1].tolist()]
    thought, answer = split_thinking(decoded(tokenizer, shown[starts[-1] :]), thinking)
    sampled, several = sampled_length(rollout.spans), len(starts) > 1
    return RowRead.of(
        rollout,
        rows=rows,
        tokens=sampled,
        given=len(tokens) - sampled,
        call_fuel=rollout.call_fuel.tolist(),
        pieces=conversation(tokenizer, shown, rollout.spans) if several else [],
        finish=rollout.finish_reason,
        reward=rollout.task_reward,
        parts=rollout.parts.tolist(),
        prompt=cut_text(decoded(tokenizer, prompt)),
        thinking=None if thought is None else cut_text(thought),
        answer=cut_text(answer),
        special=special_tokens(tokenizer, [*prompt, *shown]),
    )
