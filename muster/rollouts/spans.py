"""Spans: which tokens of a completion the policy sampled, and which were given to it.

A completion is one stream of ids. Its *spans* alternate, sampled first and sampled last: what the policy said, what
tools answered, what the policy said then. The column `spans` holds the index after each span's last token.
Everything after the prompt counts for the leaf, the row hash and the limit of a completion's tokens. Log-probabilities,
activation proofs, the length reward and the loss know sampled tokens only. A completion of a single turn is one span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.environments.tools.base import MAX_TURNS


@dataclass(frozen=True)
class Span:
    """A stretch of a completion, from the index `start` to before `end`."""

    start: int
    end: int
    sampled: bool


def one_span(length: int) -> np.ndarray:
    """Return the spans of a completion that the policy sampled from beginning to end: int32 [1]."""
    return np.array([length], np.int32)


def spans_error(ends: np.ndarray, length: int) -> str:
    """Return in words what is wrong with the spans of a completion of `length` tokens; empty if nothing is.

    ends: int32 [spans], a stranger's. Total, and linear in the number of spans that are allowed.
    """
    if not 1 <= len(ends) <= 2 * MAX_TURNS - 1:
        return f"{len(ends)} spans; a completion has 1 to {2 * MAX_TURNS - 1}"
    if len(ends) % 2 == 0:
        return f"{len(ends)} spans, so the last one was given; the policy has the last word"
    if ends[0] < 1 or np.any(ends[1:] <= ends[:-1]):
        return "the spans' ends do not rise, or a span is empty"
    if ends[-1] != length:
        return f"the spans end at {int(ends[-1])}, the completion at {length}"
    return ""


def spans_of(ends: np.ndarray) -> list[Span]:
    """Return the spans by their ends, which `spans_error` has found to be right."""
    starts = [0, *ends[:-1].tolist()]
    return [
        Span(start, end, index % 2 == 0) for index, (start, end) in enumerate(zip(starts, ends.tolist(), strict=True))
    ]


def sampled_mask(ends: np.ndarray) -> np.ndarray:
    """Return for each token of a completion whether the policy sampled it: bool [completion length]."""
    lengths = np.diff(ends, prepend=0)
    return np.repeat(np.arange(len(ends)) % 2 == 0, lengths)


def sampled_length(ends: np.ndarray) -> int:
    """Return how many tokens of a completion the policy sampled."""
    lengths = np.diff(ends, prepend=0)
    return int(lengths[::2].sum())


def last_turn(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the tokens of the last sampled span: what is scored."""
    return tokens[spans_of(ends)[-1].start :]


def termination_error(
    tokens: np.ndarray,
    ends: np.ndarray,
    reason: str,
    stop_tokens: frozenset[int],
    limit: int,
    turn_limit: int | None = None,
) -> tuple[str, int | None, int | None] | None:
    """Return what is wrong with where the sampled spans end: in words, what was measured, and what it must be.

    Each sampled span ends at its first stop token, or without one where its turn had no more room: after `turn_limit`
    tokens, or the last one at the `limit` of the whole completion. Given tokens may be anything. `reason` is `stop`
    where the last span ends by a stop token, else `length`.
    """
    count = len(tokens)
    for span in spans_of(ends):
        if not span.sampled:
            continue
        stops = np.flatnonzero(np.isin(tokens[span.start : span.end], list(stop_tokens)))
        first = span.start + int(stops[0]) if len(stops) else None
        if first is not None and first < span.end - 1:
            return f"goes on after an end token at {first}", count, first + 1
        is_cut = turn_limit is not None and span.end - span.start == turn_limit
        if turn_limit is not None and span.end - span.start > turn_limit:
            return f"a turn of {span.end - span.start} tokens", span.end - span.start, turn_limit
        if span.end < count:
            if first is None and not is_cut:
                return f"a turn that ends at {span.end} without an end token", count, span.end
        elif reason == "stop" and first is None:
            return f"says `stop` after {count} tokens and no end token", None, None
        elif reason == "length" and (first is not None or (count != limit and not is_cut)):
            return f"says `length` at {count} tokens", count, limit
    return None
