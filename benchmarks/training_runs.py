"""The demo's training without the swarm, in one process: what `asynchrony.py` and `learning.py` share.

Tasks, model, draws, sampling noise, rewards, batches and updates are the project's own and those of the demo for a
seed; only vLLM is replaced, by a batched sampler of the same distribution.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from muster.models.greedy import greedy_score
from muster.models.init import WarmUp, init_model, load_model
from muster.proofs.seeded_sampling import choose
from muster.protocol.draws import draw_base, draw_commitment
from muster.protocol.prompts import end_token, pad_token
from muster.protocol.terms import Terms
from muster.protocol.terms_file import ZERO_ADDRESS
from muster.rollouts.spans import one_span
from muster.settings.schema import TrainerSettings
from muster.swarm import plan
from muster.tasksets.taskset import TaskSet
from muster.verification.profiles import CPU_FP32
from testbed.adversaries.lab import demo_rules
from testbed.samples.terms import made_terms
from trainer.batches import BatchTerms, FileRef, WorkFile, batch_metrics, close_batch, samples_of
from trainer.learner import Recipe, update_metrics
from trainer.policy import Policy
from trainer.update import make_optimizer, update
from worker.engine import Generation
from worker.rollouts import Assignment, make_requests, make_rollouts

MISSED = "completions/length_error"
FEW_BATCHES = 5
"""Their mean is what a run's first and last batches were like."""
STUDENT_T = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % points by degrees of freedom; more of them have less than the last."""
SHOWN = (
    *("reward", "frac_reward_zero_std", "completions/mean_length", MISSED, "staleness/mean"),
    *("grad_norm", "entropy", "mismatch_kl", "clip_ratio/low_mean", "clip_ratio/high_mean"),
)


# --- Sampling


class Sampler:
    """What workers do: draw, generate, score. The model's weights may change meanwhile."""

    def __init__(self, folder: Path, model: Any, tasks: TaskSet, seed: int) -> None:
        self.model, self.seed = model, seed
        self.rules = demo_rules(folder, tasks, CPU_FP32)

    def files(self, step: int, indices: range) -> list[WorkFile]:
        """Return the commitments with these indices of the policy of `step`."""
        rules, terms = self.rules, self.rules.terms
        made = [Assignment(step, i, draw_commitment(self._base(step, i), terms, 0)) for i in indices]
        requests = [make_requests(one, rules) for one in made]
        asked = [request for some in requests for request in some]
        prompts = [request.prompt_tokens for request in asked[:: terms.group_size]]
        generations = iter(self._complete(prompts, [request.seed for request in asked]))
        return [
            WorkFile(
                FileRef(step, ZERO_ADDRESS, one.index, f"{step}-{one.index}", ""),
                tuple(make_rollouts(one, rules, some, [next(generations) for _ in some])),
            )
            for one, some in zip(made, requests, strict=True)
        ]

    def _base(self, step: int, index: int) -> bytes:
        """Return the draw's base of a commitment of nodes that all joined for this step."""
        entropy = self.seed.to_bytes(24, "big") + step.to_bytes(8, "big")
        return draw_base(chain_id=0, runs=ZERO_ADDRESS, run=1, entropy=entropy, node=ZERO_ADDRESS, index=index)

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Generation]:
        """Return `group_size` completions of each prompt, in order."""
        tokenizer, terms = self.rules.tokenizer, self.rules.terms
        eos, limit, group = end_token(tokenizer), terms.max_completion_tokens, terms.group_size
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), pad_token(tokenizer))
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.from_numpy(prompt)
            mask[row, width - len(prompt) :] = 1
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, cache).repeat_interleave(group, 0)
        cache.batch_repeat_interleave(group)
        mask = mask.repeat_interleave(group, 0)
        noise = torch.tensor(seeds)
        tokens = torch.full((len(seeds), limit), eos)
        logprobs = torch.zeros(len(seeds), limit)
        rows, ended = torch.arange(len(seeds)), torch.zeros(len(seeds), dtype=torch.bool)
        for place in range(limit):
            choice = choose(logits, noise[rows], torch.full_like(rows, place), terms.temperature)
            tokens[rows, place], logprobs[rows, place] = choice.tokens, choice.logprobs
            ended |= choice.tokens == eos
            if place + 1 == limit or ended.all():
                break
            # Rows that have ended are carried along, and ignored, until they are worth a copy of the cache.
            last = choice.tokens
            if 4 * int(ended.sum()) > len(rows):
                going = (~ended).nonzero()[:, 0]
                cache.batch_select_indices(going)
                rows, mask, last, ended = rows[going], mask[going], last[going], ended[going]
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            logits = self._forward(last[:, None], mask, cache)
        stopped = (tokens == eos).any(1).tolist()
        lengths = ((tokens == eos).int().argmax(1) + 1).tolist()
        ends = [length if stops else limit for length, stops in zip(lengths, stopped, strict=True)]
        return [
            Generation(t[:n].astype(np.int32), p[:n], "stop" if t[n - 1] == eos else "length", b"", one_span(n))
            for t, p, n in zip(tokens.numpy(), logprobs.numpy(), ends, strict=True)
        ]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Return the logits after the last of `ids`; `mask` covers them and the cached tokens."""
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, logits_to_keep=1
        )
        return output.logits[:, -1]


# --- Training


@dataclass(frozen=True)
class Run:
    """One training run. Scores are greedy accuracies on all held-out tasks, by step; seconds are of the whole run."""

    level: int
    seed: int
    scores: dict[int, float]
    metrics: list[dict[str, float]]
    seconds: dict[str, float]

    def gain(self, updates: int) -> float:
        return self.after(updates) - self.scores[0]

    def after(self, updates: int) -> float:
        return statistics.mean(self.scores[step] for step in last_three(updates))

    def missed(self, batches: slice) -> float:
        """Return how far completions were from their budgets in some batches, in budgets."""
        return statistics.mean(metrics[MISSED] for metrics in self.metrics[batches])


def last_three(updates: int) -> range:
    """Return the steps whose mean is a run's result."""
    return range(max(1, updates - 2), updates + 1)


