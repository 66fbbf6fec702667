"""The adversaries: each is a worker with exactly one fault.

A lie takes the lab and a job and returns the rows that this worker would claim, all 128 of them. Where it can, a
worker covers its tracks: who has the real model prefills what it made otherwise, so that rewards, proofs and
log-probabilities are the true ones of the tokens it claims (`AdversaryLab.prefill`). Rows in which a lie changes
nothing are the honest rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from muster.authoring.models.variants import rounded_to, save_changed, with_noise
from muster.environments.answers import THINK_END
from muster.models.files import load_tokenizer
from muster.models.init import WarmUp, load_model, save_model, warm_up
from muster.protocol.prompts import end_token
from muster.protocol.reasons import Reason
from muster.rollouts.parquet import write_rollouts
from muster.rollouts.schema import SCHEMA, Rollout
from muster.tasksets.taskset import TaskSet
from testbed.adversaries import claims
from testbed.adversaries.lab import OTHER_NODE, AdversaryLab, Job

Lie = Callable[[AdversaryLab, Job], list[Rollout]]
Pack = Callable[[Sequence[Rollout]], bytes]


@dataclass(frozen=True)
class Adversary:
    """A kind of worker."""

    name: str
    lie: Lie
    reasons: tuple[Reason, ...]
    """What it may be caught for, in the order of how often it is."""
    statistic: str = ""
    """What is measured of it: a field of `RowStatistics`; "" where it is not a matter of degree."""
    step: int | None = None
    """The step it works on; None for the newest."""
    pack: Pack = write_rollouts
    """How its file comes about."""
    commits_to_honest: bool = False
    """The root it commits to is that of the honest rows, and the file is another."""
    in_part: bool = True
    """Whether it can lie in some of a commitment's rows, and be honest in the others."""
    subtle: bool = False
    """Most of its rows are what honest work would have been: it takes more than one commitment to meet a false one."""

    @property
    def whole_file(self) -> bool:
        """The file as a whole is false, so the finding does not depend on the sampled rows."""
        return self.commits_to_honest or not self.in_part


SAMPLING: tuple[Reason, ...] = ("sampling_mismatch",)
OTHER_WEIGHTS: tuple[Reason, ...] = ("activation_mismatch", "sampling_mismatch", "wrong_logprobs")
PROOFS: tuple[Reason, ...] = ("activation_mismatch",)


# --- Other weights


def running(name: str, make: Callable[[AdversaryLab, Path], object]) -> Lie:
    """Run a checkpoint of one's own, and be honest about everything else."""

    def lie(shop: AdversaryLab, job: Job) -> list[Rollout]:
        return shop.generate(job, weights=shop.made(name, lambda folder: make(shop, folder)))

    return lie


def running_changed(name: str, change: Callable) -> Lie:
    return running(name, lambda shop, folder: save_changed(shop.checkpoints[shop.step], folder, change))


def running_older(steps: int) -> Lie:
    def lie(shop: AdversaryLab, job: Job) -> list[Rollout]:
        return shop.generate(job, weights=shop.checkpoints[job.commitment.step - steps])

    return lie


def covered(lie: Lie) -> Lie:
    """Do the same, prefilled through the real model: of other weights only the choice of tokens remains."""
    return lambda shop, job: claimed(shop, job, lie(shop, job))


def claimed(shop: AdversaryLab, job: Job, rows: Sequence[Rollout]) -> list[Rollout]:
    """Claim the rows' tokens with everything else true; the honest row where the tokens are the honest ones."""
    honest = shop.honest(job)
    same = [np.array_equal(a.completion_tokens, b.completion_tokens) for a, b in zip(rows, honest, strict=True)]
    changed = iter(shop.prefill(job, [row for row, equal in zip(rows, same, strict=True) if not equal]))
    return [true if equal else next(changed) for true, equal in zip(honest, same, strict=True)]


