"""Keep the trainer's checkpoints: one folder per step, whole or absent, from which training resumes bit for bit.

STEPS/000012/
    model/      what is published: safetensors in the profile's dtype, config.json, tokenizer
    adapter/    the low-rank adapter that turns step 0 into it, where one is trained
    state/      float32 master weights and AdamW's moments, as torch.distributed.checkpoint writes them
    note.json   metadata: step, batch, files used lately, metrics, hashes of all other files and of itself
STEPS/batches/000012.json   the batch closed for step 12: an interrupted update is done again on the same files
STEPS/skipped/000012.json   the batch of an update that was not finite, and the rollouts that may have caused it

STEPS is `steps` in `trainer.state_dir`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from safetensors import SafetensorError

from muster.errors import MismatchError, StorageError
from muster.models.files import FIXED_FILES
from muster.models.lora import Adapter
from muster.runtime.files import sha256_of, sync, write_durably
from muster.settings.schema import Matmul
from trainer.batches import Batch, FileRef
from trainer.packing import Sample
from trainer.update import UpdateReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE: Final = "state"
METADATA: Final = "note.json"
MODEL: Final = "model"
ADAPTER: Final = "adapter"
BATCHES: Final = "batches"
SKIPPED: Final = "skipped"
KEEP: Final = 2
"""Steps that are kept: the newest, and the one before it, which may not be on chain yet."""


@dataclass(frozen=True)
class CheckpointMetadata:
    """What a step's folder says about its step."""

    step: int
    files: tuple[FileRef, ...] = ()
    """The batch. None where no batch led here: step 0, and weights that were republished."""
    updates: int = 0
    """Batches trained on so far; fewer than steps where weights were republished."""
    used: Mapping[str, int] = field(default_factory=dict)
    """File hash → policy step of every file that is used up and could still come again."""
    moments: bool = False
    """Whether the optimiser had taken a step."""
    lora_rank: int = 0
    """Of the adapter that is trained; 0 where all weights are."""
    lora_alpha: float = 0.0
    """What the adapter's product is multiplied by, over the rank; 0 where there is none."""
    matmul: Matmul = "native"
    """How the run multiplies bfloat16, wherever it is resumed."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By the names of metrics.jsonl."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds, by stage."""

    @property
    def batch(self) -> tuple[str, ...]:
        """Return the file hashes of the batch."""
        return tuple(ref.file_hash for ref in self.files)


