"""The trainer's memory: one folder per step that is there whole or not at all, and enough to go on bit for bit.

STATE/000012/
    model/                  what is published: safetensors in the profile's dtype, config.json, tokenizer
    weights.safetensors     float32 master weights
    optimizer.safetensors   AdamW's moments, by parameter
    note.json               step, the batch that led here, files used lately, metrics, hashes of the two above
STATE/skipped/000012.json   the batch of an update that was not finite, and which rollouts it may be the fault of
STATE/batch.json            the batch closed last: an update that was interrupted is done again on the same files
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import load_file, save_file

from muster.errors import MismatchError, StorageError
from muster.files import sync, write_durably
from muster.model_files import FIXED_FILES
from trainer.batches import Batch
from trainer.layout import Sample
from trainer.update import UpdateReport

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS: Final = "weights.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
NOTE: Final = "note.json"
MODEL: Final = "model"
SKIPPED: Final = "skipped"
KEEP: Final = 2
"""Steps that are kept: the last may be all that a power failure leaves unpublished."""


@dataclass(frozen=True)
class Note:
    """What a step's folder says about itself."""

    step: int
    batch_root: str
    """0x-hex; zero for the initial checkpoint."""
    batch: tuple[str, ...] = ()
    """File hashes of the batch."""
    used: Mapping[str, int] = field(default_factory=dict)
    """File hash → policy step of every file that is used up and could still come again."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)


class Checkpoints:
    """The folders of a trainer. Calls block; use them from a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".writing-*"):
            shutil.rmtree(leftover)

    def path(self, step: int) -> Path:
        return self.folder / f"{step:06d}"

    def model_dir(self, step: int) -> Path:
        """What is published of a step."""
        return self.path(step) / MODEL

    def latest(self) -> int | None:
        """The newest step that is there."""
        return max((int(path.name) for path in self.folder.iterdir() if path.name.isdigit()), default=None)

    def save(
        self,
        note: Note,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        fixed: Path,
        dtype: torch.dtype,
    ) -> None:
        """Write a step whole, then let it appear; `fixed` is a folder with what is not weights. Raises StorageError."""
        build = self.folder / f".writing-{note.step:06d}"
        try:
            _write(build, note, model, optimizer, fixed, dtype)
            shutil.rmtree(self.path(note.step), ignore_errors=True)
            build.rename(self.path(note.step))
            sync(self.folder)
        except OSError as error:
            raise StorageError(f"cannot write step {note.step} to {self.folder}: {error.strerror}") from error

    def load(self, step: int, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> Note:
        """Put a step's weights and moments into `model` and `optimizer`.

        Raises MismatchError when the files are not the ones that were written, StorageError when they are not there.
        """
        folder = self.path(step)
        try:
            value = json.loads((folder / NOTE).read_text())
        except (OSError, ValueError) as error:
            raise StorageError(f"{folder} has no readable note: {error}") from error
        for name, expected in value.pop("hashes").items():
            if _sha256(folder / name) != expected:
                raise MismatchError(
                    f"{folder / name} is not what was written", hint=f"delete {folder} to go on from the step before"
                )
        model.load_state_dict(load_file(folder / WEIGHTS), strict=False)
        model.tie_weights()
        _restore(optimizer, model, load_file(folder / OPTIMIZER))
        return Note(**value | {"batch": tuple(value["batch"])})

    def prune(self, newest: int) -> None:
        """Remove all but the newest steps."""
        for path in self.folder.iterdir():
            if path.name.isdigit() and int(path.name) <= newest - KEEP:
                shutil.rmtree(path)

    def close_batch(self, batch: Batch) -> None:
        """Note, durably, that the next update trains on exactly this batch."""
        write_durably(self.folder / "batch.json", batch.to_json().encode())

    def closed_batch(self, step: int) -> Batch | None:
        """The batch closed for `step`, if one was."""
        path = self.folder / "batch.json"
        if not path.exists():
            return None
        batch = Batch.from_json(path.read_text())
        return batch if batch.step == step else None

    def keep_evidence(self, batch: Batch, samples: Sequence[Sample], report: UpdateReport) -> Path:
        """Write down what an update was trained on that could not be taken; where."""
        path = self.folder / SKIPPED / f"{batch.step:06d}.json"
        suspects = [samples[place] for place in report.suspects]
        value = {
            "batch": json.loads(batch.to_json()),
            "loss": repr(report.loss),
            "grad_norm": repr(report.grad_norm),
            "suspects": [{"file": suspect.file, "position": suspect.rollout.position} for suspect in suspects],
        }
        path.parent.mkdir(exist_ok=True)
        write_durably(path, json.dumps(value, indent=1).encode())
        return path

    def drop_batch(self) -> None:
        """Forget the closed batch: its files cannot be had any more."""
        (self.folder / "batch.json").unlink(missing_ok=True)


def _write(
    build: Path,
    note: Note,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    fixed: Path,
    dtype: torch.dtype,
) -> None:
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    save_file(weights, build / WEIGHTS)
    save_file(_moments(optimizer, model), build / OPTIMIZER)
    _write_model(build / MODEL, model, fixed, dtype)
    value: dict[str, Any] = {
        "step": note.step,
        "batch_root": note.batch_root,
        "batch": list(note.batch),
        "used": dict(note.used),
        "metrics": dict(note.metrics),
        "stages": dict(note.stages),
        "hashes": {name: _sha256(build / name) for name in (WEIGHTS, OPTIMIZER)},
    }
    (build / NOTE).write_text(json.dumps(value))
    for path in [*build.iterdir(), *(build / MODEL).iterdir()]:
        sync(path)
    sync(build)


def _write_model(folder: Path, model: PreTrainedModel, fixed: Path, dtype: torch.dtype) -> None:
    """The published form. Tied weights are written once, as transformers does; all that is not weights is copied byte
    for byte, since the run's terms name its hash."""
    state = {name: value.detach().to(dtype) for name, value in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=state)
    for name in FIXED_FILES:
        if (fixed / name).is_file():
            shutil.copyfile(fixed / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def _moments(optimizer: torch.optim.Optimizer, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """AdamW's state by `PARAMETER/KEY`; tensors only, so that no pickle is ever read."""
    names = {id(value): name for name, value in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def _restore(optimizer: torch.optim.Optimizer, model: PreTrainedModel, moments: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in moments.items():
        name, _, part = key.rpartition("/")
        optimizer.state[parameters[name]][part] = value.clone()


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