def train(folder: Path, tasks: TaskSet, seed: int, terms: Terms, recipe: Recipe, lengths: Sequence[int]) -> Run:
    """Train as long as the longest of `lengths` says, and score as a run of each length would."""
    model = load_model(folder)
    policy = Policy(model, temperature=recipe.update.temperature)
    optimizer = make_optimizer(policy, recipe.update)
    sampler = Sampler(folder, model, tasks, seed)
    scored = {0, *range(0, max(lengths) + 1, 10), *(step for updates in lengths for step in last_three(updates))}
    closing = BatchTerms(plan.GROUPS_PER_BATCH, plan.GROUPS_PER_BATCH // terms.groups_per_commitment, terms.async_level)
    # With this many files waiting behind the batch, half of it is as old as may be and half one step younger.
    ahead = max(0, closing.max_files * terms.async_level - closing.max_files // 2)
    run = Run(terms.async_level, seed, {}, [], {"sampling": 0.0, "update": 0.0, "scoring": 0.0})
    waiting: list[WorkFile] = []

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        result = work()
        run.seconds[stage] += time.monotonic() - started
        return result

    for step in range(max(lengths) + 1):
        if step in scored:
            score = timed("scoring", lambda: held_out(sampler, tasks))
            run.scores[step] = score
            print(f"level {terms.async_level}  seed {seed}  step {step:3d}  held out {score:.3f}", file=sys.stderr)
        if step == max(lengths):
            break
        while len(waiting) < closing.max_files + ahead:
            count = min(closing.max_files, closing.max_files + ahead - len(waiting))
            made = sum(file.ref.step == step for file in waiting)
            waiting += timed("sampling", lambda s=step, m=made, c=count: sampler.files(s, range(m, m + c)))
        batch = close_batch(waiting, step, closing)
        assert batch is not None, "a batch in which no group teaches anything"
        files = [file for file in waiting if file.ref in batch.files]
        waiting = [file for file in waiting if file.ref not in batch.files]
        samples = samples_of(files, recipe.advantages)
        report = timed("update", lambda s=samples, n=step: update(policy, optimizer, s, recipe.update, step=n + 1))
        metrics = batch_metrics(files, step) | update_metrics(report)
        run.metrics.append({name: round(metrics[name], 5) for name in SHOWN})
    return run


def held_out(sampler: Sampler, tasks: TaskSet) -> float:
    """Return the model's greedy accuracy on all held-out tasks."""
    rules, terms = sampler.rules, sampler.rules.terms
    choices = {"budgets": terms.classes[0].budgets, "max_tokens": terms.max_completion_tokens}
    return greedy_score(sampler.model, rules.tokenizer, tasks.held_out, rules.scorers, **choices).reward


def summarise(runs: Sequence[Run], lengths: Sequence[int]) -> list[dict[str, float]]:
    """Return one row per async level and length of run."""
    rows = []
    for level in sorted({run.level for run in runs}):
        for updates in lengths:
            chosen = [run for run in runs if run.level == level]
            gains, after = [run.gain(updates) for run in chosen], [run.after(updates) for run in chosen]
            last = [run.missed(slice(max(0, updates - FEW_BATCHES), updates)) for run in chosen]
            rows.append(
                {
                    "level": level,
                    "updates": updates,
                    "base": statistics.mean(run.scores[0] for run in chosen),
                    "after": statistics.mean(after),
                    "after_within": half_interval(after),
                    "gain": statistics.mean(gains),
                    "gain_within": half_interval(gains),
                    "smallest_gain": min(gains),
                    "missed_first": statistics.mean(run.missed(slice(FEW_BATCHES)) for run in chosen),
                    "missed_last": statistics.mean(last),
                    "missed_last_within": half_interval(last),
                }
            )
    return rows


def half_interval(values: Sequence[float]) -> float | None:
    """Half the width of the mean's 95 % interval; None for a single value."""
    if len(values) < 2:
        return None
    t = STUDENT_T[min(len(values), len(STUDENT_T)) - 1]
    return t * statistics.stdev(values) / math.sqrt(len(values))


def made_model(folder: Path, tasks: TaskSet, seed: int, target: float = WarmUp.target) -> Path:
    """Return the demo's model for a seed and as many held-out tasks; make it unless it is there."""
    model = folder / f"seed-{seed}-held-out-{len(tasks.held_out)}-target-{target}"
    if not model.exists():
        init_model(model, tasks, seed=seed, target=target, budgets=plan.BUDGETS)
    return model


def recipe_of(tasks: TaskSet, level: int, settings: Sequence[str] = ()) -> tuple[Terms, Recipe]:
    """Return the demo's terms at an async level, and the trainer's recipe with these settings, KEY=VALUE each."""
    terms = made_terms(plan.LOCAL_TERMS, tasks, async_level=level)
    chosen = TrainerSettings.model_validate(dict(pair.split("=", 1) for pair in settings))
    return terms, Recipe.from_settings(chosen, terms)
