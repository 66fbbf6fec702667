"""What stale samples do to learning: the demo's training without the swarm, in one process, at several async levels.

    python benchmarks/async_levels.py [--json] [--levels 0 1 2 4] [--seeds 0 1 2] [--updates 45]
        [--set learning_rate=5e-4 ...] [--target 0.45] [--models FOLDER]

Tasks, model, draws, sampling noise, rewards, batches and updates are the project's own and those of the demo for a
seed; only vLLM is replaced, by a batched sampler of the same distribution. At async level n > 0, half of a batch is n
steps old and half n - 1, as in a swarm that never waits. The base is greedy on all held-out tasks before the first
update, `after` the mean of the last three checkpoints; both as in the demo. Intervals are 95 %, Student's t over seeds.
`missed` is how far completions were from their thinking budgets, in budgets, in the first and in the last five batches.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import machine
from muster.environments.rewards import length_reward
from muster.environments.scoring import Scorers
from muster.models.files import load_tokenizer
from muster.models.greedy import greedy_score
from muster.models.init import WarmUp, init_model, load_model
from muster.proofs.seeded_sampling import choose
from muster.protocol.draws import Draw, draw_base, draw_commitment
from muster.protocol.prompts import completion_text, end_token, pad_token, prompt_tokens
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout, one_span
from muster.settings.schema import TrainerSettings
from muster.swarm import plan
from muster.tasksets.taskset import TaskSet
from testbed.samples.task_sets import generated
from trainer.batches import BatchTerms, FileRef, WorkFile, batch_metrics, close_batch, samples_of
from trainer.learner import Recipe, update_metrics
from trainer.policy import Policy
from trainer.update import UpdateReport, make_optimizer, update

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NOBODY = "0x" + "00" * 20
MISSED = "completions/length_error"
FEW_BATCHES = 5
"""Their mean is what a run's first and last batches were like."""
STUDENT_T = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % points by degrees of freedom; more of them have less than the last."""
SHOWN = (
    "reward",
    "frac_reward_zero_std",
    "completions/mean_length",
    MISSED,
    "staleness/mean",
    "grad_norm",
    "entropy",
    "mismatch_kl",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
)


# --- Sampling


@dataclass(frozen=True)
class Sampler:
    """What workers do: draw, generate, score."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tasks: TaskSet
    terms: Terms
    seed: int
    scorers: Scorers = field(default_factory=Scorers)

    def files(self, step: int, indices: range) -> list[WorkFile]:
        """Return the commitments with these indices of the policy of `step`."""
        draws = [draw_commitment(self._base(step, index), self.terms, 0) for index in indices]
        groups = [group for draw in draws for group in draw.groups]
        prompts = [
            prompt_tokens(
                self.tokenizer,
                self.tasks.task(group.task),
                group.budget,
                thinks=self.tasks.manifest(group.task).thinks,
            )
            for group in groups
        ]
        completions = self._complete(prompts, [seed for draw in draws for seed in draw.seeds])
        size = self.terms.positions
        return [
            self._file(step, index, draw, prompts[i * len(draw.groups) :], completions[i * size : (i + 1) * size])
            for i, (index, draw) in enumerate(zip(indices, draws, strict=True))
        ]

    def _base(self, step: int, index: int) -> bytes:
        """Return the draw's base of a commitment of nodes that all joined for this step."""
        entropy = self.seed.to_bytes(24, "big") + step.to_bytes(8, "big")
        return draw_base(chain_id=0, runs=NOBODY, run=1, entropy=entropy, node=NOBODY, index=index)

    def _file(
        self,
        step: int,
        index: int,
        draw: Draw,
        prompts: Sequence[np.ndarray],
        completions: Sequence[tuple[np.ndarray, np.ndarray]],
    ) -> WorkFile:
        rollouts = []
        for position, (tokens, logprobs) in enumerate(completions):
            group, sample = divmod(position, self.terms.group_size)
            drawn = draw.groups[group]
            manifest = self.tasks.manifest(drawn.task)
            text = completion_text(self.tokenizer, tokens)
            score = self.scorers.score(manifest, self.tasks.task(drawn.task), text)
            rollout = Rollout(
                run=1,
                step=step,
                position=position,
                group=group,
                sample=sample,
                task=drawn.task,
                seed=draw.seeds[position],
                budget=drawn.budget,
                prompt_tokens=prompts[group],
                completion_tokens=tokens,
                spans=one_span(len(tokens)),
                logprobs=logprobs,
                task_reward=score.reward(manifest),
                parts=np.array(score.parts, np.int64),
                fuel=score.fuel,
                length_reward=length_reward(drawn.budget, len(tokens)),
                finish_reason="stop" if tokens[-1] == end_token(self.tokenizer) else "length",
                proof=b"",
            )
            rollouts.append(rollout)
        return WorkFile(FileRef(step, NOBODY, index, f"{step}-{index}", ""), tuple(rollouts))

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[np.ndarray], seeds: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Tokens (int32) and log-probabilities (float32) of `group_size` completions of each prompt, in order."""
        eos, limit, group = end_token(self.tokenizer), self.terms.max_completion_tokens, self.terms.group_size
        width = max(map(len, prompts))
        ids = torch.full((len(prompts), width), pad_token(self.tokenizer))
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
            choice = choose(logits, noise[rows], torch.full_like(rows, place), self.terms.temperature)
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
        lengths = ((tokens == eos).int().argmax(1) + 1).tolist()
        unended = ~(tokens == eos).any(1)
        return [
            (t[: limit if u else n].astype(np.int32), p[: limit if u else n])
            for t, p, n, u in zip(tokens.numpy(), logprobs.numpy(), lengths, unended.tolist(), strict=True)
        ]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Logits after the last of `ids`; `mask` covers them and what is in the cache."""
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


