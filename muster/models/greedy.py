"""Score a checkpoint by greedy answers to tasks that it never trained on, batched, with a key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from muster.constants import MICRO
from muster.environments.scoring import Scorers
from muster.protocol.prompts import completion_text, end_token, pad_token
from muster.protocol.turns.conversation import Conversations
from muster.rollouts.spans import sampled_length
from muster.tasksets.taskset import Scored

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 1024
"""Sequences decoded side by side."""
BATCH_TOKENS = 1 << 16
"""Tokens of such a batch, prompts and longest completions: what the key-value cache has to hold."""


@dataclass(frozen=True)
class GreedyScore:
    """Mean task reward (0 to 1), number of tasks and mean sampled length in tokens, EOS included."""

    reward: float
    tasks: int
    mean_length: float
    length_error: float
    """Mean of |length − budget| / budget: how well the announced budget is kept."""


def greedy_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Scored],
    scorers: Scorers,
    *,
    budgets: Sequence[int],
    max_tokens: int,
    between: Callable[[], object] = lambda: None,
) -> GreedyScore:
    """Score `tasks`, the i-th with budget i mod len(budgets). Equal models give equal scores.

    `between` is called after each token of a batch; what it raises ends the score. Raises MalformedError for a task
    that has no prompt, and as `Scorers.score`.
    """
    asked = [(scored, budgets[i % len(budgets)]) for i, scored in enumerate(tasks)]
    started = Conversations(tokenizer, scorers)
    talks = [started.begin(scored, budget, max_tokens) for scored, budget in asked]
    going = talks
    while going:
        prompts = [torch.tensor(talk.prompt + talk.tokens) for talk in going]
        room = max(talk.limit - talk.length for talk in going)
        found = greedy_completions(model, tokenizer, prompts, max_tokens=room, between=between)
        for talk, tokens in zip(going, found, strict=True):
            talk.add(tokens[: talk.limit - talk.length])
        going = [talk for talk in going if talk.go_on()]
    rewards = [
        scorers.score(manifest, task, completion_text(tokenizer, talk.spans[-1])).reward(manifest)
        for ((manifest, task), _), talk in zip(asked, talks, strict=True)
    ]
    lengths = [sampled_length(talk.ends) for talk in talks]
    errors = [abs(length - budget) / budget for (_, budget), length in zip(asked, lengths, strict=True)]
    count = len(asked)
    return GreedyScore(
        reward=sum(rewards) / (MICRO * count),
        tasks=count,
        mean_length=sum(lengths) / count,
        length_error=sum(errors) / count,
    )


@torch.inference_mode()
def greedy_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[torch.Tensor],
    *,
    max_tokens: int,
    between: Callable[[], object] = lambda: None,
) -> list[list[int]]:
    """Decode `prompts` (int64 [length] each) by argmax, in their order; EOS included where it was reached.

    `between` as in `greedy_score`.
    """
    # Neighbours of equal length need no padding, so sort first.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    completions: list[list[int]] = [[] for _ in prompts]
    longest = max(map(len, prompts), default=0) + max_tokens
    size = max(1, min(BATCH_SIZE, BATCH_TOKENS // max(1, longest)))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        found = _decode(model, tokenizer, [prompts[i] for i in chosen], max_tokens, between)
        for i, tokens in zip(chosen, found, strict=True):
            completions[i] = tokens
    return completions


def _decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[torch.Tensor],
    max_tokens: int,
    between: Callable[[], object],
) -> list[list[int]]:
    def go_on(ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """Return which rows end here, as a StoppingCriteria does after each token."""
        between()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    eos, pad = end_token(tokenizer), pad_token(tokenizer)
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad)  # int64 [prompts, width], padded on the left
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    output = model.generate(  # type: ignore[operator]
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=max_tokens,
        do_sample=False,
        num_beams=1,
        eos_token_id=eos,
        pad_token_id=pad,
        stopping_criteria=[go_on],
    )
    rows = output[:, width:].tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]
