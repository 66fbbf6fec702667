"""The model in training and its steps on disk: what the service does one after the other, in one thread.

A `Learner` is at a step; `learn` takes it to the next one, whose checkpoint is written while the one after is on its
way. Training the same batch from the same step twice gives the same bytes on the same machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from muster import telemetry
from muster.errors import ConfigError
from muster.evaluation import greedy_score
from muster.lora import Adapter
from muster.model_files import context_of, load_tokenizer, model_hash, tokenizer_hash
from muster.models import load_model
from muster.settings import TrainerSettings
from muster.tasks import Task
from muster.terms import Terms, check_context
from trainer.advantages import AdvantageTerms
from trainer.batches import Batch, WorkFile, batch_metrics, samples_of
from trainer.checkpoint import Checkpoints, Note
from trainer.lora import merge
from trainer.loss import LossTerms
from trainer.ranks import Ranks, finish
from trainer.replica import COMPANY_SECONDS, Replica
from trainer.update import UpdateReport, UpdateTerms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
        update = UpdateTerms(
            learning_rate=settings.learning_rate,
            ramp_steps=settings.ramp_steps,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
            optimiser_steps=settings.optimiser_steps,
            recompute_old=settings.old_logprobs == "recomputed",
            micro_batch_tokens=settings.micro_batch_tokens,
            activation_checkpointing=settings.activation_checkpointing,
            lora_rank=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            temperature=terms.temperature,
            max_completion=terms.max_completion_tokens,
            loss=loss,
        )
        advantages = AdvantageTerms(
            length_weight=settings.length_weight,
            length_unit=settings.length_unit,
            scale_by_std=settings.scale_by_std,
            scale_length_by_std=settings.scale_length_by_std,
            add_rewards_first=settings.add_rewards_first,
        )
        return cls(update, advantages, terms.async_level)

    def words(self) -> dict[str, Any]:
        """As JSON can say it, for the other ranks."""
        return asdict(self)

    @classmethod
    def of_words(cls, words: dict[str, Any]) -> Self:
        """The inverse of `words`."""
        update = words["update"]
        update |= {"loss": LossTerms(**update["loss"]), "betas": tuple(update["betas"])}
        return cls(UpdateTerms(**update), AdvantageTerms(**words["advantages"]), words["async_level"])


class Learner:
    """The model at one step, what is on disk of it, and how it comes to the next. Belongs to one thread, but for
    `written` and `leave`."""

    def __init__(
        self, initial: Path, folder: Path, terms: Terms, recipe: Recipe, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        """Go on from the newest step in `folder`, or begin with step 0, the checkpoint in `initial`. Blocks.

        Raises ConfigError when `initial` is not the model of the run's terms, or the step there was trained with
        another adapter; MismatchError or StorageError when it is damaged.
        """
        _check_initial(initial, terms)
        self.checkpoints = Checkpoints(folder)
        self.recipe = recipe
        self.dtype = dtype
        self._initial = initial
        self.tokenizer = load_tokenizer(initial)
        ranks.tell("begin", **recipe.words())
        self.replica = Replica(initial, recipe.update, ranks)
        check_context(terms, context_of(initial))
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] = Future()
        self._leaving = threading.Event()
        self._spoke = time.monotonic()
        step = self.checkpoints.latest()
        if step is None:
            self.note = Note(step=0, batch_root=NO_BATCH)
            self._save(self.note)
        else:
            self.note = self.checkpoints.read(step)
            _check_adapter(self.note, recipe.update, folder)
            self.replica.load(self.checkpoints.state(step), moments=self.note.moments)
            self._writing.set_result(None)

    @property
    def step(self) -> int:
        return self.note.step

    def written(self) -> None:
        """Wait until the step is on disk, whole. Raises StorageError when it could not be written, ConfigError when its
        weights are not finite."""
        self._writing.result()

    def leave(self) -> None:
        """Let a score that is being taken end unfinished."""
        self._leaving.set()

    def close(self) -> None:
        """Ends when what is being written is."""
        self._writer.shutdown(wait=True)

    def learn(self, batch: Batch, files: Sequence[WorkFile], waited: dict[str, float]) -> Note:
        """One update on a closed batch. Returns when what came of it is safe from the next one; it reaches the disk
        later (`written`). `waited`: seconds by stage so far."""
        started = time.monotonic()
        samples = samples_of(files, self.recipe.advantages)
        prepared = time.monotonic()
        updates = self.note.updates + 1
        report = self.replica.update(samples, updates)
        if report.skipped:
            kept = self.checkpoints.keep_evidence(batch, samples, report)
            log.error(
                "an optimiser step was skipped: its loss or gradient is not finite", step=batch.step, see=str(kept)
            )
        used = dict(self.note.used) | {ref.file_hash: ref.step for ref in batch.files}
        oldest = self.step + 1 - self.recipe.async_level
        note = Note(
            step=self.step + 1,
            batch_root="0x" + batch.root.hex(),
            batch=tuple(ref.file_hash for ref in batch.files),
            updates=updates,
            used={name: step for name, step in used.items() if step >= oldest},
            metrics=batch_metrics(files, batch.step) | update_metrics(report),
            stages=waited | {"prepare": prepared - started, "update": time.monotonic() - prepared},
        )
        return self._save(note)

    def renew(self) -> Note:
        """The next step with the same weights: nobody's work led to it."""
        note = self.note
        return self._save(Note(step=note.step + 1, batch_root=NO_BATCH, updates=note.updates, used=note.used))

    def evaluate(self, tasks: Sequence[Task], budgets: Sequence[int], max_tokens: int) -> dict[str, float]:
        """The held-out metrics of this step. Raises CancelledError after `leave`."""
        model = self._whole_model()
        model.eval()
        score = greedy_score(
            model, self.tokenizer, tasks, budgets=budgets, max_tokens=max_tokens, between=self._keep_company
        )
        model.train()
        return {
            "held_out/reward": score.reward,
            "held_out/tasks": float(score.tasks),
            "held_out/mean_length": score.mean_length,
            "held_out/length_error": score.length_error,
        }

    def _keep_company(self) -> None:
        """A score takes hours of a large model; the other ranks wait for a word meanwhile."""
        if self._leaving.is_set():
            raise CancelledError
        if time.monotonic() - self._spoke > COMPANY_SECONDS:
            self._spoke = time.monotonic()
            self.replica.wait()

    def _whole_model(self) -> PreTrainedModel:
        """A model that generates on this rank alone: the one in training, unless others hold parts of it."""
        if not self.replica.ranks.sharded:
            return self.replica.model
        self.written()
        model = load_model(self.checkpoints.model_dir(self.step), dtype=self.dtype)
        torch.nn.Module.to(model, self.replica.ranks.device)
        return model

    def _save(self, note: Note) -> Note:
        """Begin to write the step that the replica is at. One is written at a time."""
        started = time.monotonic()
        if note.step:
            self.written()
        rank, alpha = _adapter_terms(self.recipe.update)
        note = replace(note, moments=bool(self.replica.optimizer.state), lora_rank=rank, lora_alpha=alpha)
        weights, adapter = self.replica.published(self.dtype)
        ranks_write = self.replica.save(self.checkpoints.building(note.step))
        note = replace(note, stages={**note.stages, "stall": time.monotonic() - started})
        self._writing = self._writer.submit(self._write, note, weights, adapter, ranks_write)
        self.note = note
        return note

    def _write(
        self, note: Note, weights: Mapping[str, torch.Tensor], adapter: Adapter | None, ranks_write: Future[Any]
    ) -> None:
        """Merge the adapter, wait for the ranks' files, and let the step appear.

        Raises StorageError, and ConfigError when the weights are not finite.
        """
        if not note.step:
            adapter = None  # step 0 is what adapters are added to
        if adapter is not None:
            merge(adapter, weights)
        _check_finite(weights, note.step)
        finish(ranks_write, f"step {note.step} to {self.checkpoints.folder}")
        self.checkpoints.settle(note, weights, self.replica.model, self._initial, adapter)
        self.checkpoints.prune(note.step)


