"""Rollouts that say what a test wants: a tokenizer that spells any text, and rows of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from muster.environments.answers import THINK_END
from muster.models.init import make_tokenizer
from muster.rollouts.schema import Rollout
from testbed.samples.rollouts import rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG: Final = "A" * 4096
"""One token: a line of a megabyte is 256 of them."""

HOSTILE: Final = (
    "<script>document.title = 'taken over'</script>",
    "<img src=x onerror=\"document.title='taken over'\"> & &lt;b&gt; \\u003c \"quoted\" 'single'",
    "</pre></article><h1>Another page</h1><!-- ]]> {{ 7 * 7 }} {% raw %}",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x08\x08\x08 \x9b31m \x1b[2J\x7f",
    "right \u202eot tfel\u202c left, \u2066isolated\u2069, hidden \u200b\u200d\ufeff\u00ad between",
    "javascript:alert(1) data:text/html,<script>alert(1)</script> //other.example/x.js",
    "a\x00b\rc\u2028d\u2029e\x85f 😀",
    "Zalgo: T\u0336\u0321o\u0310\u0313n\u0359e \u0489\u0489\u0489",
)
"""Completions of a model that was trained to attack its readers."""

WRITTEN: Final = (*HOSTILE, LONG * 256)
"""What a run's files say that is hostile throughout."""


def byte_pair_tokenizer(corpus: Sequence[str]) -> PreTrainedTokenizerBase:
    """Learn up to 512 byte-level BPE tokens from a corpus: another kind than the library makes, for any text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(corpus, trainer)
    learnt = json.loads(backend.to_str())["model"]
    vocabulary: dict[str, int] = learnt["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return make_tokenizer(tokens, [tuple(pair) for pair in learnt["merges"]])


@cache
def text_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer of any text, in which LONG is one token."""
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


def written_row(position: int, prompt: str, completion: str, *, stop: bool = True, **columns: Any) -> Rollout:
    """Return a row of these texts, with some columns changed."""
    end = [text_tokenizer().eos_token_id] if stop else []
    tokens = np.asarray(columns.pop("completion_tokens", [*ids_of(completion), *end]))
    columns = {
        "prompt_tokens": np.asarray(ids_of(prompt), np.int32),
        "finish_reason": "stop" if stop else "length",
        "proof": bytes(8 * len(tokens)),
        **columns,
    }
    return rollout(position, tokens, **columns)


def text_row(position: int, thinking: str = "hm", answer: str = "42", **columns: Any) -> Rollout:
    """Return a row that thinks and answers, and that is a little too short."""
    question = "<|user|>What is 6 times 7?<|assistant|><think>"
    columns = {"group_size": 2, "length_reward": -12_500, **columns}
    return written_row(position, question, f"{thinking}{THINK_END}{answer}", **columns)