def smaller(shop: AdversaryLab, folder: Path, steps: int = 20) -> None:
    """Train the model without its last layer on the tasks until it has recovered from that.

    Saved in the shape of the whole model, with a last layer that adds nothing, so that the same engine runs it.
    """
    source, tasks = shop.checkpoints[shop.step], shop.rules.task_set
    model, tokenizer = load_model(source), load_tokenizer(source)
    layers: Any = model.base_model.layers
    whole, last = layers[-1], len(layers) - 1
    del layers[-1]
    warm = WarmUp(target=0.0, check_tasks=8, batch=64, learning_rate=1e-3, min_steps=steps)
    warm_up(model, tokenizer, tasks, warm, seed=4)
    layers.append(whole)
    with torch.no_grad():
        layers[last].self_attn.o_proj.weight.zero_()
        layers[last].mlp.down_proj.weight.zero_()
    save_model(model, tokenizer, folder)


# --- Other sampling


def sampling_at(factor: float) -> Lie:
    """Another temperature, a multiple of the run's."""

    def lie(shop: AdversaryLab, job: Job) -> list[Rollout]:
        return claimed(shop, job, shop.generate(job, temperature=factor * shop.rules.terms.temperature))

    return lie


def another_seed(shop: AdversaryLab, job: Job) -> list[Rollout]:
    return claimed(shop, job, shop.generate(job, requests=reseeded(job, 1)))


