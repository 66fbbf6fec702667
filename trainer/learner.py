"""The model in training and its steps on disk: what the service does one after the other, in one thread.

A `Learner` is at a step; `train_step` takes it to the next one, whose checkpoint is written while the one after is
trained. Training the same batch from the same step twice gives the same bytes on the same machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from pydantic import TypeAdapter

from muster.environments.scoring import Scorers
from muster.errors import ConfigError
from muster.models.files import context_of, load_tokenizer, model_hash, tokenizer_hash
from muster.models.greedy import greedy_score
from muster.models.init import load_model
from muster.models.lora import Adapter
from muster.models.matmul import choose_matmul
from muster.protocol.metric_names import HELD_OUT, HELD_OUT_LENGTH, HELD_OUT_LENGTH_ERROR, HELD_OUT_TASKS
from muster.protocol.terms import Terms, check_context
from muster.runtime import telemetry
from muster.settings.schema import MatmulSetting, TrainerSettings
from muster.tasksets.taskset import Scored
from muster.verification.profiles import Profile, profile_by_hash
from trainer.advantages import AdvantageTerms
from trainer.batches import Batch, WorkFile, batch_metrics, samples_of
from trainer.checkpoint import CheckpointMetadata, CheckpointStore
from trainer.distributed import Ranks, finish
from trainer.lora import merge
from trainer.loss import LossTerms
from trainer.model_replica import HEARTBEAT_SECONDS, Replica
from trainer.update import UpdateReport, UpdateTerms

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NONE_IF_ZERO = ("epsilon_high", "delta", "mask_ratio_low", "mask_ratio_high", "mask_probability_difference")
"""Settings whose 0 is None in `LossTerms`."""

log = telemetry.logger("trainer")


@dataclass(frozen=True)
class Recipe:
    """How to train, from settings and terms."""

    update: UpdateTerms
    advantages: AdvantageTerms
    async_level: int

    @classmethod
    def from_settings(cls, settings: TrainerSettings, terms: Terms, profile: Profile | None = None) -> Self:
        """Return the recipe of these settings under these terms. Most fields have the name of their setting.

        profile: what the run's work is judged by; without it the one whose name the terms hold.
        """
        loss = _settings_for(LossTerms, settings)
        loss |= {name: getattr(settings, name) or None for name in _NONE_IF_ZERO}
        update = UpdateTerms(
            **_settings_for(UpdateTerms, settings),
            betas=(settings.beta1, settings.beta2),
            profile=(profile or profile_by_hash(terms.profile)).name,
            temperature=terms.temperature,
            max_completion=terms.max_completion_tokens,
            loss=LossTerms(**loss),
        )
        return cls(update, AdvantageTerms(**_settings_for(AdvantageTerms, settings)), terms.async_level)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the inverse of `dataclasses.asdict`, after JSON, for the other ranks."""
        return TypeAdapter(cls).validate_python(values)


def _settings_for(kind: type, settings: TrainerSettings) -> dict[str, Any]:
    """Return the settings that have the name of one of this dataclass's fields."""
    return {f.name: getattr(settings, f.name) for f in fields(kind) if f.name in TrainerSettings.model_fields}


