"""TRL's whole GRPO training, generation by transformers included, on the demo's tasks, model and measure.

    trl_learn.py MODEL SEED [--updates 45] [--held-out 1000] [--groups 64] [--group-size 16] [--length-weight 0]
        [KEY=VALUE …]

Runs in a separate environment (`make bench-peers`). MODEL is the demo's for SEED, made by benchmarks/training_runs.py.
Tasks, prompts, the verifier of answers and the held-out greedy score are Muster's, everything else is TRL's. An update
trains on groups × group-size fresh rollouts, so TRL is always on-policy. KEY=VALUE are fields of GRPOConfig in JSON.
Prints one JSON object:

    {"scores": {step: greedy accuracy on all held-out tasks}, "after": mean of the last three, "rollouts": generated,
     "seconds": {"training": …, "scoring": …}}

Optimiser, learning rate and its ramp are those of the demo (TRL's own default of 1e-6 learns nothing here), the rest
TRL's defaults, but for what costs only time on a CPU: bfloat16 and gradient checkpointing are off. The reward is the
task's, with the length's added where a weight is given, by TRL's own sum.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from muster.constants import MICRO
from muster.environments.rewards import LENGTH_ALPHA, length_reward
from muster.environments.scoring import Scorers
from muster.models.greedy import greedy_score
from muster.protocol.prompts import completion_text, prompt_text
from muster.tasksets.taskset import TaskSet
from testbed.samples.task_sets import generated

BUDGETS, LIMIT = (8, 12, 16), 32
"""The demo's thinking budgets and longest completion, in tokens."""
KINDS = tomllib.loads(Path(__file__).with_name("trl.toml").read_text())
SETTINGS: dict[str, Any] = KINDS["common"] | KINDS["learn"]


def questions(tasks: TaskSet, tokenizer: Any, count: int, seed: int) -> Dataset:
    """Prompts in the order of training; tasks and budgets drawn with replacement, as a swarm's are."""
    rng = Random(f"trl.{seed}")
    drawn = [(rng.randrange(len(tasks.train)), rng.choice(BUDGETS)) for _ in range(count)]
    prompts = [
        prompt_text(tokenizer, tasks.task(task), budget, thinks=tasks.manifest(task).thinks) for task, budget in drawn
    ]
    indices, budgets = zip(*drawn, strict=True)
    return Dataset.from_dict({"prompt": prompts, "task": indices, "budget": budgets})


def rewards(tasks: TaskSet, tokenizer: Any, scorers: Scorers, length_weight: float) -> list[Callable[..., list[float]]]:
    def solved(completion_ids: Sequence[list[int]], task: Sequence[int], **_: Any) -> list[float]:
        texts = [completion_text(tokenizer, tokens) for tokens in completion_ids]
        pairs = [(tasks.manifest(i), tasks.task(i)) for i in task]
        scores = [scorers.score(*pair, text) for pair, text in zip(pairs, texts, strict=True)]
        return [score.reward(manifest) / MICRO for score, (manifest, _) in zip(scores, pairs, strict=True)]

    def brief(completion_ids: Sequence[list[int]], budget: Sequence[int], **_: Any) -> list[float]:
        pairs = zip(budget, completion_ids, strict=True)
        return [length_weight * length_reward(b, len(tokens)) / LENGTH_ALPHA for b, tokens in pairs]

    return [solved, brief] if length_weight else [solved]


class ScoreCallback(TrainerCallback):
    """Scores the model before the first update, after every tenth and after each of the last three."""

    def __init__(self, score: Callable[[Any], float], updates: int) -> None:
        self.score, self.scores, self.seconds = score, {}, 0.0
        self.steps = {0, *range(0, updates + 1, 10), *range(max(1, updates - 2), updates + 1)}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._note(0, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._note(state.global_step, model)

    def _note(self, step: int, model: Any) -> None:
        if step in self.steps:
            begun = time.monotonic()
            model.eval()
            self.scores[step] = self.score(model)
            model.train()
            self.seconds += time.monotonic() - begun
            print(f"step {step:3d}  held out {self.scores[step]:.3f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--updates", type=int, default=45)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=64, help="per update")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--length-weight", type=float, default=0.0)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tasks, scorers = generated(options.seed, held_out=options.held_out), Scorers()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    chosen = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in options.settings)}
    settings = SETTINGS | {"seed": options.seed, "max_steps": options.updates} | chosen
    rollouts = options.groups * options.group_size
    settings["gradient_accumulation_steps"] = rollouts // settings["per_device_train_batch_size"]

    def score(model: Any) -> float:
        return greedy_score(model, tokenizer, tasks.held_out, scorers, budgets=BUDGETS, max_tokens=LIMIT).reward

    scored = ScoreCallback(score, options.updates)
    with tempfile.TemporaryDirectory(prefix="muster-trl-") as scratch:
        trainer = GRPOTrainer(
            model=str(options.model),
            reward_funcs=rewards(tasks, tokenizer, scorers, options.length_weight),
            args=GRPOConfig(output_dir=scratch, num_generations=options.group_size, **settings),
            train_dataset=questions(tasks, tokenizer, options.groups * options.updates, options.seed),
            processing_class=tokenizer,
            callbacks=[scored],
        )
        trainer.remove_callback(PrinterCallback)
        begun = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - begun
    last = [scored.scores[step] for step in range(max(1, options.updates - 2), options.updates + 1)]
    answer = {
        "scores": scored.scores,
        "after": statistics.mean(last),
        "rollouts": rollouts * options.updates,
        "seconds": {"training": seconds - scored.seconds, "scoring": scored.seconds},
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
