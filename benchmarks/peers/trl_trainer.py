"""Time updates of TRL's GRPOTrainer in a separate environment (`make bench-peers`), never imported by Muster.

    trl_trainer.py MODEL BATCH [KEY=VALUE …]

MODEL and BATCH are made by benchmarks/ragged.py; KEY=VALUE are fields of GRPOConfig in JSON, to try other settings.
Says "ready", and for each line on stdin performs one update on the whole batch and answers "done" and a JSON object:

    {"seconds": …, "cpu_seconds": …, "tokens": completion tokens, "positions": what the model ran on, prompts and
     padding included, "loss": …, "moved": Euclidean length of the change of all weights}

What is timed begins when the trainer begins a step and ends when it ends it: the forward and backward passes of all
micro-batches, the gradient's clipping, the optimiser's step. One method of TRL's is overridden, the one that generates
and scores: `_generate_and_score_completions` gives the prepared rollouts in the form in which TRL's own leaves them
(padded by TRL's `pad`, with the sampler's log-probabilities as `old_per_token_logps`), so generation, rewards and the
second forward pass that TRL makes where samples are not its own cost nothing here. Sampling order, shuffling, splitting
in micro-batches, forward, loss, accumulation, optimiser and scheduler are TRL's, transformers' and accelerate's.

The settings are the fastest of TRL's that were found for one thread of a processor without bfloat16. CPU seconds for
an update on 16 groups, on an AMD EPYC with AVX2 that others used too, so that equal work differed by a fifth:

    one group per micro-batch and generation batch          32, 36, 38
    the same with fused AdamW                               38
    four, two, or one rollouts per micro-batch              36 and 39, 36 to 38, 38
    two groups per micro-batch                              45
    gradient checkpointing, TRL's default                   47
    all generated at once, TRL's default                    72
    bfloat16 autocast, TRL's default                        223
    torch.compile                                           stopped after three minutes at four groups

TRL pads every micro-batch to the longest rollout of its generation batch, so the smallest generation batch there is,
one group, is the fastest. `dapo` then divides by each group's own tokens; `dr_grpo` divides all by a constant, which
makes it the token-level loss with rollouts × 1,024 in the place of the number of tokens. The head is computed at every
position, and entropies with it, whatever is set. GRPOTrainer knows no packing; Liger's kernels and the packed attention
of TRL's experimental AsyncGRPOTrainer need a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import tomllib
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import numpy as np
import torch
import transformers
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

KINDS = tomllib.loads(Path(__file__).with_name("trl.toml").read_text())
SETTINGS: dict[str, Any] = KINDS["common"] | KINDS["trainer"]
"""A pair that is given as null is TRL's default."""


class Prepared:
    """The rollouts of batch.npz, in TRL's form."""

    def __init__(self, file: str) -> None:
        arrays = np.load(file, allow_pickle=False)
        self.size = int(arrays["group_size"])
        self.prompts = _split(arrays["prompt_tokens"].astype(np.int64), arrays["prompt_lengths"])
        self.completions = _split(arrays["completion_tokens"].astype(np.int64), arrays["completion_lengths"])
        self.behaviour = _split(arrays["behaviour_logprobs"], arrays["completion_lengths"])
        self.advantages = torch.from_numpy(arrays["advantages"])
        self.tokens = int(arrays["completion_lengths"].sum())

    def padded(self, groups: list[int], pad_token: int) -> dict[str, torch.Tensor]:
        """Return a generation batch, as `_generate_and_score_completions` does; `groups` has one entry per rollout."""
        rollouts = [group * self.size + i % self.size for i, group in enumerate(groups)]
        prompts = [self.prompts[group] for group in groups]
        completions = [self.completions[i] for i in rollouts]
        mask = pad([torch.ones_like(ids) for ids in completions], padding_value=0, padding_side="right")
        return {
            "prompt_ids": pad(prompts, padding_value=pad_token, padding_side="left"),
            "prompt_mask": pad([torch.ones_like(ids) for ids in prompts], padding_value=0, padding_side="left"),
            "completion_ids": pad(completions, padding_value=pad_token, padding_side="right"),
            "completion_mask": mask,
            "old_per_token_logps": pad([self.behaviour[i] for i in rollouts], padding_value=0.0, padding_side="right"),
            "advantages": self.advantages[rollouts],
            "num_items_in_batch": mask.sum(),
        }


class Trainer(GRPOTrainer):
    def __init__(self, prepared: Prepared, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.prepared, self.positions = prepared, 0

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.prepared.padded([int(row["prompt"]) for row in inputs], self._tokenizer.pad_token_id)
        self.positions += batch["prompt_ids"].numel() + batch["completion_ids"].numel()
        return batch


class TimedSteps(TrainerCallback):
    """Wait for a line on stdin before each update, and print afterwards how long the update took."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.weights: list[torch.Tensor] = []
        self.begun, self.begun_cpu, self.loss = 0.0, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        self.weights = [p.detach().clone() for p in self.trainer.model.parameters()]
        self.trainer.positions, self.loss = 0, float(self.trainer._tr_loss)
        if state.global_step == 0:
            print("ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit
        self.begun, self.begun_cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        seconds, cpu = time.perf_counter() - self.begun, time.process_time() - self.begun_cpu
        with torch.no_grad():
            pairs = zip(self.trainer.model.parameters(), self.weights, strict=True)
            moved = sum(float((p - old).double().square().sum()) for p, old in pairs) ** 0.5
        answer = {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "tokens": self.trainer.prepared.tokens,
            "positions": self.trainer.positions,
            "loss": float(self.trainer._tr_loss) - self.loss,
            "moved": moved,
        }
        print("done", json.dumps(answer), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    model, batch, *pairs = sys.argv[1:]
    chosen = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in pairs)}
    prepared, steps = Prepared(batch), TimedSteps()
    settings = {key: value for key, value in (SETTINGS | chosen).items() if value is not None}
    rows = settings["per_device_train_batch_size"]
    settings["gradient_accumulation_steps"] = len(prepared.completions) // rows
    with tempfile.TemporaryDirectory(prefix="muster-trl-") as scratch:
        steps.trainer = Trainer(
            prepared,
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(output_dir=scratch, num_generations=prepared.size, **settings),
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(prepared.prompts))]}),
            processing_class=AutoTokenizer.from_pretrained(model),
            callbacks=[steps],
        )
        steps.trainer.train()


def _split(values: np.ndarray, lengths: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(part) for part in np.split(values, np.cumsum(lengths)[:-1])]


if __name__ == "__main__":
    main()
