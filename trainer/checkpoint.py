"""The trainer's memory: one folder per step that is there whole or not at all, and enough to go on bit for bit.

STEPS/000012/
    model/      what is published: safetensors in the profile's dtype, config.json, tokenizer
    adapter/    the low-rank adapter that makes it out of step 0, where one is trained
    state/      float32 master weights and AdamW's moments, as torch.distributed.checkpoint writes them
    note.json   step, the batch that led here, files used lately, metrics, hashes of all other files and of itself
STEPS/batches/000012.json   the batch closed for step 12: an update that was interrupted is done again on the same files
STEPS/skipped/000012.json   the batch of an update that was not finite, and which rollouts it may be the fault of

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
from muster.files import sync, write_durably
from muster.lora import Adapter
from muster.model_files import FIXED_FILES
from trainer.batches import Batch
from trainer.layout import Sample
from trainer.update import UpdateReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE: Final = "state"
NOTE: Final = "note.json"
MODEL: Final = "model"
ADAPTER: Final = "adapter"
BATCHES: Final = "batches"
SKIPPED: Final = "skipped"
KEEP: Final = 2
"""Steps that are kept: the newest, and the one that may still be on its way to the chain beside it."""


@dataclass(frozen=True)
class Note:
    """What a step's folder says about itself."""

    step: int
    batch_root: str
    """0x-hex; zero where no batch led here: step 0, and weights that were published once more."""
    batch: tuple[str, ...] = ()
    """File hashes of the batch."""
    updates: int = 0
    """Batches learnt from until here; fewer than steps where weights were published once more."""
    used: Mapping[str, int] = field(default_factory=dict)
    """File hash → policy step of every file that is used up and could still come again."""
    moments: bool = False
    """Whether the optimiser had taken a step."""
    lora_rank: int = 0
    """Of the adapter that is trained; 0 where all weights are."""
    lora_alpha: float = 0.0
    """What the adapter's product is multiplied by, over the rank; 0 where there is none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By the names of metrics.jsonl."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds, by stage."""


class Checkpoints:
    """The folders of a trainer. Calls block; use them from a thread. Of several ranks only the first has one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06d}"

    def model_dir(self, step: int) -> Path:
        """The model at a step."""
        return self.path(step) / MODEL

    def published(self, step: int) -> tuple[Path, Path | None]:
        """What is published of a step: the model, and the adapter that makes it, if there is one."""
        adapter = self.path(step) / ADAPTER
        return self.model_dir(step), adapter if adapter.is_dir() else None

    def steps(self) -> list[int]:
        """Those that are there, in order."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def latest(self) -> int | None:
        """The newest step that is there."""
        return max(self.steps(), default=None)

    def building(self, step: int) -> Path:
        """Where the ranks write the weights and moments of a step that is not there yet."""
        return self.folder / f".writing-{step:06d}" / STATE

    def settle(
        self,
        note: Note,
        weights: Mapping[str, torch.Tensor],
        model: PreTrainedModel,
        fixed: Path,
        adapter: Adapter | None = None,
    ) -> None:
        """Complete a step whose ranks have written `building`, and let it appear. Raises StorageError.

        `weights`: what is published, in its dtype; `fixed` is a folder with what is not weights; `adapter` makes the
        weights out of step 0's.
        """
        build = self.building(note.step).parent
        try:
            _write_model(build / MODEL, weights, model, fixed)
            if adapter is not None:
                adapter.write(build / ADAPTER, base_model="step 0")
            files = sorted(path for path in build.rglob("*") if path.is_file())
            hashes = {str(path.relative_to(build)): _sha256(path) for path in files}
            said = asdict(note) | {"hashes": hashes}
            (build / NOTE).write_text(json.dumps(said | {"digest": _digest(said)}))
            for path in sorted(build.rglob("*"), reverse=True):  # what a folder holds, then the folder
                sync(path)
            sync(build)
            shutil.rmtree(self.path(note.step), ignore_errors=True)
            build.rename(self.path(note.step))
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"cannot write step {note.step} to {self.folder}: {error}", hint="is the disk full?"
            ) from error

    def read(self, step: int) -> Note:
        """A step's note, if its files are what was written.

        Raises MismatchError when they are not, StorageError when they cannot be read.
        """
        folder = self.path(step)
        try:
            value = json.loads((folder / NOTE).read_text())
            digest, changed = value.pop("digest"), []
            if _digest(value) != digest:
                changed = [NOTE]
            changed += [name for name, expected in value.pop("hashes").items() if _sha256(folder / name) != expected]
            if changed:
                raise MismatchError(
                    f"{folder / changed[0]} is not what was written",
                    hint=f"delete {folder} to go on from the step before",
                )
            return Note(**value | {"batch": tuple(value["batch"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{folder} cannot be read: {error}", hint=f"delete {folder} to go on from the step before"
            ) from error

    def state(self, step: int) -> Path:
        """Weights and moments of a step, as the ranks wrote them."""
        return self.path(step) / STATE

    def prune(self, newest: int) -> None:
        """Remove all but the newest steps, and the batches that only led to those."""
        for path in self.folder.iterdir():
            if path.name.isdigit() and int(path.name) <= newest - KEEP:
                shutil.rmtree(path)
        for path in (self.folder / BATCHES).glob("*.json"):
            if int(path.stem) < newest - KEEP:
                path.unlink()

    def close_batch(self, batch: Batch) -> None:
        """Note, durably, that the update of its step trains on exactly this batch."""
        path = self._batch_path(batch.step)
        path.parent.mkdir(exist_ok=True)
        write_durably(path, batch.to_json().encode())

    def closed_batch(self, step: int) -> Batch | None:
        """The batch closed for `step`, if one was. Raises StorageError when it cannot be read."""
        path = self._batch_path(step)
        try:
            return Batch.from_json(path.read_text()) if path.exists() else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} cannot be read: {error}", hint="delete it: another batch is closed") from error

    def drop_batch(self, step: int) -> None:
        """Forget a closed batch: its files cannot be had any more."""
        self._batch_path(step).unlink(missing_ok=True)

    def _batch_path(self, step: int) -> Path:
        return self.folder / BATCHES / f"{step:06d}.json"

    def keep_evidence(self, batch: Batch, samples: Sequence[Sample], report: UpdateReport) -> Path:
        """Write down what an update was trained on that could not be taken; where."""
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
    """The published form. Tied weights are written once, as transformers does; all that is not weights is copied byte
    for byte, since the run's terms name its hash."""
    model.save_pretrained(folder, state_dict=dict(weights))
    for name in FIXED_FILES:
        if (fixed / name).is_file():
            shutil.copyfile(fixed / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def _digest(value: Mapping[str, object]) -> str:
    """Of what a note says, in whatever order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