class Learner:
    """The model at one step, its checkpoints on disk, and the training of the next step.

    All methods but `written` and `cancel_evaluation` belong to one thread.
    """

    def __init__(
        self,
        initial: Path,
        folder: Path,
        terms: Terms,
        recipe: Recipe,
        dtype: torch.dtype,
        ranks: Ranks,
        matmul: MatmulSetting = "auto",
    ) -> None:
        """Go on from the newest step in `folder`, or begin with step 0, the checkpoint in `initial`. Blocks.

        `matmul`: how to multiply bfloat16, unless the step there says.

        Raises ConfigError when `initial` is not the model of the run's terms, or the step there was trained with
        another adapter; MismatchError or StorageError when it is damaged.
        """
        _check_initial(initial, terms)
        self.checkpoints = CheckpointStore(folder)
        step = self.checkpoints.latest()
        chosen = choose_matmul(matmul, ranks.device.type)
        self.metadata = CheckpointMetadata(0, matmul=chosen) if step is None else self.checkpoints.read(step)
        if self.metadata.matmul != chosen and torch.bfloat16 in (dtype, ranks.dtype):
            log.warning("the run multiplies bfloat16 as it began", matmul=self.metadata.matmul, here=chosen)
        recipe = replace(recipe, update=replace(recipe.update, matmul=self.metadata.matmul))
        self.recipe = recipe
        self.dtype = dtype
        self._initial = initial
        self.tokenizer = load_tokenizer(initial)
        ranks.broadcast("begin", **asdict(recipe))
        self.replica = Replica(initial, recipe.update, ranks)
        check_context(terms, context_of(initial))
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] = Future()
        self._cancelled = threading.Event()
        self._last_heartbeat = time.monotonic()
        if step is None:
            self._save(self.metadata)
        else:
            _check_adapter(self.metadata, recipe.update, folder)
            self.replica.load(self.checkpoints.state(step), moments=self.metadata.moments)
            self._writing.set_result(None)

    @property
    def step(self) -> int:
        return self.metadata.step

    def written(self) -> None:
        """Wait until the step is on disk, whole.

        Raises StorageError when it could not be written, ConfigError when its weights are not finite.
        """
        self._writing.result()

    def cancel_evaluation(self) -> None:
        """Stop an evaluation that is under way."""
        self._cancelled.set()

    def close(self) -> None:
        """Wait until the step that is being written is on disk."""
        self._writer.shutdown(wait=True)

    def train_step(
        self,
        batch: Batch,
        files: Sequence[WorkFile],
        seconds: dict[str, float],
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> CheckpointMetadata:
        """Train one step on a closed batch. `seconds`: by stage so far; `metrics`: to be reported besides.

        Returns once the next step cannot change what will be written; the checkpoint is on disk later (`written`).
        """
        # 1. Samples with their advantages, out of the batch's files.
        started = time.monotonic()
        samples = samples_of(files, self.recipe.advantages)
        # 2. The update. One that is not finite is left out, and its batch kept as evidence.
        prepared = time.monotonic()
        updates = self.metadata.updates + 1
        report = self.replica.update(samples, updates)
        if report.skipped:
            kept = self.checkpoints.keep_evidence(batch, samples, report)
            log.error("skipped an optimiser step: its loss or gradient is not finite", step=batch.step, see=str(kept))
        # 3. The checkpoint of the step that this leads to.
        used = dict(self.metadata.used) | {ref.file_hash: ref.step for ref in batch.files}
        oldest = self.step + 1 - self.recipe.async_level
        metadata = CheckpointMetadata(
            step=self.step + 1,
            files=batch.files,
            updates=updates,
            used={name: step for name, step in used.items() if step >= oldest},
            metrics={**metrics, **batch_metrics(files, batch.step), **update_metrics(report)},
            stages=seconds | {"prepare": prepared - started, "update": time.monotonic() - prepared},
        )
        return self._save(metadata)

    def republish(self, metrics: Mapping[str, float] = MappingProxyType({})) -> CheckpointMetadata:
        """Save the next step with the same weights: no work led to it. `metrics`: to be reported of it."""
        metadata = self.metadata
        return self._save(
            CheckpointMetadata(
                step=metadata.step + 1,
                updates=metadata.updates,
                used=metadata.used,
                metrics=metrics,
            )
        )

    def evaluate(
        self, tasks: Sequence[Scored], scorers: Scorers, budgets: Sequence[int], max_tokens: int
    ) -> dict[str, float]:
        """Return the held-out metrics of this step.

        Raises CancelledError after `cancel_evaluation`, and as `greedy_score`.
        """
        model = self._whole_model()
        model.eval()
        try:
            score = greedy_score(
                model,
                self.tokenizer,
                tasks,
                scorers,
                budgets=budgets,
                max_tokens=max_tokens,
                between=self._send_heartbeat,
            )
        finally:
            model.train()
        return {
            HELD_OUT: score.reward,
            HELD_OUT_TASKS: float(score.tasks),
            HELD_OUT_LENGTH: score.mean_length,
            HELD_OUT_LENGTH_ERROR: score.length_error,
        }

    def _send_heartbeat(self) -> None:
        """Send a heartbeat to the other ranks: evaluating a large model can take hours."""
        if self._cancelled.is_set():
            raise CancelledError
        if time.monotonic() - self._last_heartbeat > HEARTBEAT_SECONDS:
            self._last_heartbeat = time.monotonic()
            self.replica.heartbeat()

    def _whole_model(self) -> PreTrainedModel:
        """Return a model that generates on this rank alone: the one in training, unless others hold parts of it."""
        if not self.replica.ranks.sharded:
            return self.replica.model
        self.written()
        model = load_model(self.checkpoints.model_dir(self.step), self.dtype, self.recipe.update.matmul)
        torch.nn.Module.to(model, self.replica.ranks.device)
        return model

    def _save(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Begin to write the step that the replica is at. One step is written at a time."""
        started = time.monotonic()
        if metadata.step:
            self.written()
        rank, alpha = _adapter_terms(self.recipe.update)
        kept: dict[str, Any] = {"lora_rank": rank, "lora_alpha": alpha, "matmul": self.recipe.update.matmul}
        metadata = replace(metadata, moments=bool(self.replica.optimizer.state), **kept)
        weights, adapter = self.replica.published(self.dtype)
        ranks_write = self.replica.save(self.checkpoints.building(metadata.step))
        metadata = replace(metadata, stages={**metadata.stages, "stall": time.monotonic() - started})
        self._writing = self._writer.submit(self._write, metadata, weights, adapter, ranks_write)
        self.metadata = metadata
        return metadata

    def _write(
        self,
        metadata: CheckpointMetadata,
        weights: Mapping[str, torch.Tensor],
        adapter: Adapter | None,
        ranks_write: Future[Any],
    ) -> None:
        """Merge the adapter, wait for the ranks' files, and finalize the step.

        Raises StorageError, and ConfigError when the weights are not finite.
        """
        if not metadata.step:
            adapter = None  # step 0 is the base that adapters are added to
        if adapter is not None:
            merge(adapter, weights)
        _check_finite(weights, metadata.step)
        finish(ranks_write, f"step {metadata.step} to {self.checkpoints.folder}")
        self.checkpoints.finalize(metadata, weights, self.replica.model, self._initial, adapter)
        self.checkpoints.prune(metadata.step)


def update_metrics(report: UpdateReport) -> dict[str, float]:
    """Return an update's numbers by TRL's names, where it has one.

    `kl` is the divergence from the reference, `mismatch_kl` that between samplers and trainer.
    """
    values = {name: float(value) for name, value in asdict(report).items() if name != "suspects"}
    values["kl"] = values.pop("reference_kl")
    values["clip_ratio/low_mean"] = values.pop("clip_low")
    values["clip_ratio/high_mean"] = values.pop("clip_high")
    return values


def _adapter_terms(terms: UpdateTerms) -> tuple[int, float]:
    """Return rank and alpha; zeros where all weights are trained."""
    return terms.lora_rank, terms.lora_alpha if terms.lora_rank else 0.0


def _check_adapter(metadata: CheckpointMetadata, terms: UpdateTerms, folder: Path) -> None:
    rank, alpha = _adapter_terms(terms)
    if (rank, alpha) != (metadata.lora_rank, metadata.lora_alpha):
        raise ConfigError(
            f"step {metadata.step} in {folder} was trained with trainer.lora_rank {metadata.lora_rank} and lora_alpha "
            f"{metadata.lora_alpha:g}, not {rank} and {alpha:g}",
            hint="set them back: another adapter needs another run",
        )


def _check_finite(weights: Mapping[str, torch.Tensor], step: int) -> None:
    """Raise ConfigError when a weight is not finite: the step before stays the newest."""
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
