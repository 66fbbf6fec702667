"""What an update of the trainer is measured on: a model with random weights and one ragged batch, the same for a peer.

    python benchmarks/ragged.py FOLDER [--groups 64] [--vocabulary 2048] [--hidden 192] [--layers 3]

writes FOLDER/model, a Qwen2 checkpoint with a tokenizer, and FOLDER/batch.npz, all from one seed:

    group_size            int64 []                  rollouts g·size to (g+1)·size − 1 are group g's
    prompt_lengths        int64 [groups]
    prompt_tokens         int32 [sum of them]       one prompt per group, one after the other
    completion_lengths    int64 [rollouts]
    completion_tokens     int32 [sum of them]       one after the other; the last is EOS unless the cap was reached
    behaviour_logprobs    float32 [sum of them]     at temperature 1, nats
    advantages            float32 [rollouts]        of random rewards, 0 or 1, in groups that differ

Lengths are as ragged as those of reasoning: completions log-normal around a median of 200 tokens with σ 0.7, capped at
1,024, so half of them are shorter than a fifth of the longest. The sampler's log-probabilities are the model's own with
a little noise, so that ratios are near 1 and some are clipped. The head has about as large a share of the model's
parameters as in Qwen2.5-0.5B; what the model says means nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from muster.models.init import make_tokenizer, save_model
from muster.protocol.prompts import end_token, pad_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SEED = 20_260
MEDIAN_LENGTH, SIGMA, LONGEST = 200, 0.7, 1024
"""Of completions, in tokens."""
PROMPT_LENGTHS = (32, 96)
GROUP_SIZE = 8
NOISE = 0.1
"""Standard deviation of the sampler's log-probabilities around the model's: one ratio in twenty is outside 1 ± 0.2."""


@dataclass(frozen=True)
class Shape:
    """Shape of a Qwen2 model with heads of 64 dimensions, at least two for each of keys and values.

    Small, so that a peer's update of 512 rollouts takes two minutes on one thread.
    """

    vocabulary: int = 2048
    hidden: int = 192
    layers: int = 3


@dataclass(frozen=True)
class RaggedBatch:
    """The arrays of batch.npz."""

    group_size: np.ndarray
    prompt_lengths: np.ndarray
    prompt_tokens: np.ndarray
    completion_lengths: np.ndarray
    completion_tokens: np.ndarray
    behaviour_logprobs: np.ndarray
    advantages: np.ndarray

    @classmethod
    def load(cls, file: Path) -> RaggedBatch:
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})

    def save(self, file: Path) -> None:
        np.savez(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    def rollouts(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
        """Prompt tokens, completion tokens, behaviour log-probabilities and advantage of each rollout."""
        prompts = _split(self.prompt_tokens, self.prompt_lengths)
        completions = _split(self.completion_tokens, self.completion_lengths)
        behaviour = _split(self.behaviour_logprobs, self.completion_lengths)
        size = int(self.group_size)
        return [
            (prompts[i // size], completions[i], behaviour[i], float(self.advantages[i]))
            for i in range(len(completions))
        ]


def make(folder: Path, shape: Shape = Shape(), groups: int = 64) -> tuple[Path, Path]:
    """Write a model's folder and a batch, and return their paths. Equal arguments give equal ones."""
    model_folder, file = folder / "model", folder / "batch.npz"
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, shape)
    save_model(model, tokenizer, model_folder)
    make_batch(model, tokenizer, groups).save(file)
    return model_folder, file


def make_model(tokenizer: PreTrainedTokenizerBase, shape: Shape) -> PreTrainedModel:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = shape.hidden // 64
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        intermediate_size=2 * shape.hidden,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_token(tokenizer),
        pad_token_id=pad_token(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Qwen2ForCausalLM(config)


def make_batch(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, groups: int) -> RaggedBatch:
    rng = np.random.default_rng(SEED)
    rollouts = groups * GROUP_SIZE
    drawn = MEDIAN_LENGTH * np.exp(SIGMA * rng.standard_normal(rollouts))
    lengths = np.clip(np.rint(drawn), 1, LONGEST).astype(np.int64)
    prompt_lengths = rng.integers(PROMPT_LENGTHS[0], PROMPT_LENGTHS[1], groups, endpoint=True)
    first, vocabulary = len(tokenizer), model.config.vocab_size  # the tokenizer's own tokens appear nowhere else
    prompts = rng.integers(first, vocabulary, prompt_lengths.sum(), dtype=np.int32)
    completions = rng.integers(first, vocabulary, lengths.sum(), dtype=np.int32)
    ends = np.cumsum(lengths) - 1
    completions[ends[lengths < LONGEST]] = end_token(tokenizer)
    own = _own_logprobs(model, _split(prompts, prompt_lengths), _split(completions, lengths))
    return RaggedBatch(
        group_size=np.array(GROUP_SIZE),
        prompt_lengths=prompt_lengths,
        prompt_tokens=prompts,
        completion_lengths=lengths,
        completion_tokens=completions,
        behaviour_logprobs=(own + NOISE * rng.standard_normal(len(own))).astype(np.float32),
        advantages=_advantages(rng, groups),
    )


@torch.inference_mode()
def _own_logprobs(model: PreTrainedModel, prompts: list[np.ndarray], completions: list[np.ndarray]) -> np.ndarray:
    rows = []
    for i, completion in enumerate(completions):
        prompt = prompts[i // GROUP_SIZE]
        ids = torch.from_numpy(np.concatenate([prompt, completion])).long()
        logits = model(input_ids=ids[None, :-1], logits_to_keep=len(completion)).logits[0].float()
        targets = ids[len(prompt) :, None]
        rows.append(torch.log_softmax(logits, -1).gather(-1, targets)[:, 0].numpy())
    return np.concatenate(rows)


def _advantages(rng: np.random.Generator, groups: int) -> np.ndarray:
    """(r − mean) / (std + 1e-6) of each group; between one and all but one of a group are rewarded."""
    solved = rng.integers(1, GROUP_SIZE, groups)
    rewards = rng.permuted(np.arange(GROUP_SIZE) < solved[:, None], axis=1).astype(np.float64)
    rewards -= rewards.mean(1, keepdims=True)
    return (rewards / (rewards.std(1, keepdims=True) + 1e-6)).astype(np.float32).ravel()


def _split(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, default=64)
    for field in fields(Shape):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(**{field.name: getattr(options, field.name) for field in fields(Shape)})
    model, file = make(options.folder, shape, options.groups)
    batch = RaggedBatch.load(file)
    lengths = batch.completion_lengths
    print(
        f"{model}, {file}: {len(lengths)} rollouts, {lengths.sum()} completion tokens, median {np.median(lengths):.0f}"
    )


if __name__ == "__main__":
    main()