def update_metrics(report: UpdateReport) -> dict[str, float]:
    """An update's numbers by TRL's names, where it has one; `kl` is the divergence from the reference, `mismatch_kl`
    that between samplers and trainer."""
    values = {name: float(value) for name, value in asdict(report).items() if name != "suspects"}
    values["kl"] = values.pop("reference_kl")
    values["clip_ratio/low_mean"] = values.pop("clip_low")
    values["clip_ratio/high_mean"] = values.pop("clip_high")
    return values


def _adapter_terms(terms: UpdateTerms) -> tuple[int, float]:
    """Rank and alpha; zeros where all weights are trained."""
    return terms.lora_rank, terms.lora_alpha if terms.lora_rank else 0.0


def _check_adapter(note: Note, terms: UpdateTerms, folder: Path) -> None:
    rank, alpha = _adapter_terms(terms)
    if (rank, alpha) != (note.lora_rank, note.lora_alpha):
        raise ConfigError(
            f"step {note.step} in {folder} was trained with trainer.lora_rank {note.lora_rank} and lora_alpha "
            f"{note.lora_alpha:g}, not {rank} and {alpha:g}",
            hint="set them back: another adapter needs a run of its own",
        )


def _check_finite(weights: Mapping[str, torch.Tensor], step: int) -> None:
    """Raises ConfigError when a weight is not a number that can be trained on: the step before stays the newest."""
    for name, value in weights.items():
        if not bool(value.isfinite().all()):
            raise ConfigError(
                f"{name} is not finite at step {step}, which is not written",
                hint="begin with another model" if step == 0 else "lower trainer.learning_rate, and start again",
            )


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
