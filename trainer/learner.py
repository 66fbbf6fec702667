"""The model in training: everything that touches torch, so that the service can keep it in one thread.

A `Learner` is at a step; `learn` takes it to the next one and has it on disk before it returns. Training the same
batch from the same step twice gives the same bytes on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from muster import telemetry
from muster.errors import ConfigError
from muster.evaluation import greedy_score
from muster.model_files import load_tokenizer, model_hash, tokenizer_hash
from muster.models import load_model
from muster.settings import TrainerSettings
from muster.tasks import Task
from muster.terms import Terms
from trainer.advantages import AdvantageTerms
from trainer.batches import Batch, WorkFile, batch_metrics, samples_of
from trainer.checkpoint import Checkpoints, Note
from trainer.fitness import check_context
from trainer.loss import LossTerms
from trainer.policy import Policy, check_model
from trainer.update import UpdateReport, UpdateTerms, make_optimizer, update

NO_BATCH = "0x" + "00" * 32

log = telemetry.logger("trainer")


@dataclass(frozen=True)
class Recipe:
    """How to train, from settings and terms."""

    update: UpdateTerms
    advantages: AdvantageTerms
    async_level: int

    @classmethod
    def of(cls, settings: TrainerSettings, terms: Terms) -> Recipe:
        loss = LossTerms(
            epsilon=settings.epsilon,
            epsilon_high=settings.epsilon_high or None,
            delta=settings.delta or None,
            ratio=settings.ratio,
            normaliser=settings.normaliser,
            entropy_coefficient=settings.entropy_coefficient,
            kl_coefficient=settings.kl_coefficient,
            mismatch_bound=settings.mismatch_bound,
        )
        step = UpdateTerms(
            learning_rate=settings.learning_rate,
            ramp_steps=settings.ramp_steps,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
            optimiser_steps=settings.optimiser_steps,
            recompute_old=settings.old_logprobs == "recomputed",
            micro_batch_tokens=settings.micro_batch_tokens,
            temperature=terms.temperature,
            max_completion=terms.max_completion_tokens,
            loss=loss,
        )
        advantages = AdvantageTerms(
            length_weight=settings.length_weight,
            length_unit=settings.length_unit,
            scale_by_std=settings.scale_by_std,
            scale_length_by_std=settings.scale_length_by_std,
            together=settings.add_rewards_first,
        )
        return cls(step, advantages, terms.async_level)


class Learner:
    """Model, optimiser and tokenizer at one step."""

    def __init__(self, initial: Path, folder: Path, terms: Terms, recipe: Recipe, dtype: torch.dtype) -> None:
        """Go on from the newest step in `folder`, or write step 0 of the checkpoint in `initial`. Blocks.

        Raises ConfigError when `initial` is not the model of the run's terms.
        """
        _check_initial(initial, terms)
        torch.set_num_threads(1)
        self.checkpoints = Checkpoints(folder)
        self.recipe = recipe
        self.dtype = dtype
        self._initial = initial
        self.tokenizer = load_tokenizer(initial)
        self.model = load_model(initial, dtype=torch.float32)
        check_context(terms, self.model.config)
        self.policy = Policy(self.model, temperature=recipe.update.temperature)
        check_model(self.policy)
        self.policy.train()
        self.optimizer = make_optimizer(self.policy, recipe.update)
        self.reference = _reference(initial, recipe.update)
        step = self.checkpoints.latest()
        if step is None:
            self.note = Note(step=0, batch_root=NO_BATCH)
            self._save(self.note)
        else:
            self.note = self.checkpoints.load(step, self.model, self.optimizer)

    @property
    def step(self) -> int:
        return self.note.step

    @property
    def published_form(self) -> Path:
        """The folder of this step that is published."""
        return self.checkpoints.model_dir(self.step)

    def learn(self, batch: Batch, files: Sequence[WorkFile], waited: dict[str, float]) -> Note:
        """One update on a closed batch, written to disk. `waited`: seconds by stage so far."""
        started = time.monotonic()
        samples = samples_of(files, self.recipe.advantages)
        report = update(
            self.policy,
            self.optimizer,
            samples,
            self.recipe.update,
            step=self.step + 1,
            reference=self.reference,
        )
        if report.skipped:
            kept = self.checkpoints.keep_evidence(batch, samples, report)
            log.error(
                "an optimiser step was skipped: its loss or gradient is not finite", step=batch.step, see=str(kept)
            )
        updated = time.monotonic()
        used = dict(self.note.used) | {ref.file_hash: ref.step for ref in batch.files}
        oldest = self.step + 1 - self.recipe.async_level
        note = Note(
            step=self.step + 1,
            batch_root="0x" + batch.root.hex(),
            batch=tuple(ref.file_hash for ref in batch.files),
            used={name: step for name, step in used.items() if step >= oldest},
            metrics=batch_metrics(files, batch.step) | update_metrics(report),
            stages=waited | {"update": updated - started},
        )
        self._save(note)
        self.note = note
        self.checkpoints.prune(self.step)
        return note

    def renew(self) -> Note:
        """The next step with the same weights, written to disk: nobody's work led to it."""
        note = Note(step=self.step + 1, batch_root=NO_BATCH, used=self.note.used)
        self._save(note)
        self.note = note
        self.checkpoints.prune(self.step)
        return note

    def evaluate(self, tasks: Sequence[Task], budgets: Sequence[int], max_tokens: int) -> dict[str, float]:
        """The held-out metrics of this step."""
        self.policy.eval()
        score = greedy_score(self.model, self.tokenizer, tasks, budgets=budgets, max_tokens=max_tokens)
        self.policy.train()
        return {
            "held_out/reward": score.reward,
            "held_out/tasks": float(score.tasks),
            "held_out/mean_length": score.mean_length,
            "held_out/length_error": score.length_error,
        }

    def _save(self, note: Note) -> None:
        self.checkpoints.save(note, self.model, self.optimizer, self._initial, self.dtype)


def update_metrics(report: UpdateReport) -> dict[str, float]:
    """An update's numbers by TRL's names, where it has one; `kl` is the divergence from the reference, `mismatch_kl`
    that between samplers and trainer."""
    values = {name: float(value) for name, value in asdict(report).items() if name != "suspects"}
    values["kl"] = values.pop("reference_kl")
    values["clip_ratio/low_mean"] = values.pop("clip_low")
    values["clip_ratio/high_mean"] = values.pop("clip_high")
    return values


def _reference(initial: Path, terms: UpdateTerms) -> Policy | None:
    """The model the run began with, if the loss asks for it."""
    if not terms.loss.kl_coefficient:
        return None
    policy = Policy(load_model(initial, dtype=torch.float32), temperature=terms.temperature)
    return policy.eval().requires_grad_(False)


def _check_initial(initial: Path, terms: Terms) -> None:
    for what, actual, expected in (
        ("model", model_hash(initial), terms.model_hash),
        ("tokenizer", tokenizer_hash(initial), terms.tokenizer_hash),
    ):
        if actual != expected:
            raise ConfigError(
                f"the {what} in {initial} is 0x{actual.hex()}, the run's terms name 0x{expected.hex()}",
                hint="set trainer.model to the folder that the run was created with",
            )