def last_three(updates: int) -> range:
    """Return the steps whose mean is a run's result."""
    return range(max(1, updates - 2), updates + 1)


def train(folder: Path, tasks: TaskSet, seed: int, terms: Terms, recipe: Recipe, lengths: Sequence[int]) -> Run:
    """Train as long as the longest of `lengths` says, and score as a run of each length would."""
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    policy = Policy(model, temperature=recipe.update.temperature)
    optimizer = make_optimizer(policy, recipe.update)
    sampler = Sampler(model, tokenizer, tasks, terms, seed)
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
            score = timed("scoring", lambda: held_out(model, tokenizer, tasks, terms))
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
        report = timed("update", lambda f=files, s=step: train_step(policy, optimizer, f, recipe, s))
        metrics = batch_metrics(files, step) | update_metrics(report)
        run.metrics.append({name: round(metrics[name], 5) for name in SHOWN})
    return run


def train_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    files: Sequence[WorkFile],
    recipe: Recipe,
    step: int,
) -> UpdateReport:
    """Update on a batch as `trainer.learner` does."""
    return update(policy, optimizer, samples_of(files, recipe.advantages), recipe.update, step=step + 1)


def held_out(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tasks: TaskSet, terms: Terms) -> float:
    budgets, limit = terms.classes[0].budgets, terms.max_completion_tokens
    with Scorers() as scorers:
        return greedy_score(model, tokenizer, tasks.held_out, scorers, budgets=budgets, max_tokens=limit).reward


# --- Results


def summarise(runs: Sequence[Run], lengths: Sequence[int]) -> list[dict[str, float]]:
    """One row per async level and length of run."""
    rows = []
    for level in sorted({run.level for run in runs}):
        for updates in lengths:
            chosen = [run for run in runs if run.level == level]
            gains, after = [run.gain(updates) for run in chosen], [run.after(updates) for run in chosen]
            missed = [[metrics[MISSED] for metrics in run.metrics[:updates]] for run in chosen]
            last = [statistics.mean(of_run[-FEW_BATCHES:]) for of_run in missed]
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
                    "missed_first": statistics.mean(value for of_run in missed for value in of_run[:FEW_BATCHES]),
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


def made_model(folder: Path, tasks: TaskSet, seed: int, target: float) -> Path:
    """Return the demo's model for a seed and as many held-out tasks; make it unless it is there."""
    model = folder / f"seed-{seed}-held-out-{len(tasks.held_out)}-target-{target}"
    if not model.exists():
        init_model(model, tasks, seed=seed, target=target, budgets=plan.BUDGETS)
    return model


def settings_of(pairs: Sequence[str]) -> TrainerSettings:
    return TrainerSettings.model_validate(dict(pair.split("=", 1) for pair in pairs))


def terms_of(tasks: TaskSet, level: int) -> Terms:
    """Return the demo's terms; nobody signs here, and the hashes are checked by others."""
    nothing = bytes(32)
    terms = Terms(
        **plan.LOCAL_TERMS,
        trainer=NOBODY,
        storage_key=NOBODY,
        task_count=tasks.size,
        task_root=tasks.root,
        model_hash=nothing,
        tokenizer_hash=nothing,
    )
    return replace(terms, async_level=level)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, nargs="+", default=[45], help="lengths of a run to report")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="trainer settings")
    parser.add_argument("--target", type=float, default=WarmUp.target, help="accuracy at which the warm-up ends")
    parser.add_argument("--models", type=Path, help="keep the models here, and take what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings, runs = settings_of(options.set), []
    with tempfile.TemporaryDirectory(prefix="muster-async-") as scratch:
        for seed in options.seeds:
            tasks = generated(seed)
            folder = made_model(options.models or Path(scratch), tasks, seed, options.target)
            for level in options.levels:
                terms = terms_of(tasks, level)
                runs.append(train(folder, tasks, seed, terms, Recipe.from_settings(settings, terms), options.updates))
    rows = summarise(runs, options.updates)
    if options.json:
        chosen = {"set": options.set, "target": options.target}
        print(
            json.dumps({"machine": machine(), "settings": chosen, "summary": rows, "runs": [asdict(r) for r in runs]})
        )
        return
    print("level  updates   base  after          gain           smallest  missed")
    for row in rows:
        names = ("after_within", "gain_within", "missed_last_within")
        within = [f"±{row[name]:.3f}" if row[name] is not None else " " * 6 for name in names]
        print(
            f"{row['level']:5d}  {row['updates']:7d}  {row['base']:.3f}  {row['after']:.3f} {within[0]}"
            f"  {row['gain']:+.3f} {within[1]}  {row['smallest_gain']:+.3f}"
            f"    {row['missed_first']:.3f} → {row['missed_last']:.3f} {within[2]}"
        )


if __name__ == "__main__":
    main()
