"""Batches: which accepted files an update trains on, closed before it starts and anchored with its result.

A file is a commitment's rollouts, a batch is whole files. Staleness has one definition (the training step minus the
policy step) and one place where it is enforced: here, when a batch is closed. Everything in this module is pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from muster.constants import MICRO
from muster.environments.answers import THINK_END
from muster.environments.rewards import length_reward
from muster.errors import MismatchError
from muster.protocol.masters import epoch_of
from muster.protocol.metric_names import CALLS, LENGTH, LENGTH_ERROR, REWARD, UNENDED
from muster.protocol.prompts import completion_text
from muster.protocol.terms import Terms
from muster.rollouts.schema import Rollout
from muster.rollouts.spans import last_turn, sampled_length, spans_error
from muster.tasksets.taskset import TaskSet
from trainer.advantages import AdvantageTerms, group_advantages, has_signal, length_parts, task_rewards
from trainer.packing import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class FileRef:
    """One file of a batch, as its manifest names it."""

    step: int
    """Policy step."""
    node: str
    """Address, 0x-hex."""
    index: int
    """Index of the commitment, counted by node."""
    file_hash: str
    """0x-hex, as `muster.protocol.hashes` writes it."""
    root: str
    """Root of the rollouts' Merkle tree, 0x-hex."""
    grades: str = ""
    """In a run with private tests their text (`muster.tasksets.grades`); empty until the file is graded."""
    verdicts: tuple[str, ...] = ()
    """Content hashes of the verdicts by which it was accepted."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the inverse of `dataclasses.asdict`, through JSON."""
        return cls(**{**value, "verdicts": tuple(value["verdicts"])})


@dataclass(frozen=True)
class WorkFile:
    """A file that was accepted, fetched and checked, with its rollouts in position order."""

    ref: FileRef
    rollouts: tuple[Rollout, ...]

    def groups(self) -> list[list[Rollout]]:
        return [list(rollouts) for _, rollouts in groupby(self.rollouts, key=attrgetter("group"))]


def check_rows(rollouts: Sequence[Rollout], run: int, ref: FileRef, terms: Terms, vocabulary: int) -> None:
    """Raise MismatchError unless the rows are the commitment's, whole and in order, and the model can score them.

    The advantages rely on the order.
    """
    if len(rollouts) != terms.positions:
        raise MismatchError(f"{len(rollouts)} rows; a commitment has {terms.positions}")
    for position, row in enumerate(rollouts):
        group, sample = divmod(position, terms.group_size)
        if (row.run, row.step, row.position, row.group, row.sample) != (run, ref.step, position, group, sample):
            raise MismatchError(f"row {position} says it is row {row.position} of step {row.step}, run {row.run}")
        if error := spans_error(row.spans, len(row.completion_tokens)):
            raise MismatchError(f"row {position} has {error}")
        if len(row.logprobs) != (sampled := sampled_length(row.spans)):
            raise MismatchError(f"row {position} has {sampled} sampled tokens, {len(row.logprobs)} logprobs")
        if not len(row.prompt_tokens):
            raise MismatchError(f"row {position} has no prompt")
        if len(row.prompt_tokens) > terms.max_prompt_tokens or len(row.completion_tokens) > terms.max_completion_tokens:
            lengths = f"{len(row.prompt_tokens)} and {len(row.completion_tokens)} tokens"
            raise MismatchError(f"row {position} has {lengths}, more than the run's terms allow")
        if row.budget < 1:
            raise MismatchError(f"row {position} has a thinking budget of {row.budget}")
        most = max(row.budget, terms.max_completion_tokens)
        if not length_reward(row.budget, row.budget + most) <= row.length_reward <= 0:
            raise MismatchError(f"row {position} has a length reward of {row.length_reward}")
        if not 0 <= row.task_reward <= MICRO:
            raise MismatchError(f"row {position} has a task reward of {row.task_reward}; it is 0 to {MICRO}")
        tokens = np.concatenate([row.prompt_tokens, row.completion_tokens])
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise MismatchError(f"row {position} has tokens beyond the model's {vocabulary}")
        if not np.isfinite(row.logprobs).all():
            raise MismatchError(f"row {position} has log-probabilities that are not finite")


@dataclass(frozen=True)
class BatchTerms:
    groups: int
    """Groups with a signal that a batch waits for."""
    max_files: int
    """Files at which a batch is closed all the same: groups without a signal must not keep the trainer waiting."""
    async_level: int
    """Largest staleness that is trained on."""


