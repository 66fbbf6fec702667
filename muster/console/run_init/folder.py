"""The folder of an owner's run: its paths, and what `muster run init` did there.

    README.txt            what each file is, and the long way for this run
    choices.toml          what the owner chose
    run.toml              the terms
    orchestrator.toml     settings of the four processes; those that sign have keys of their own
    weights.toml
    explorer.toml
    trainer.toml
    addresses.json        where the contracts are, once they are deployed
    keys/                 NAME.json and NAME.password of every key, mode 0600
    model/                the model, unless it is a folder of the owner's
    run/                  what newcomers are given: the tasks, tokenizer, configuration, calibration
    calibration/          what was measured for it
    weights/              what the trainer publishes
    nodes/, logs/         of a local trial
    .muster/              databases and states of the processes, the local chain, and what was done here

Everything of a run is in it, so that it can be moved to the machine that will serve it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from muster.errors import ConfigError
from muster.runtime.files import write_durably
from muster.runtime.journal import LOCK_NAME

OWNER: Final = "owner"
TRAINER: Final = "trainer"
STORAGE: Final = "storage"


@dataclass(frozen=True)
class InitProgress:
    """What was done in a folder."""

    written: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of what was written last into a file, by the file's name: another one was edited by a person."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """What tasks and model were made of."""
    checked: Mapping[str, int] = field(default_factory=dict)
    """Longest prompt in tokens, by the hashes of task set, model and tokenizer: they were checked together."""
    unmeasured: str = ""
    """Hash of the model that a public run takes although nothing was measured of it, as its owner said once."""
    sending: bool = False
    """A transaction that creates the run may have been sent: from then on its terms stay as they are."""
    run: int = 0
    """The run's number, once it is on chain."""
    funded: int = 0
    """Token wei that its escrow was seen to have been given."""
    wages: int = 0
    """Token wei that its wages were seen to have been given."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what was done; nothing, where there is no file. Raises ConfigError."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}", hint="take another folder") from error


class RunFolder:
    """Paths in the folder, and its progress, which is on disk whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.choices = self.path / "choices.toml"
        self.terms = self.path / "run.toml"
        self.readme = self.path / "README.txt"
        self.addresses = self.path / "addresses.json"
        self.run_folder = self.path / "run"
        self.tasks = self.run_folder / "tasks"
        self.calibration = self.run_folder / "calibration.json"
        self.measured = self.path / "calibration"
        self.made_model = self.path / "model"
        self.weights = self.path / "weights"
        self.state = self.path / ".muster"
        self.chain = self.state / "chain.json"
        """Saved state that a local chain resumes from."""
        self._progress = self.state / "init.json"

    def settings(self, name: str) -> Path:
        """Return the settings file of a process: orchestrator, weights, explorer, trainer."""
        return self.path / f"{name}.toml"

    def key(self, name: str) -> Path:
        return self.path / "keys" / f"{name}.json"

    def password(self, name: str) -> Path:
        return self.path / "keys" / f"{name}.password"

    @cached_property
    def progress(self) -> InitProgress:
        return InitProgress.read(self._progress)

    def record(self, **changes: Any) -> None:
        """Change the progress, on disk too."""
        self.progress = replace(self.progress, **changes)
        write_durably(self._progress, (json.dumps(asdict(self.progress), indent=1) + "\n").encode())

    def reset_chain(self) -> None:
        """Remove everything that belongs to a local chain; keys, tasks, model, terms and settings stay."""
        checked, made_of = self.progress.checked, self.progress.made_of
        written = self.progress.written
        for path in (self.weights, self.path / "nodes", self.path / "logs", self.path / "journals"):
            shutil.rmtree(path, ignore_errors=True)
        self.addresses.unlink(missing_ok=True)
        for path in self.state.iterdir() if self.state.is_dir() else ():
            if path.name not in (LOCK_NAME, "models"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.progress = InitProgress()
        self.record(written=written, checked=checked, made_of=made_of)

    # Files that people may edit

    def is_edited(self, path: Path) -> bool:
        """Return whether a file is there that is not as it was written last."""
        return path.exists() and self.progress.written.get(path.name) != _hash(path.read_bytes())

    def write(self, path: Path, text: str) -> bool:
        """Write a file, unless a person has edited it; return whether it is now as it should be."""
        data = text.encode()
        is_there = path.exists() and path.read_bytes() == data
        if not is_there:
            if self.is_edited(path):
                return False
            write_durably(path, data)
        if self.progress.written.get(path.name) != _hash(data):
            self.record(written={**self.progress.written, path.name: _hash(data)})
        return True


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