class CheckpointStore:
    """The folders of a trainer. Calls block; use them from a thread. Only rank 0 has one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06d}"

    def model_dir(self, step: int) -> Path:
        """Return the folder of the model at a step."""
        return self.path(step) / MODEL

    def published(self, step: int) -> tuple[Path, Path | None]:
        """Return the folders that are published of a step: the model, and its adapter, if there is one."""
        adapter = self.path(step) / ADAPTER
        return self.model_dir(step), adapter if adapter.is_dir() else None

    def steps(self) -> list[int]:
        """Return the steps on disk, in order."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def latest(self) -> int | None:
        """Return the newest step on disk."""
        return max(self.steps(), default=None)

    def building(self, step: int) -> Path:
        """Return where the ranks write the weights and moments of a step that is not complete yet."""
        return self.folder / f".writing-{step:06d}" / STATE

    def finalize(
        self,
        metadata: CheckpointMetadata,
        weights: Mapping[str, torch.Tensor],
        model: PreTrainedModel,
        fixed: Path,
        adapter: Adapter | None = None,
    ) -> None:
        """Complete a step whose ranks have written `building`, and rename it into place. Raises StorageError.

        `weights`: what is published, in its dtype; `fixed` is a folder with what is not weights; `adapter` turns step
        0's weights into these.
        """
        build = self.building(metadata.step).parent
        try:
            _write_model(build / MODEL, weights, model, fixed)
            if adapter is not None:
                adapter.write(build / ADAPTER, base_model="step 0")
            files = sorted(path for path in build.rglob("*") if path.is_file())
            hashes = {str(path.relative_to(build)): sha256_of(path) for path in files}
            document = asdict(metadata) | {"hashes": hashes}
            (build / METADATA).write_text(json.dumps(document | {"digest": _digest(document)}))
            for path in sorted(build.rglob("*"), reverse=True):  # a folder's content before the folder
                sync(path)
            sync(build)
            shutil.rmtree(self.path(metadata.step), ignore_errors=True)
            build.rename(self.path(metadata.step))
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"cannot write step {metadata.step} to {self.folder}: {error}", hint="is the disk full?"
            ) from error

    def read(self, step: int) -> CheckpointMetadata:
        """Return a step's metadata, if its files are what was written.

        Raises MismatchError when they are not, StorageError when they cannot be read.
        """
        folder = self.path(step)
        try:
            value = json.loads((folder / METADATA).read_text())
            digest, changed = value.pop("digest"), []
            if _digest(value) != digest:
                changed = [METADATA]
            changed += [name for name, expected in value.pop("hashes").items() if sha256_of(folder / name) != expected]
            if changed:
                raise MismatchError(
                    f"{folder / changed[0]} is not what was written",
                    hint=f"delete {folder} to resume from the step before",
                )
            return CheckpointMetadata(**value | {"files": tuple(map(FileRef.from_json, value["files"]))})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{folder} cannot be read: {error}", hint=f"delete {folder} to resume from the step before"
            ) from error

    def state(self, step: int) -> Path:
        """Return the folder of a step's weights and moments, as the ranks wrote them."""
        return self.path(step) / STATE

    def prune(self, newest: int) -> None:
        """Remove all but the newest steps, and the batches of the removed ones."""
        for path in self.folder.iterdir():
            if path.name.isdigit() and int(path.name) <= newest - KEEP:
                shutil.rmtree(path)
        for path in (self.folder / BATCHES).glob("*.json"):
            if int(path.stem) < newest - KEEP:
                path.unlink()

    def close_batch(self, batch: Batch) -> None:
        """Record, durably, that the update of its step trains on exactly this batch."""
        path = self._batch_path(batch.step)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, batch.to_json().encode())

    def closed_batch(self, step: int) -> Batch | None:
        """Return the batch closed for `step`, if one was. Raises StorageError when it cannot be read."""
        path = self._batch_path(step)
        try:
            return Batch.from_json(path.read_text()) if path.exists() else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} cannot be read: {error}", hint="delete it: another batch is closed") from error

    def drop_batch(self, step: int) -> None:
        """Forget a closed batch whose files cannot be fetched any more."""
        self._batch_path(step).unlink(missing_ok=True)

    def _batch_path(self, step: int) -> Path:
        return self.folder / BATCHES / f"{step:06d}.json"

    def keep_evidence(self, batch: Batch, samples: Sequence[Sample], report: UpdateReport) -> Path:
        """Write down the batch of an update that was not finite; return the file's path."""
        path = self.folder / SKIPPED / f"{batch.step:06d}.json"
        suspects = [samples[place] for place in report.suspects]
        value = {
            "batch": json.loads(batch.to_json()),
            "loss": repr(report.loss),
            "grad_norm": repr(report.grad_norm),
            "suspects": [{"file": suspect.file, "position": suspect.position} for suspect in suspects],
        }
        path.parent.mkdir(exist_ok=True)
        write_durably(path, json.dumps(value, indent=1).encode())
        return path


def _write_model(folder: Path, weights: Mapping[str, torch.Tensor], model: PreTrainedModel, fixed: Path) -> None:
    """Write the published form.

    Tied weights are written once, as transformers does. All that is not weights is copied byte for byte, since the
    run's terms name its hash.
    """
    model.save_pretrained(folder, state_dict=dict(weights))
    for name in FIXED_FILES:
        if (fixed / name).is_file():
            shutil.copyfile(fixed / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def _digest(value: Mapping[str, object]) -> str:
    """Return the SHA-256 of a document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
