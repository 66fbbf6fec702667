"""A tokenizer of another kind than the library makes: byte-level BPE that can spell any text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from muster.models.init import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def byte_pair_tokenizer(corpus: Sequence[str]) -> PreTrainedTokenizerBase:
    """Learn up to 512 tokens from a corpus."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    learnt = json.loads(backend.to_str())["model"]
    vocabulary: dict[str, int] = learnt["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return make_tokenizer(tokens, [tuple(pair) for pair in learnt["merges"]])