def best_of_four(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Claim the best of four samples to be the first."""
    tries = [shop.honest(job), *(shop.generate(job, requests=reseeded(job, n)) for n in (1, 2, 3))]
    best = [max(rows, key=lambda row: (row.task_reward, row.length_reward)) for rows in zip(*tries, strict=True)]
    return claimed(shop, job, best)


def reseeded(job: Job, n: int) -> list:
    return [replace(request, seed=request.seed ^ n << 33) for request in job.requests]


def system_prompt(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Generate with an additional system prompt, and claim rows without it."""
    tokenizer = shop.rules.tokenizer
    before = tokenizer("<|system|>Be right.", add_special_tokens=False)["input_ids"]
    asked = [
        replace(request, prompt_tokens=np.append(np.array(before, np.int32), request.prompt_tokens))
        for request in job.requests
    ]
    return claimed(shop, job, shop.generate(job, requests=asked))


def smaller_budget(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Asked to think less than was drawn, which is cheaper, and claimed as asked right."""
    asked = []
    for request, row in zip(job.requests, shop.honest(job), strict=True):
        prompt = shop.rules.prompt(row.task, row.budget // 2)
        asked.append(replace(request, prompt_tokens=prompt))
    return claimed(shop, job, shop.generate(job, requests=asked))


def shown_prompt(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Another prompt, and no secret made of it."""
    suffix = np.array(shop.rules.tokenizer(" ", add_special_tokens=False)["input_ids"], np.int32)
    asked = [replace(request, prompt_tokens=np.append(request.prompt_tokens, suffix)) for request in job.requests]
    rows = shop.generate(job, requests=asked)
    return [replace(row, prompt_tokens=request.prompt_tokens) for row, request in zip(rows, asked, strict=True)]


# --- Other completions


def tampering(change: Callable[[AdversaryLab, list[Rollout]], list[Rollout]]) -> Lie:
    """Honest completions, changed, with everything else made to fit them."""
    return lambda shop, job: claimed(shop, job, change(shop, shop.honest(job)))


def solved(shop: AdversaryLab, rows: Sequence[Rollout]) -> list[Rollout]:
    """Let a program that knows the answers write them, after the model's own thinking."""
    tokenizer, limit = shop.rules.tokenizer, shop.rules.terms.max_completion_tokens
    close = tokenizer(THINK_END, add_special_tokens=False)["input_ids"][0]
    found = []
    for row in rows:
        answer = tokenizer(
            f"{shop.rules.task(row.task).reference['answer']}{tokenizer.eos_token}", add_special_tokens=False
        )
        ends = np.flatnonzero(row.completion_tokens == close)
        thinking = row.completion_tokens[: ends[0] + 1] if len(ends) else np.array([close], np.int32)
        tokens = np.append(thinking, answer["input_ids"]).astype(np.int32)
        found.append(row if len(tokens) > limit else replace(row, completion_tokens=tokens, finish_reason="stop"))
    return found


def edited(shop: AdversaryLab, rows: Sequence[Rollout]) -> list[Rollout]:
    return claims.edit_one_token(rows, vocabulary=shop.vocabulary, end=_end(shop))


def padded(shop: AdversaryLab, rows: Sequence[Rollout]) -> list[Rollout]:
    return claims.pad_after_end(rows, filler=_dot(shop), limit=shop.rules.terms.max_completion_tokens)


def from_another_node(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """Claim what another node made for the same tasks: as much as a thief can hope for."""
    seeds = shop.job(job.commitment.index, node=OTHER_NODE).draw.seeds
    asked = [replace(request, seed=seed) for request, seed in zip(job.requests, seeds, strict=True)]
    return claimed(shop, job, shop.generate(job, requests=asked))


def own_replayed(shop: AdversaryLab, job: Job) -> list[Rollout]:
    """One completion for each group, claimed for all its samples."""
    honest, size = shop.honest(job), shop.rules.terms.group_size
    rows = [
        replace(
            row,
            completion_tokens=honest[i // size * size].completion_tokens,
            finish_reason=honest[i // size * size].finish_reason,
        )
        for i, row in enumerate(honest)
    ]
    return claimed(shop, job, rows)


# --- Other claims


def claiming(claim: Callable[[Sequence[Rollout]], list[Rollout]]) -> Lie:
    """Honest work, and one false thing said of it."""
    return lambda shop, job: claim(shop.honest(job))


# --- Other draws


def another_draw(change: Callable[[AdversaryLab, Rollout], dict[str, int]]) -> Lie:
    """Work that is honest in itself, for a task, budget or seed that was not drawn."""

    def lie(shop: AdversaryLab, job: Job) -> list[Rollout]:
        rules, rows = shop.rules, []
        for row in shop.honest(job):
            changed = replace(row, **change(shop, row))
            rows.append(replace(changed, prompt_tokens=rules.prompt(changed.task, changed.budget)))
        asked = [
            replace(request, prompt_tokens=row.prompt_tokens, seed=row.seed)
            for request, row in zip(job.requests, rows, strict=True)
        ]
        made = shop.generate(job, requests=asked)
        kept = ("completion_tokens", "logprobs", "proof", "finish_reason")
        rows = [
            replace(row, **{name: getattr(new, name) for name in kept}) for row, new in zip(rows, made, strict=True)
        ]
        return shop.reward(rows)

    return lie


def an_easier_task(shop: AdversaryLab, row: Rollout) -> dict[str, int]:
    """Return the shortest task of the task set that is not the drawn one."""
    shortest = _shortest(shop.rules.task_set)
    return {"task": shortest[0] if shortest[0] != row.task else shortest[1]}


@cache
def _shortest(task_set: TaskSet) -> list[int]:
    """Return the slots of the two shortest tasks, of a set with a slot per task."""
    texts = [task.text for _, task in task_set.train]
    return sorted(range(len(texts)), key=lambda slot: len(texts[slot]))[:2]


def another_budget(shop: AdversaryLab, row: Rollout) -> dict[str, int]:
    budgets = shop.rules.terms.classes[0].budgets
    return {"budget": min(budget for budget in budgets if budget != row.budget)}


def chosen_seed(shop: AdversaryLab, row: Rollout) -> dict[str, int]:
    return {"seed": row.seed ^ 1}


# --- Other files


def bomb(rows: Sequence[Rollout]) -> bytes:
    """Return a file of some kilobytes whose first row has 64 megabytes of prompt."""
    size, kind = 1 << 24, SCHEMA.field("prompt_tokens").type
    table = pq.read_table(pa.BufferReader(write_rollouts(rows)), schema=SCHEMA)
    prompts = pa.ListArray.from_arrays(
        pa.array([0, *[size] * len(rows)], pa.int32()), pa.array(np.zeros(size, np.int32)), type=kind
    )
    table = table.set_column(SCHEMA.names.index("prompt_tokens"), SCHEMA.field("prompt_tokens"), prompts)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", store_schema=False, row_group_size=len(rows))
    return sink.getvalue().to_pybytes()


def _end(shop: AdversaryLab) -> int:
    return end_token(shop.rules.tokenizer)


def _dot(shop: AdversaryLab) -> int:
    return shop.rules.tokenizer(".", add_special_tokens=False)["input_ids"][0]


int8, int4 = running_changed("int8", rounded_to(8)), running_changed("int4", rounded_to(4))

weights = partial(Adversary, reasons=OTHER_WEIGHTS, statistic="activation")
sampled = partial(Adversary, reasons=SAMPLING, statistic="gap_worst")
proven = partial(Adversary, reasons=PROOFS, statistic="activation")
claimed_otherwise = partial(Adversary, reasons=("wrong_logprobs",), statistic="logprob_worst")

ADVERSARIES: tuple[Adversary, ...] = (
    weights("weights with 2% of noise", running_changed("noise", with_noise(0.02))),
    weights("weights one step old", running_older(1)),
    weights("weights two steps old", running_older(2)),
    weights("weights one step old, first step of the ramp", running_older(1), step=1),
    weights("int8 weights", int8),
    weights("int4 weights", int4),
    sampled("int8 weights, prefilled through the real model", covered(int8), subtle=True),
    sampled("int4 weights, prefilled through the real model", covered(int4)),
    sampled("one step old, prefilled through the real model", covered(running_older(1)), subtle=True),
    sampled("a smaller model, prefilled through the real one", covered(running("small", smaller))),
    sampled("greedy", sampling_at(1e-4)),
    sampled("temperature 0.8", sampling_at(0.8)),
    sampled("temperature 1.2", sampling_at(1.2)),
    sampled("another seed", another_seed),
    sampled("best of four", best_of_four),
    sampled("a system prompt of its own", system_prompt),
    sampled("a prompt with half the budget", smaller_budget),
    Adversary("another prompt, shown", shown_prompt, ("wrong_prompt",)),
    sampled("one edited token", tampering(edited)),
    sampled("answers written by a program", tampering(solved)),
    Adversary("truncated answers", tampering(lambda shop, rows: claims.cut(rows)), ("wrong_termination",)),
    sampled("truncated answers with an end token", tampering(lambda shop, rows: claims.cut(rows, end=_end(shop)))),
    Adversary("padded answers", tampering(padded), ("wrong_termination",)),
    sampled(
        "thinking padded to the budget",
        tampering(lambda shop, rows: claims.pad_to_budget(rows, filler=_dot(shop))),
    ),
    sampled("another node's completions", from_another_node),
    sampled("own completions replayed", own_replayed),
    Adversary("inflated task rewards", claiming(claims.inflate_task_reward), ("wrong_reward",)),
    Adversary("inflated length rewards", claiming(claims.inflate_length_reward), ("wrong_reward",)),
    Adversary("other parts", claiming(claims.other_parts), ("wrong_reward",)),
    Adversary("another fuel", claiming(claims.another_fuel), ("wrong_reward",)),
    Adversary("spans that leave tokens out", claiming(claims.spans_that_leave_tokens_out), ("wrong_span",)),
    claimed_otherwise("log-probabilities scaled by 0.9", claiming(claims.scale_logprobs)),
    claimed_otherwise("one log-probability off by 0.01", claiming(claims.shift_one_logprob)),
    proven("proofs of zeros", claiming(claims.zero_proofs)),
    proven("constant proofs", claiming(claims.constant_proofs)),
    proven("random proofs", claiming(claims.random_proofs)),
    proven("shuffled proofs", claiming(claims.shuffled_proofs)),
    proven("proofs one token short", claiming(claims.short_proofs), statistic=""),
    Adversary("an easier task", another_draw(an_easier_task), ("wrong_draw",)),
    Adversary("another budget", another_draw(another_budget), ("wrong_draw",)),
    Adversary("a seed of its own", another_draw(chosen_seed), ("wrong_draw",)),
    Adversary("a Parquet bomb", lambda shop, job: shop.honest(job), ("malformed",), pack=bomb, in_part=False),
    Adversary(
        "a file that changes after upload", claiming(claims.shift_one_logprob), ("wrong_root",), commits_to_honest=True
    ),
)
