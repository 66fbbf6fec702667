"""Rollout files with texts of one's choice, and the tokenizer by which they are read: any text, byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from muster.constants import MICRO
from muster.models.files import tokenizer_hash
from muster.protocol.terms import Terms
from muster.rollouts.leaves import rollout_tree
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import Rollout, one_span

END: Final = "<|end|>"
LONG: Final = "A" * 4096
"""One token: a line of a megabyte is 256 of them."""

HOSTILE: Final = (
    "<script>document.title = 'taken over'</script>",
    "<img src=x onerror=\"document.title='taken over'\"> & &lt;b&gt; \"quoted\" 'single'",
    "</pre></article><h1>Another page</h1><!-- ]]> {{ 7 * 7 }} {% raw %}",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x08\x08\x08 \x9b31m",
    "right \u202eot tfel\u202c left, \u2066isolated\u2069, hidden \u200b\u200d\ufeff\u00ad between",
    "javascript:alert(1) data:text/html,<script>alert(1)</script> //other.example/x.js",
    "a\x00b\rc\u2028d\u2029e\x85f",
    "Zalgo: T\u0336\u0321o\u0310\u0313n\u0359e \u0489\u0489\u0489",
    LONG * 256,
)
"""Completions of a model that somebody has trained to attack whoever reads them; the last is a line of a megabyte."""


@dataclass(frozen=True)
class WrittenFile:
    data: bytes
    root: bytes


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes, with a token that ends a completion and one that is long."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END, special=True)])
    made.add_tokens([AddedToken(LONG, normalized=False)])
    return made


def write_tokenizer(folder: Path) -> bytes:
    """Write the tokenizer as a checkpoint folder has it; return `Terms.tokenizer_hash`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    return tokenizer_hash(folder)


def written_file(
    texts: Sequence[tuple[str, str]], terms: Terms, *, run: int, step: int = 0, seed: int = 0
) -> WrittenFile:
    """Return a file of rows, each a prompt and a completion: as many as a commitment has. `seed`: of the first row."""
    assert len(texts) == terms.positions, f"{len(texts)} texts for {terms.positions} rows"
    rows = [_row(position, *text, terms, run, step, seed + position) for position, text in enumerate(texts)]
    return WrittenFile(write_rollouts(rows), rollout_tree(rows).root)


def _row(position: int, prompt: str, completion: str, terms: Terms, run: int, step: int, seed: int) -> Rollout:
    tokens = _tokens(completion + END)
    return Rollout(
        run=run,
        step=step,
        position=position,
        group=position // terms.group_size,
        sample=position % terms.group_size,
        task=position // terms.group_size,
        seed=seed,
        budget=16,
        prompt_tokens=_tokens(prompt),
        completion_tokens=tokens,
        spans=one_span(len(tokens)),
        logprobs=np.full(len(tokens), -0.5, np.float32),
        task_reward=MICRO // 2,
        parts=np.array([MICRO // 2], np.int64),
        fuel=0,
        length_reward=-1_000,
        finish_reason="stop",
        proof=bytes(8 * len(tokens)),
    )


def _tokens(text: str) -> np.ndarray:
    return np.asarray(tokenizer().encode(text).ids, np.int32)