@dataclass(frozen=True)
class Batch:
    """A closed batch: exactly these files, trained on at exactly this step."""

    step: int
    """Training step: the policy that is updated."""
    files: tuple[FileRef, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the inverse of `to_json`; for the trainer's own files."""
        value: dict[str, Any] = json.loads(text)
        return cls(value["step"], tuple(map(FileRef.from_json, value["files"])))


def staleness(training_step: int, policy_step: int) -> int:
    """Return training step minus policy step, queues included."""
    return training_step - policy_step


def too_stale(files: Sequence[WorkFile], step: int, async_level: int) -> list[WorkFile]:
    """Return the files that no batch of this step or a later one may use."""
    return [file for file in files if staleness(step, file.ref.step) > async_level]


def close_batch(files: Sequence[WorkFile], step: int, terms: BatchTerms, *, at_last: bool = False) -> Batch | None:
    """Close a batch over the oldest fresh files, or return None when they are not enough yet.

    Enough is `terms.groups` groups with a signal, or `terms.max_files` files with at least one such group. `at_last`
    asks for no more than that one group, when waiting has to end.
    """
    fresh = [file for file in files if 0 <= staleness(step, file.ref.step) <= terms.async_level]
    fresh.sort(key=lambda file: (file.ref.step, file.ref.index, file.ref.node))
    chosen: list[FileRef] = []
    signals = 0
    for file in fresh:
        chosen.append(file.ref)
        signals += sum(has_signal(task_rewards(group)) for group in file.groups())
        if signals >= terms.groups or (signals and len(chosen) >= terms.max_files):
            return Batch(step, tuple(chosen))
    return Batch(step, tuple(chosen)) if at_last and signals else None


def samples_of(files: Sequence[WorkFile], terms: AdvantageTerms) -> list[Sample]:
    """Return the rollouts that an update trains on, with their advantages: those of groups with a signal."""
    samples: list[Sample] = []
    for file in files:
        for group in file.groups():
            rewards = task_rewards(group)
            if not has_signal(rewards):
                continue
            advantages = group_advantages(rewards, length_parts(group, terms.length_unit), terms)
            name = file.ref.file_hash
            samples += [Sample.from_rollout(row, value, name) for row, value in zip(group, advantages, strict=True)]
    return samples


def batch_metrics(files: Sequence[WorkFile], step: int) -> dict[str, float]:
    """Describe a batch by TRL's names, over all its rollouts, those of groups without a signal included."""
    rollouts = [rollout for file in files for rollout in file.rollouts]
    groups = [task_rewards(group) for file in files for group in file.groups()]
    rewards = np.concatenate(groups) / MICRO
    lengths = np.asarray([sampled_length(rollout.spans) for rollout in rollouts])
    budgets = np.asarray([rollout.budget for rollout in rollouts])
    stale = [staleness(step, file.ref.step) for file in files]
    return {
        REWARD: float(rewards.mean()),
        "reward_std": float(rewards.std(ddof=1)),
        "frac_reward_zero_std": float(np.mean([not has_signal(group) for group in groups])),
        LENGTH: float(lengths.mean()),
        "completions/mean_budget": float(budgets.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float(np.mean([rollout.finish_reason == "length" for rollout in rollouts])),
        LENGTH_ERROR: float(-length_parts(rollouts, "budget").mean()),
        CALLS: float(np.mean([len(rollout.call_fuel) for rollout in rollouts])),
        **{f"staleness/{n}": stale.count(n) / len(stale) for n in range(max(stale) + 1)},  # shares of the files
        "staleness/mean": float(np.mean(stale)),
        "staleness/max": float(max(stale)),
        "batch/files": float(len(files)),
        "batch/groups": float(len(groups)),
        "batch/rollouts": float(len(rollouts)),
        "batch/completion_tokens": float(lengths.sum()),
    }


def unended_thinking(
    files: Sequence[WorkFile], task_set: TaskSet, terms: Terms, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Return the share of completions that never end their thinking, under its name; {} where none was to think.

    Only completions without a reward are read: the others ended it.
    """
    found: list[bool] = []
    for file in files:
        drawn = task_set.at(max(1, epoch_of(terms.grade_series, file.ref.step)))
        rows = [row for row in file.rollouts if 0 <= row.task < drawn.size and drawn.manifest(row.task).thinks]
        turns = (None if row.task_reward else last_turn(row.completion_tokens, row.spans) for row in rows)
        texts = (None if turn is None else completion_text(tokenizer, turn) for turn in turns)
        found += [text is not None and THINK_END not in text for text in texts]
    return {UNENDED: float(np.mean(found))} if found else {}


def reward_metrics(files: Sequence[WorkFile], task_set: TaskSet, terms: Terms) -> dict[str, float]:
    """Return what a batch's reward is made of, by TRL's name `rewards/NAME/mean`.

    NAME is a part of the task set, over its tasks' rewards, or a part of a score, over the rows that have it. Where
    there is one of a kind it is the reward itself, and left out.
    """
    by_part: dict[str, list[int]] = defaultdict(list)
    by_score: dict[str, list[int]] = defaultdict(list)
    for file in files:
        drawn = task_set.at(max(1, epoch_of(terms.grade_series, file.ref.step)))
        for row in file.rollouts:
            if not 0 <= row.task < drawn.size:
                continue
            part = drawn.part(row.task)
            by_part[part.name].append(row.task_reward)
            for name, value in zip(part.environment.parts, row.parts.tolist(), strict=False):  # none before grades
                by_score[name].append(value)
    rewards = [*(by_part.items() if len(by_part) > 1 else ()), *(by_score.items() if len(by_score) > 1 else ())]
    return {f"rewards/{name}/mean": float(np.mean(values)) / MICRO for name, values in rewards}
