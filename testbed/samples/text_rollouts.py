"""Rollouts that say what a test wants: a tokenizer that spells any text, and rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.environments.answers import THINK_END
from muster.rollouts.schema import Rollout, one_span
from testbed.samples.byte_pairs import byte_pair_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG: str = "y" * 1000
"""A token of its own, so that a line of a megabyte has a thousand tokens."""

HOSTILE: Sequence[str] = (
    "<script>alert(document.cookie)</script>",
    "\u202eevil\u2066 \u200bturned\u2069",
    "\x1b[2J\x1b]0;title\x07\x00\x08\x7f",
    "{{ 7 * 7 }} <!-- --> ]]> &lt; \\u003c 😀 \ufeff",
)
"""What no page and no terminal should take for more than text."""


@cache
def text_tokenizer() -> PreTrainedTokenizerBase:
    """Return a byte-level BPE tokenizer of any text, in which LONG is one token."""
    from transformers import AddedToken

    tokenizer = byte_pair_tokenizer(["think about it", "the answer is 42", "<script>"])
    tokenizer.add_tokens(AddedToken(LONG, normalized=False))
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Write the tokenizer's files into a folder; the path of its tokenizer.json."""
    text_tokenizer().save_pretrained(folder)
    return folder / "tokenizer.json"


def ids_of(text: str) -> list[int]:
    return text_tokenizer()(text, add_special_tokens=False)["input_ids"]


def text_row(position: int, thinking: str = "hm", answer: str = "42", *, stop: bool = True, **changes: Any) -> Rollout:
    """Return a row that thinks and answers; `changes` are columns."""
    eos = text_tokenizer().eos_token_id
    tokens = np.asarray([*ids_of(f"{thinking}{THINK_END}{answer}"), *([eos] if stop else [])], np.int32)
    tokens = np.asarray(changes.pop("completion_tokens", tokens), np.int32)
    columns: dict[str, Any] = {
        "run": 1,
        "step": 3,
        "position": position,
        "group": position // 2,
        "sample": position % 2,
        "task": 7,
        "seed": position,
        "budget": 16,
        "prompt_tokens": np.asarray(ids_of("<|user|>What is 6 times 7?<|assistant|><think>"), np.int32),
        "completion_tokens": tokens,
        "spans": one_span(len(tokens)),
        "logprobs": np.zeros(len(tokens), np.float32),
        "task_reward": 1_000_000,
        "parts": np.array([1_000_000], np.int64),
        "length_reward": -12_500,
        "fuel": 0,
        "finish_reason": "stop" if stop else "length",
        "proof": bytes(8 * len(tokens)),
    }
    return Rollout(**(columns | changes))
